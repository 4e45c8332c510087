"""The command lines of benchmarks, for the version of the engine that is served.

Usage::

    bench_commands.bench_serve(load, Target(url, "kimi_k25", tokenizer), engine, folder, "c8.json")
    bench_commands.all_of(plan, loads)  # everything that can be run by hand, as text

Flags are looked up in the catalog of that version: a flag that it does not have is never written.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog, show
from kimi_nb.catalog import arguments
from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError
from kimi_nb.plan.spec import ClientCommand, Plan
from kimi_nb.prove.bench.workload import Load, Loads

METRICS, PERCENTILES = "ttft,tpot,itl,e2el", "50,90,99"
# Server flags that make no sense offline: its own address, and those of the other engines.
_NOT_OFFLINE = arguments.OWN | {
    "data-parallel-size",
    "data-parallel-rpc-port",
    "nnodes",
    "master-addr",
    "master-port",
    "api-key",
    "seed",
}


@dataclass(frozen=True)
class Target:
    """The service to load.

    Attributes:
        url: The URL of the front door, the address that clients use.
        model: The served name.
        tokenizer: The path or the name of the tokenizer.
        trust: Whether the checkpoint's own tokenizer code may run, which Kimi needs.
    """

    url: str
    model: str
    tokenizer: str
    trust: bool = True


def engine(plan: Plan) -> catalog.Engine:
    """Return the engine of a plan from the catalog."""
    return catalog.engine(plan.engine, plan.engine_version)


def target(plan: Plan, url: str = "") -> Target:
    """Return the service of a plan, or the same service at another URL."""
    return Target(
        url or plan.url,
        plan.served_name,
        plan.engines[0].argv[2] if plan.engines[0].argv[:2] == ("vllm", "serve") else plan.weights,
        any("trust-remote-code" in flags for flags in plan.flags.values()),
    )


def bench_serve(
    load: Load,
    at: Target,
    engine: catalog.Engine,
    folder: str,
    file: str = "",
    metadata: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the ``vllm bench serve`` command for a load.

    It writes its results, with the times of every request, to ``folder``.

    Raises:
        PlanError: If this version of the engine does not have a flag.
    """
    argv = [
        "vllm",
        "bench",
        "serve",
        "--backend",
        "openai-chat",
        "--base-url",
        at.url,
        "--endpoint",
        "/v1/chat/completions",
        "--model",
        at.model,
        "--tokenizer",
        at.tokenizer,
        "--dataset-name",
        load.dataset,
    ]
    if load.dataset == "hf":
        argv += ["--dataset-path", load.path]
    else:
        argv += [
            "--random-input-len",
            str(load.input_len),
            "--random-output-len",
            str(load.output_len),
            "--ignore-eos",
        ]
    argv += [
        "--num-prompts",
        str(load.prompts),
        "--request-rate",
        "inf" if math.isinf(load.rate) else f"{load.rate:g}",
    ]
    if load.concurrency:
        argv += ["--max-concurrency", str(load.concurrency)]
    argv += ["--num-warmups", str(load.warmup), "--seed", str(load.seed), *_saved(folder)]
    if file:
        argv += ["--result-filename", file]
    if at.trust:
        argv += ["--trust-remote-code"]
    if metadata:
        argv += ["--metadata", *(f"{name}={value}" for name, value in metadata.items())]
    return checked(argv, engine)


def documents(plan: Plan) -> dict[str, ClientCommand]:
    """Return the documents' ``vllm bench serve`` commands for a plan, by name."""
    return {one.name: one for one in plan.clients if one.argv[:3] == ("vllm", "bench", "serve")}


def documented(
    client: ClientCommand, engine: catalog.Engine, url: str = "", folder: str = "."
) -> list[list[str]]:
    """Return a document's ``vllm bench serve`` command, corrected.

    There is one command for each concurrency that the document sweeps. URL, model, tokenizer and
    seed are corrected, and options are added that keep the results.
    """
    words = _without(
        client.argv,
        ("--save-result", 0),
        ("--save-detailed", 0),
        ("--result-dir", 1),
        ("--seed", 1),
        *([("--base-url", 1)] if url else []),
    )
    words += [*(["--base-url", url] if url else []), "--seed", "0", *_saved(folder)]
    if not client.sweep:
        return [checked(words, engine)]
    rest = _without(words, ("--max-concurrency", 1), ("--num-prompts", 1))
    return [
        checked([*rest, "--num-prompts", str(10 * many), "--max-concurrency", str(many)], engine)
        for many in client.sweep
    ]


def _saved(folder: str) -> list[str]:
    return [
        "--percentile-metrics",
        METRICS,
        "--metric-percentiles",
        PERCENTILES,
        "--save-result",
        "--save-detailed",
        "--result-dir",
        folder,
    ]


def _without(argv: Sequence[str], *flags: tuple[str, int]) -> list[str]:
    values, out, skip = dict(flags), [], 0
    for word in argv:
        if skip:
            skip -= 1
        elif word in values:
            skip = values[word]
        else:
            out.append(word)
    return out


