"""What ``vllm serve`` refuses before it loads anything, for the stand-in of a rehearsal.

    refused = refusals.refusal(engine, words, env, world)     # None: it would start
    print("\\n".join(refused.lines())); sys.exit(refused.code)

The checks are those of vLLM 0.20.2 in its order (vllm/entrypoints/cli/serve.py, vllm/engine/
arg_utils.py create_engine_config, vllm/config/*.py), its messages without pydantic's tails. What
needs the model's or the draft's files is not looked at: whether they are there is not said here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic

from kimi_nb import catalog, params, schema, servers
from kimi_nb.deployment import Deployment
from kimi_nb.findings import ERROR
from kimi_nb.rehearsal.engine.parser import (
    INVALID,
    MEASURED,
    Refusal,
    parser_refusal,
    processed,
    raised,
    shape,
)
from kimi_nb.rehearsal.world import World
from kimi_nb.rules import settings

__all__ = ["FALLBACK", "Refusal", "refusal"]

# Rules of ours that say what the real engine refuses and nothing above says, by id. The other
# errors of these families are said here in the engine's own words, except engine/quantization and
# Eagle3 in engine/context-parallel, which end it while it loads or serves, and the limits of
# engine/value, which are ours.
FALLBACK = (
    ("engine/draft-method", settings.draft_known,
     "SpeculativeConfig knows the method of a draft from some version on, which our facts name."),
)
_QUANTIZATIONS = [
    "awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8",
    "modelopt_mixed", "gguf", "gptq_marlin", "awq_marlin", "gptq", "humming", "compressed-tensors",
    "bitsandbytes", "experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4",
    "gpt_oss_mxfp4", "deepseek_v4_fp8", "cpu_awq", "online", "fp8_per_tensor", "fp8_per_block",
    "int8_per_channel_weight_only", "mxfp8"]
_REASONING = (
    "deepseek_r1", "deepseek_v3", "deepseek_v4", "ernie45", "gemma4", "glm45", "granite", "holo2",
    "hunyuan_a13b", "hy_v3", "kimi_k2", "mimo", "minimax_m2", "minimax_m2_append_think", "mistral",
    "nemotron_v3", "olmo3", "openai_gptoss", "qwen3", "seed_oss", "step3", "step3p5")
# The list of the releases before 0.18; the model type is that of Kimi's language model.
_EAGLE3 = ["llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe"]
_KIMI = "kimi_k2"
_MODELLESS = ("mtp", "ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states")


@dataclass(frozen=True)
class _Start:
    """One start: the command line as read, its variables, and what the rehearsal pretends."""

    engine: catalog.Engine
    server: servers.Server
    env: Mapping[str, str]
    world: World

    def given(self, flag: str) -> int | float | None:
        return self.server.number(flag)

    def whole(self, flag: str, default: int) -> int:
        found = self.server.number(flag)
        return default if found is None else int(found)

    def on(self, flag: str) -> bool:
        return self.server.flags.get(flag) is True

    @property
    def tp(self) -> int:
        return self.whole("tensor-parallel-size", 1)

    @property
    def dp(self) -> int:
        return self.whole("data-parallel-size", 1)

    @property
    def nodes(self) -> int:
        return self.whole("nnodes", 1)

    @property
    def world_size(self) -> int:
        """Devices of one data parallel rank."""
        return (self.tp * self.whole("pipeline-parallel-size", 1)
                * self.whole("prefill-context-parallel-size", 1))

    @property
    def external(self) -> bool:
        return self.on("data-parallel-external-lb") or self.given("data-parallel-rank") is not None

    @property
    def ranks(self) -> tuple[int, int]:
        """(first data parallel rank, ranks here) as create_engine_config infers them."""
        local, rank = self.given("data-parallel-size-local"), self.given("data-parallel-rank")
        inferred = 0
        if self.nodes > 1:
            here = self.dp * self.world_size // self.nodes
            inferred = self.whole("node-rank", 0) * here // max(1, self.world_size)
            local = max(here // max(1, self.world_size), 1) if local is None else local
        if self.external:
            return int(inferred if rank is None else rank), 1
        if local is not None:
            return self.whole("data-parallel-start-rank", 0) or inferred, int(local)
        return 0, self.dp

    @property
    def spread(self) -> bool:
        """Whether Ray places the ranks, perhaps on other nodes."""
        return "ray" in (self.server.flags.get("distributed-executor-backend"),
                         self.server.flags.get("data-parallel-backend"))

    @property
    def devices(self) -> int:
        """How many accelerators the process sees; CUDA stops at the first that is none."""
        names = self.visible
        if names is None:
            return self.world.devices
        outside = [at for at, name in enumerate(names) if not self.exists(name)]
        return outside[0] if outside else len(names)

    @property
    def visible(self) -> list[str] | None:
        """The devices that the variable leaves visible; None where it is not set."""
        text = self.env.get(self.world.visible)
        return None if text is None else [name.strip() for name in text.split(",") if name.strip()]

    def exists(self, device: str) -> bool:
        # Other names of devices (GPU-8a3f...) are not looked up.
        return not device.removeprefix("-").isdecimal() or 0 <= int(device) < self.world.devices


def refusal(engine: catalog.Engine, words: Sequence[str], env: Mapping[str, str],
            world: World) -> Refusal | None:
    """The first thing that the real engine would refuse of the words after ``vllm serve``: the
    parser's errors first, then the configuration's; None where it would start to load."""
    refused = parser_refusal(engine, words)
    if refused is not None:
        return refused
    words = processed(engine, words)
    server = servers.server(engine, ["vllm", "serve", *words], env, servers.Spot("engine"))
    start = _Start(engine, server, env, world)
    return next((found for check in _CHECKS for found in check(start)), None)


def _value(config: str, text: str) -> Refusal:
    return raised(INVALID, f"1 validation error for {config}\n  Value error, {text}")


def _limit(config: str, text: str, *fields: str) -> Refusal:
    """Numbers outside of what their fields take."""
    many = f"{len(fields)} validation error{'s' * (len(fields) > 1)}"
    return raised(INVALID, "\n".join([f"{many} for {config}", *(
        f"{field}\n  Input should be {text}" for field in fields)]))


def _arguments(start: _Start) -> Iterator[Refusal]:
    """validate_parsed_serve_args and ServeSubcommand.cmd."""
    if start.on("enable-auto-tool-choice") and not start.server.flags.get("tool-call-parser"):
        yield raised("TypeError", "Error: --enable-auto-tool-choice requires --tool-call-parser")
    if start.on("enable-log-outputs") and not start.on("enable-log-requests"):
        yield raised("TypeError", "Error: --enable-log-outputs requires --enable-log-requests")
    count = start.whole("api-server-count", 0)
    # Before the measured row one API server was put up with.
    least = 2 if catalog.earlier(start.engine.known, MEASURED) else 1
    if start.on("headless") and count >= least:
        yield raised("ValueError", f"--api-server-count={count} cannot be used with --headless (no "
                     "API servers are started in headless mode).")
    if least == 1 and start.external and (start.on("data-parallel-hybrid-lb") or start.given(
            "data-parallel-start-rank") is not None):
        yield raised("ValueError", "Cannot use both external and hybrid data parallel load "
                     "balancing modes. External LB is enabled via --data-parallel-external-lb or "
                     "--data-parallel-rank. Hybrid LB is enabled via --data-parallel-hybrid-lb or "
                     "--data-parallel-start-rank. Use one mode or the other.")


def _model(start: _Start) -> Iterator[Refusal]:
    """ModelConfig."""
    length, most = start.given("max-model-len"), start.world.context_length
    if length is not None and length < -1:
        yield _limit("ModelConfig", "greater than or equal to -1", "max_model_len")
    allowed = start.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower() in ("1", "true")
    if length is not None and length > most and not allowed:
        yield _value("ModelConfig", (
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={float(most)} or model_max_length=None in model's "
            "config.json). To allow overriding this maximum, set the env var "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with "
            "extreme caution. If the model uses relative position encoding (RoPE), positions "
            "exceeding derived_max_model_len lead to nan. If the model uses absolute position "
            "encoding, positions exceeding derived_max_model_len will cause a CUDA array "
            "out-of-bounds error."))
    method = start.server.text("quantization")
    known = [*_QUANTIZATIONS, *(["ascend"] if start.engine.package == "vllm-ascend" else [])]
    # What other versions take is not known; only one engine takes the plugin's own.
    if method is not None and method not in known and (method == "ascend"
                                                       or start.engine.known == MEASURED):
        yield _value("ModelConfig",
                     f"Unknown quantization method: {method}. Must be one of {known}.")


def _cache(start: _Start) -> Iterator[Refusal]:
    """CacheConfig."""
    share = start.given("gpu-memory-utilization")
    if share is not None and not 0 < share <= 1:
        yield _limit("CacheConfig", "less than or equal to 1" if share > 1 else "greater than 0",
                     "gpu_memory_utilization")


def _placement(start: _Start) -> Iterator[Refusal]:
    """The assertions of create_engine_config."""
    size, node = start.dp * start.world_size, start.whole("node-rank", 0)
    if start.nodes > 1:
        if size % start.nodes:
            yield raised("AssertionError",
                         f"world_size={size} must be divisible by nnodes={start.nodes}.")
        if node >= start.nodes:
            yield raised("AssertionError",
                         f"node_rank={node} must be less than nnodes={start.nodes}.")
    elif start.on("data-parallel-external-lb") and start.given("data-parallel-rank") is None:
        yield raised("AssertionError", "data_parallel_rank or node_rank must be specified if "
                     "data_parallel_external_lb is enable.")
    if start.external and start.given("data-parallel-size-local") not in (1, None):
        yield raised("AssertionError", "data_parallel_size_local must be 1 or None when "
                     "data_parallel_rank is set")


def _parallel(start: _Start) -> Iterator[Refusal]:
    """ParallelConfig."""
    (rank, local), dp, tp = start.ranks, start.dp, start.tp
    if (dp > 1 or local == 0) and not 0 <= rank < dp:
        yield _value("ParallelConfig",
                     f"data_parallel_rank ({rank}) must be in the range [0, {dp})")
    if start.world.vendor == "cuda" and start.nodes == 1 and not start.spread \
            and start.server.flags.get("distributed-executor-backend") is None \
            and start.world_size * dp > 1 and start.devices < start.world_size:
        yield _value("ParallelConfig", (
            f"World size ({start.world_size}) is larger than the number of available GPUs "
            f"({start.devices}) in this node. If this is intentional and you are using:\n"
            "- ray, set '--distributed-executor-backend ray'.\n"
            "- multiprocessing, set '--nnodes' appropriately."))
    if local > dp:
        yield _value("ParallelConfig",
                     f"data_parallel_size_local ({local}) must be <= data_parallel_size ({dp})")
    if dp <= 1 and start.external:
        yield _value("ParallelConfig",
                     "data_parallel_external_lb can only be set when data_parallel_size > 1")
    redundant = start.server.table("eplb-config").get("num_redundant_experts", 0)
    if not start.on("enable-eplb"):
        if redundant:
            yield _value("ParallelConfig", f"num_redundant_experts is set to {redundant} but EPLB "
                         "is not enabled. Either enable EPLB or unset num_redundant_experts.")
    elif not start.on("enable-expert-parallel"):
        yield _value("ParallelConfig", "enable_expert_parallel must be True to use EPLB.")
    elif tp * dp <= 1:
        yield _value("ParallelConfig", "EPLB requires tensor_parallel_size or data_parallel_size "
                     f"to be greater than 1, but got TP={tp},DP={dp}.")
    dcp = start.whole("decode-context-parallel-size", 1)
    if dcp == 0:
        yield raised("ZeroDivisionError", "integer modulo by zero")
    elif tp % dcp:
        yield _value("ParallelConfig", f"tp_size={tp} must be divisible bydcp_size={dcp}.")


def _speculative(start: _Start) -> Iterator[Refusal]:
    """SpeculativeConfig, as far as the draft's own configuration is not needed. At another row
    than the measured one any method is taken."""
    table = start.server.flags.get("speculative-config")
    if not isinstance(table, dict):
        return
    made = shape("SpeculativeConfig", start.engine.known)
    try:
        if made is not None:
            made(**table)
    except pydantic.ValidationError as error:
        yield raised(INVALID, str(error))
    model, tokens = table.get("model"), table.get("num_speculative_tokens")
    method = table.get("method") or ("ngram" if model in ("ngram", "[ngram]") else "draft_model")
    drafts = method not in _MODELLESS and not str(method).endswith("_mtp")
    if drafts and model is None and tokens is not None:
        yield _value("SpeculativeConfig",
                     "num_speculative_tokens was provided but without speculative model.")
    # Drafts of the mtp family say it themselves; of one that is missing something else is said.
    if drafts and tokens is None and model in start.world.weights \
            and table.get("speculative_token_tree") is None:
        yield _value("SpeculativeConfig", "A speculative model was provided, but neither "
                     "`speculative_token_tree` nor `num_speculative_tokens` was provided")
    draft_tp = table.get("draft_tensor_parallel_size")
    if drafts and draft_tp not in (None, 1, start.tp):
        yield _value("SpeculativeConfig", f"speculative_draft_tensor_parallel_size={draft_tp} "
                     "cannot be other value than 1 or target model tensor_parallel_size")
    if table.get("tensor_parallel_size") is not None:
        yield _value("SpeculativeConfig", "'tensor_parallel_size' is not a valid argument in the "
                     "speculative_config. Please pass 'draft_tensor_parallel_size' instead.")
    if model is None and tokens is None and method != "suffix":
        yield _value("SpeculativeConfig", "num_speculative_tokens must be provided with "
                     "speculative model unless the draft model config contains an n_predict "
                     "parameter.")
    if method == "eagle3" and not catalog.satisfies(start.engine, ">=0.18.0"):
        yield _value("SpeculativeConfig", f"Eagle3 is only supported for {_EAGLE3} models. Got "
                     f"self.target_model_config.hf_text_config.model_type={_KIMI!r}")


def _scheduler(start: _Start) -> Iterator[Refusal]:
    """SchedulerConfig. Of the two numbers the one that is not given follows the other down."""
    tokens, seqs = start.given("max-num-batched-tokens"), start.given("max-num-seqs")
    if tokens is None and seqs is not None and seqs < 1:
        tokens = seqs
    if seqs is None and tokens is not None and tokens < 1:
        seqs = tokens
    low = [name for name, value in (("max_num_batched_tokens", tokens), ("max_num_seqs", seqs))
           if value is not None and value < 1]
    if low:
        yield _limit("SchedulerConfig", "greater than or equal to 1", *low)
    length = start.given("max-model-len")
    length = start.world.context_length if length in (None, -1) else length
    if tokens is not None and tokens < (length or 0) \
            and start.server.flags.get("enable-chunked-prefill") is False:
        yield _value("SchedulerConfig", (
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This "
            "effectively limits the maximum sequence length to max_num_batched_tokens and makes "
            "vLLM reject longer sequences. Please increase max_num_batched_tokens or decrease "
            "max_model_len."))
    if tokens is not None and seqs is not None and tokens < seqs:
        yield _value("SchedulerConfig", f"max_num_batched_tokens ({tokens}) must be greater than "
                     f"or equal to max_num_seqs ({seqs}).")


def _whole(start: _Start) -> Iterator[Refusal]:
    """What create_engine_config says last, and VllmConfig."""
    for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        if name.replace("_", "-") in start.server.flags \
                and start.server.table("compilation-config").get(name) is not None:
            yield raised("ValueError", f"{name} and compilation_config.{name} are mutually "
                         "exclusive")
    if start.tp == 0:
        yield raised("ZeroDivisionError", "integer modulo by zero")
    elif start.world.heads % start.tp:
        yield _value("VllmConfig", f"Total number of attention heads ({start.world.heads}) must be "
                     f"divisible by tensor parallel size ({start.tp}).")
    parser = start.server.text("reasoning-parser")
    if parser and parser not in _REASONING and start.engine.known == MEASURED \
            and not start.server.flags.get("reasoning-parser-plugin"):
        text = f"Reasoning parser '{parser}' not found. Available parsers: {', '.join(_REASONING)}"
        yield raised("KeyError", repr(text))


def _devices(start: _Start) -> Iterator[Refusal]:
    """The workers, which take their devices before anything loads. The sentences for Ascend and
    for a device that is not there at all are ours: nothing ran on an NPU."""
    if start.spread:
        return
    if start.world.vendor == "ascend":
        outside = [name for name in start.visible or () if not start.exists(name)]
        need = _needed(start)
        if outside or need > start.devices:
            yield raised("RuntimeError", (
                "Initialize: NPU function error: aclrtSetDevice, error code is 107001 [Error]: "
                "Invalid device ID. Set device failed, invalid device, set device="
                f"{outside[0] if outside else start.devices}, valid device range is [0, "
                f"{start.world.devices if outside else start.devices})"))
    elif start.devices == 0:
        yield raised("RuntimeError", "No CUDA GPUs are available")
    elif start.nodes > 1 or start.ranks[1] == 1:
        if _needed(start) > start.devices:
            yield raised("AssertionError", f"local_world_size ({_needed(start)}) must be less than "
                         f"or equal to the number of visible devices ({start.devices}).")
    elif _needed(start) > start.devices:
        yield raised("AssertionError",
                     f"DP adjusted local rank {start.devices} is out of bounds. ")


def _needed(start: _Start) -> int:
    """Devices that this process's ranks take on this node."""
    if start.nodes > 1:
        return start.dp * start.world_size // start.nodes
    return start.ranks[1] * start.world_size


def _rules(start: _Start) -> Iterator[Refusal]:
    """The rules of `FALLBACK`, which are about Kimi's checkpoints only."""
    if "speculative-config" not in start.server.flags or (model := _kimi(start)) is None:
        return
    one = Deployment("rehearsal", start.engine, True, servers=(start.server,), model=model)
    for _, find, _ in FALLBACK:
        yield from (raised("ValueError", problem.message) for problem in find(one)
                    if problem.severity in ("", ERROR))


def _kimi(start: _Start) -> schema.Model | None:
    """The facts of the model that is served, found by its checkpoint's id or folder."""
    served = start.server.model.rstrip("/")
    return next((model for model in map(params.model, params.names("models"))
                 if any(served == one.id or served.rpartition("/")[2] == one.directory
                        for one in model.weights.values())), None)


_CHECKS: tuple[Callable[[_Start], Iterator[Any]], ...] = (
    _arguments, _model, _cache, _placement, _parallel, _speculative, _scheduler, _whole, _devices,
    _rules)
