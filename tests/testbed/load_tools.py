"""Other people's load and evaluation clients: installed, and run with the same small load.

    .venv/bin/python tests/testbed/load_tools.py .clients/load    # each in an environment of its own

What a client makes of a server is a mapping of figures that do not depend on the server's speed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kimi_nb.core import environments
from kimi_nb.core.errors import InstallError
from kimi_nb.prove.accuracy import evaluators
from kimi_nb.service import cpu_engine

MARK = ".kimi-nb-load-clients"
MAKE = "make test-engine"
VERSIONS = {"aiperf": "0.13.0", "guidellm": "0.8.1"}
PATIENCE = 600  # seconds for one load, on a busy machine
AT_ONCE, PROMPTS, IN, OUT = 4, 12, 32, 16
Reader = Callable[[], dict[str, Any]]
_REFUSALS = {
    "python": "{title} works with Python {pythons}; this is {python}.",
    "disk": "{free} GB are free on the disk; {title} needs {needed} GB while it is installed.",
}


def specification(name: str) -> environments.Specification:
    """What the environment of a client holds."""
    if name == "lm-eval":
        return evaluators.named(name).environment
    requires = [f"{name}=={VERSIONS[name]}"]
    torch = cpu_engine.packages()["torch"] if name == "guidellm" else ""  # it loads data with it
    return environments.Specification(
        title=f"{name} {VERSIONS[name]}",
        make=MAKE,
        stamp=".kimi-nb-load-client.json",
        wanted={"requires": requires, "torch": torch, "python": platform.python_version()},
        requires=requires,
        imports=["guidellm.benchmark" if name == "guidellm" else "aiperf.cli"],
        programs=[name],
        torch=torch,
        compiles=True,
        versions={name: VERSIONS[name]},
        refusals=_REFUSALS,
        pythons=[[3, 11], [3, 13]],
        needs_gb=4 if torch else 2,
    )


NAMES = (*VERSIONS, "lm-eval")


def lacks(folder: Path) -> str:
    """Which client is not installed there, or ""."""
    missing = [one for one in NAMES if environments.missing(folder / one, specification(one))]
    return ", ".join(missing)


def main(argv: list[str]) -> int:
    """Install all of them in a folder; the exit code."""

    def work(base: Path) -> int:
        failed = False
        with environments.locked(base, MARK, "holds something else; name another folder."):
            for name in NAMES:
                try:
                    print(environments.install(base / name, specification(name)), flush=True)
                except InstallError as error:
                    failed = True
                    print(f"load clients: {name}: {error}", file=sys.stderr)
        return 2 if failed else 0

    return environments.command(argv, "load_tools", "load clients", MAKE, work)


def asked(name: str, folder: Path, url: str, model: str, tokenizer: Path, work: Path) -> dict:
    """The figures of a client that sends the small load to a server; they say nothing of speed."""
    work.mkdir(parents=True)
    argv, read = _CLIENTS[name](url, model, tokenizer, work)
    program = folder / name / "bin" / specification(name).programs[0]
    kept = {key: text for key, text in os.environ.items() if "proxy" not in key.lower()}
    done = subprocess.run(
        [program, *argv],
        cwd=work,
        env={**kept, "OPENAI_API_KEY": "none", "HF_HOME": str(work / "hf"), **_OFFLINE[name]},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    try:
        return read()
    except (OSError, LookupError, ValueError) as error:
        said = (done.stdout + done.stderr)[-1500:]
        raise AssertionError(f"{name} wrote no figures ({error!r}): {said}") from None


def _aiperf(url: str, model: str, tokenizer: Path, work: Path) -> tuple[list[str], Reader]:
    argv = ["profile", "-m", model, "--url", url, "--endpoint-type", "chat", "--streaming"]
    argv += ["--tokenizer", str(tokenizer), "--tokenizer-trust-remote-code", "--ui", "none"]
    argv += ["--concurrency", str(AT_ONCE), "--request-count", str(PROMPTS)]
    argv += ["--isl", str(IN), "--osl", str(OUT), "--extra-inputs", "ignore_eos:true"]
    argv += ["--use-server-token-count", "--artifact-dir", str(work)]

    def read() -> dict[str, Any]:
        found = json.loads((work / "profile_export_aiperf.json").read_text())
        return {
            "completed": _average(found, "completed_request_count"),
            "share of errors": _average(found, "request_error_rate"),
            "errors": [one["error_details"].get("code") for one in found["error_summary"]],
            "tokens out": _average(found, "total_usage_completion_tokens"),
            "tokens in, of one": (found.get("usage_prompt_tokens") or {}).get("p50"),
            "timed": [name for name in _TIMES if _average(found, name)],
        }

    return argv, read


_TIMES = ("time_to_first_token", "inter_token_latency", "request_latency", "inter_chunk_latency")


def _average(found: dict[str, Any], name: str) -> float:
    return (found.get(name) or {}).get("avg") or 0.0


def _guidellm(url: str, model: str, tokenizer: Path, work: Path) -> tuple[list[str], Reader]:
    out = work / "guidellm.json"
    load = f"prompt_tokens={IN},output_tokens={OUT}"
    argv = ["run", "--backend", f"kind=openai_http,target={url},model={model}"]
    argv += ["--profile", f"kind=concurrent,streams={AT_ONCE}", "--disable-console"]
    argv += ["--constraint", f"kind=max_requests,count={PROMPTS}"]
    argv += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    argv += ["--data", f"kind=synthetic_text,{load}", "--output", f"kind=json,path={out}"]

    def read() -> dict[str, Any]:
        (one,) = json.loads(out.read_text())["benchmarks"]
        metrics, total = one["metrics"], one["metrics"]["request_totals"]

        def of_done(name: str, what: str) -> float:
            return metrics[name]["successful"][what]

        return {
            "completed": total["successful"],
            "failed": total["errored"],
            "tokens out": of_done("output_token_count", "total_sum"),
            "tokens in, of one": of_done("prompt_token_count", "median"),
            "chunks of one": of_done("request_streaming_iterations_count", "median"),
            "timed": [name for name in _SPANS if of_done(name, "mean")],
        }

    return argv, read


_SPANS = ("time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms")


def _lm_eval(url: str, model: str, tokenizer: Path, work: Path) -> tuple[list[str], Reader]:
    (work / "small.yaml").write_text(json.dumps(_TASK))
    questions = [{"question": f"Is {one} a number?", "answer": "yes"} for one in range(PROMPTS)]
    (work / "small.jsonl").write_text("\n".join(map(json.dumps, questions)))
    server = f"model={model},base_url={url}/v1/chat/completions,max_retries=1"
    argv = ["run", "--model", "local-chat-completions", "--tasks", "small", "--include_path", "."]
    argv += ["--model_args", f"{server},num_concurrent={AT_ONCE}", "--apply_chat_template"]
    argv += ["--batch_size", "1", "--output_path", "out", "--log_samples"]

    def read() -> dict[str, Any]:
        (results,) = work.glob("out/*/results*.json")
        (samples,) = work.glob("out/*/samples*.jsonl")
        found = json.loads(results.read_text())
        told = [json.loads(line)["resps"] for line in samples.read_text().splitlines()]
        return {
            "asked": found["n-samples"]["small"]["effective"],
            "answered": sum(isinstance(one[0][0], str) and bool(one[0][0]) for one in told),
            "score": found["results"]["small"]["exact_match,none"],
        }

    return argv, read


# The words of random weights are no sense: what they must be is chosen.
_TASK = {
    "task": "small",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "small.jsonl"}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {
        "until": ["\n\n"],
        "max_gen_toks": OUT,
        "temperature": 0.0,
        "chat_template_kwargs": {"thinking": False},
        "structured_outputs": {"choice": ["yes"]},
    },
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
# aiperf takes a tokenizer's folder only where the hub could be asked.
_OFFLINE = {
    "aiperf": {},
    "guidellm": {"HF_HUB_OFFLINE": "1"},
    "lm-eval": {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"},
}
_CLIENTS = {"aiperf": _aiperf, "guidellm": _guidellm, "lm-eval": _lm_eval}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