def offline(kind: str, plan: Plan, load: Load) -> list[str]:
    """Return a ``vllm bench latency`` or ``vllm bench throughput`` command for a plan.

    It takes over the first engine's serve flags, as far as the command knows them. There is no
    server involved, and the devices must be free.
    """
    served = engine(plan)
    first = plan.engines[0]
    flags = arguments.parse(served, first.argv[2:], "serve").flags
    argv = ["vllm", "bench", kind, "--model", target(plan).tokenizer]
    argv += (
        [
            "--input-len",
            str(load.input_len),
            "--output-len",
            str(load.output_len),
            "--batch-size",
            str(load.concurrency or 1),
            "--num-iters",
            "5",
            "--num-iters-warmup",
            "1",
        ]
        if kind == "latency"
        else [
            "--dataset-name",
            "random",
            "--random-input-len",
            str(load.input_len),
            "--random-output-len",
            str(load.output_len),
            "--num-prompts",
            str(load.prompts),
        ]
    )
    for name, value in flags.items():
        spec = catalog.flag(served, name, f"bench_{kind}")
        if spec is None or name in _NOT_OFFLINE or isinstance(value, arguments.Unread):
            continue
        argv += _flag(name, value, spec)
    return checked(argv, served)


def _flag(name: str, value: Any, spec: Mapping[str, Any]) -> list[str]:
    if not spec["takes_value"]:
        return [f"--{name}"] if value else [f"--no-{name}"] if spec.get("negations") else []
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]


def checked(argv: Sequence[str], served: catalog.Engine) -> list[str]:
    """Return a command unchanged if the parser of this engine version accepts it.

    Raises:
        PlanError: If it does not; the message names each word that is wrong.
    """
    command = f"bench_{argv[2]}"
    parsed = arguments.parse(served, list(argv)[3:], command, 0)
    wrong = [f"{one.spelt} ({one.fault})" for one in parsed.given if one.fault]
    wrong += [f"{word} (stray word)" for _, word in (*parsed.stray, *parsed.positional)]
    wrong += [
        f"--{name} {value.text} ({value.why})"
        for name, value in parsed.flags.items()
        if isinstance(value, arguments.Unread)
    ]
    if wrong:
        raise PlanError(
            f"vllm bench {argv[2]} of {served} does not take {', '.join(wrong)}. "
            "Choose another engine version, or tell us of the flag."
        )
    return list(argv)


def aisbench(plan: Plan, load: Load) -> tuple[str, list[str]]:
    """Return (text of the model's configuration file, command) for AISBench's performance mode.

    AISBench finds the service in that file. The requests are those of the dataset, not of the load.
    """
    at = target(plan)
    host, _, port = at.url.rpartition("://")[2].rpartition(":")
    rate = 0 if math.isinf(load.rate) else load.rate  # 0 means all at once
    config = "\n".join(
        [
            "from ais_bench.benchmark.models import VLLMCustomAPIChatStream",
            "",
            "models = [dict(",
            '    attr="service", type=VLLMCustomAPIChatStream,',
            f'    abbr="kimi", path={at.tokenizer!r}, model={at.model!r},',
            f"    host_ip={host!r}, host_port={port}, request_rate={rate:g}, retry=2,",
            f"    max_out_len={load.output_len}, batch_size={load.concurrency or load.prompts},",
            f"    trust_remote_code={at.trust},",
            "    generation_kwargs=dict(ignore_eos=True))]",
        ]
    )
    return config, [
        "ais_bench",
        "--models",
        "vllm_api_stream_chat",
        "--datasets",
        "demo_gsm8k_gen_4_shot_cot_chat_prompt",
        "--summarizer",
        "default_perf",
        "--mode",
        "perf",
    ]


def all_of(plan: Plan, loads: Loads) -> show.Text:
    """Return the benchmarks to run by hand on the first node, where the engine is installed."""
    served, first = engine(plan), loads.cells[0]
    lines = [f"# On {plan.nodes[0]}, where {served} is: in its container or environment.", ""]
    for client in documents(plan).values():
        lines += [f"# {client.title} ({client.source}, corrected)"]
        env = [f"{name}={value}" for name, value in client.env.items()]
        for argv in documented(client, served):
            lines += shell.command([*env, *argv])
        lines += [""]
    lines += ["# The load of this notebook"]
    for load in loads.cells:
        lines += shell.command(bench_serve(load, target(plan), served, "."))
    lines += [
        "",
        "# Offline: the engine alone, no server; the devices must be free",
        *shell.command(offline("latency", plan, first)),
        *shell.command(offline("throughput", plan, first)),
        "",
    ]
    config, argv = aisbench(plan, first)
    lines += [
        "# AISBench, performance mode. First into its folder, as "
        "ais_bench/benchmark/configs/models/vllm_api/vllm_api_stream_chat.py:",
        *(f"#   {line}".rstrip() for line in config.splitlines()),
        shlex.join(argv),
    ]
    return show.Text(f"Benchmarks of {plan.name}, by hand", "\n".join(lines))
