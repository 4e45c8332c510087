"""Refuse what vLLM's configuration classes refuse, in vLLM's words.

A check is a function that takes a `Start` and yields refusals; `refusals` calls them in vLLM's
order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pydantic

from kimi_nb import catalog
from kimi_nb.rehearse.engine.start.argument_parser import INVALID, MEASURED, Refusal, raised, shape
from kimi_nb.rehearse.engine.start.start_facts import Start

_QUANTIZATIONS = [
    "awq",
    "fp8",
    "fbgemm_fp8",
    "fp_quant",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mxfp8",
    "modelopt_mixed",
    "gguf",
    "gptq_marlin",
    "awq_marlin",
    "gptq",
    "humming",
    "compressed-tensors",
    "bitsandbytes",
    "experts_int8",
    "quark",
    "moe_wna16",
    "torchao",
    "inc",
    "mxfp4",
    "gpt_oss_mxfp4",
    "deepseek_v4_fp8",
    "cpu_awq",
    "online",
    "fp8_per_tensor",
    "fp8_per_block",
    "int8_per_channel_weight_only",
    "mxfp8",
]
_REASONING = (
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v4",
    "ernie45",
    "gemma4",
    "glm45",
    "granite",
    "holo2",
    "hunyuan_a13b",
    "hy_v3",
    "kimi_k2",
    "mimo",
    "minimax_m2",
    "minimax_m2_append_think",
    "mistral",
    "nemotron_v3",
    "olmo3",
    "openai_gptoss",
    "qwen3",
    "seed_oss",
    "step3",
    "step3p5",
)
# The list of releases before 0.18, and the model type of Kimi's language model.
_EAGLE3 = ["llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe"]
_KIMI = "kimi_k2"
_MODELLESS = ("mtp", "ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states")


def invalid(config: str, text: str) -> Refusal:
    """Return a refusal by a validator of a configuration class."""
    return raised(INVALID, f"1 validation error for {config}\n  Value error, {text}")


def _limit(config: str, text: str, *fields: str) -> Refusal:
    """Return a refusal of numbers that are out of range for their fields."""
    many = f"{len(fields)} validation error{'s' * (len(fields) > 1)}"
    return raised(
        INVALID,
        "\n".join(
            [f"{many} for {config}", *(f"{field}\n  Input should be {text}" for field in fields)]
        ),
    )


def arguments(start: Start) -> Iterator[Refusal]:
    """Check what validate_parsed_serve_args and ServeSubcommand.cmd check."""
    if start.on("enable-auto-tool-choice") and not start.server.flags.get("tool-call-parser"):
        yield raised("TypeError", "Error: --enable-auto-tool-choice requires --tool-call-parser")
    if start.on("enable-log-outputs") and not start.on("enable-log-requests"):
        yield raised("TypeError", "Error: --enable-log-outputs requires --enable-log-requests")
    count = start.whole("api-server-count", 0)
    # Versions before the measured one accept a single API server.
    least = 2 if catalog.earlier(start.engine.known, MEASURED) else 1
    if start.on("headless") and count >= least:
        yield raised(
            "ValueError",
            f"--api-server-count={count} cannot be used with --headless (no "
            "API servers are started in headless mode).",
        )
    if (
        least == 1
        and start.external
        and (
            start.on("data-parallel-hybrid-lb")
            or start.given("data-parallel-start-rank") is not None
        )
    ):
        yield raised(
            "ValueError",
            "Cannot use both external and hybrid data parallel load "
            "balancing modes. External LB is enabled via --data-parallel-external-lb or "
            "--data-parallel-rank. Hybrid LB is enabled via --data-parallel-hybrid-lb or "
            "--data-parallel-start-rank. Use one mode or the other.",
        )


def model(start: Start) -> Iterator[Refusal]:
    """Check what ModelConfig checks."""
    length, most = start.given("max-model-len"), start.site.context_length
    if length is not None and length < -1:
        yield _limit("ModelConfig", "greater than or equal to -1", "max_model_len")
    allowed = start.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower() in ("1", "true")
    if length is not None and length > most and not allowed:
        yield invalid(
            "ModelConfig",
            (
                f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
                f"(max_position_embeddings={float(most)} or model_max_length=None in model's "
                "config.json). To allow overriding this maximum, set the env var "
                "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with "
                "extreme caution. If the model uses relative position encoding (RoPE), positions "
                "exceeding derived_max_model_len lead to nan. If the model uses absolute position "
                "encoding, positions exceeding derived_max_model_len will cause a CUDA array "
                "out-of-bounds error."
            ),
        )
    method = start.server.text("quantization")
    known = [*_QUANTIZATIONS, *(["ascend"] if start.engine.package == "vllm-ascend" else [])]
    # The methods of other versions are not known, but "ascend" is known to need the plugin.
    if (
        method is not None
        and method not in known
        and (method == "ascend" or start.engine.known == MEASURED)
    ):
        yield invalid(
            "ModelConfig", f"Unknown quantization method: {method}. Must be one of {known}."
        )


def cache(start: Start) -> Iterator[Refusal]:
    """Check what CacheConfig checks."""
    share = start.given("gpu-memory-utilization")
    if share is not None and not 0 < share <= 1:
        yield _limit(
            "CacheConfig",
            "less than or equal to 1" if share > 1 else "greater than 0",
            "gpu_memory_utilization",
        )


def speculative(start: Start) -> Iterator[Refusal]:
    """Check what SpeculativeConfig checks without reading the configuration of the draft model.

    For other versions than the measured one every method is accepted.
    """
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
        yield invalid(
            "SpeculativeConfig",
            "num_speculative_tokens was provided but without speculative model.",
        )
    # Drafts of the mtp family name the number themselves; a missing draft gives another error.
    if (
        drafts
        and tokens is None
        and model in start.site.weights
        and table.get("speculative_token_tree") is None
    ):
        yield invalid(
            "SpeculativeConfig",
            "A speculative model was provided, but neither "
            "`speculative_token_tree` nor `num_speculative_tokens` was provided",
        )
    draft_tp = table.get("draft_tensor_parallel_size")
    if drafts and draft_tp not in (None, 1, start.tp):
        yield invalid(
            "SpeculativeConfig",
            f"speculative_draft_tensor_parallel_size={draft_tp} "
            "cannot be other value than 1 or target model tensor_parallel_size",
        )
    if table.get("tensor_parallel_size") is not None:
        yield invalid(
            "SpeculativeConfig",
            "'tensor_parallel_size' is not a valid argument in the "
            "speculative_config. Please pass 'draft_tensor_parallel_size' instead.",
        )
    if model is None and tokens is None and method != "suffix":
        yield invalid(
            "SpeculativeConfig",
            "num_speculative_tokens must be provided with "
            "speculative model unless the draft model config contains an n_predict "
            "parameter.",
        )
    if method == "eagle3" and not catalog.satisfies(start.engine, ">=0.18.0"):
        yield invalid(
            "SpeculativeConfig",
            f"Eagle3 is only supported for {_EAGLE3} models. Got "
            f"self.target_model_config.hf_text_config.model_type={_KIMI!r}",
        )


def scheduler(start: Start) -> Iterator[Refusal]:
    """Check what SchedulerConfig checks.

    If only one of the two limits is given and it is below 1, the other one follows it.
    """
    tokens, seqs = start.given("max-num-batched-tokens"), start.given("max-num-seqs")
    if tokens is None and seqs is not None and seqs < 1:
        tokens = seqs
    if seqs is None and tokens is not None and tokens < 1:
        seqs = tokens
    low = [
        name
        for name, value in (("max_num_batched_tokens", tokens), ("max_num_seqs", seqs))
        if value is not None and value < 1
    ]
    if low:
        yield _limit("SchedulerConfig", "greater than or equal to 1", *low)
    length = start.given("max-model-len")
    length = start.site.context_length if length in (None, -1) else length
    if (
        tokens is not None
        and tokens < (length or 0)
        and start.server.flags.get("enable-chunked-prefill") is False
    ):
        yield invalid(
            "SchedulerConfig",
            (
                f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This "
                "effectively limits the maximum sequence length to max_num_batched_tokens and makes "
                "vLLM reject longer sequences. Please increase max_num_batched_tokens or decrease "
                "max_model_len."
            ),
        )
    if tokens is not None and seqs is not None and tokens < seqs:
        yield invalid(
            "SchedulerConfig",
            f"max_num_batched_tokens ({tokens}) must be greater than "
            f"or equal to max_num_seqs ({seqs}).",
        )


def vllm_config(start: Start) -> Iterator[Refusal]:
    """Check what create_engine_config checks last, and what VllmConfig checks."""
    for name in ("cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        if (
            name.replace("_", "-") in start.server.flags
            and start.server.table("compilation-config").get(name) is not None
        ):
            yield raised(
                "ValueError", f"{name} and compilation_config.{name} are mutually exclusive"
            )
    if start.tp == 0:
        yield raised("ZeroDivisionError", "integer modulo by zero")
    elif start.site.heads % start.tp:
        yield invalid(
            "VllmConfig",
            f"Total number of attention heads ({start.site.heads}) must "
            f"be divisible by tensor parallel size ({start.tp}).",
        )
    parser = start.server.text("reasoning-parser")
    if (
        parser
        and parser not in _REASONING
        and start.engine.known == MEASURED
        and not start.server.flags.get("reasoning-parser-plugin")
    ):
        text = f"Reasoning parser '{parser}' not found. Available parsers: {', '.join(_REASONING)}"
        yield raised("KeyError", repr(text))
