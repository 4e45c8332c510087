"""Rules on what a model asks of its engine: the version that serves it, and its own parsers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kimi_nb import catalog
from kimi_nb.check.findings import ERROR, NOTE
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.params import load, schema

# The features that add the flags of parsers.
_FEATURES = {"reasoning-parser": "reasoning-parser", "tool-call-parser": "tool-parser"}


@rule(
    "engine/model-parsers",
    NOTE,
    "A thinking model that calls tools has its parsers.",
    "Add --reasoning-parser kimi_k2, --tool-call-parser kimi_k2 and --enable-auto-tool-choice "
    "(a plan: --with reasoning-parser --with tool-parser).",
    "vLLM issues 36207, 30238",
    needs=("model",),
)
def model_parsers(d: Deployment) -> Iterator[Problem]:
    """Without the reasoning parser </think> arrives inside the content; without the tool parser
    calls arrive as text."""
    assert d.model is not None
    wanted = _parsers(d.model)
    for server, _ in d.profiles():
        if server.role == "prefill" or server.headless:
            continue
        missing = [name for name in wanted if not server.flags.get(name)]
        if missing:
            lost = ["thinking"] * ("reasoning-parser" in wanted) + ["tool calls"]
            yield Problem(
                server.spot,
                f"no --{' and no --'.join(missing)}: {' and '.join(lost)} arrive as plain text",
                f"Add {', '.join(f'--{name} {parser}' for name, parser in wanted.items())} and "
                "--enable-auto-tool-choice (a plan: "
                f"{' '.join(f'--with {_FEATURES[name]}' for name in wanted)}).",
            )


def _parsers(model: schema.Model) -> dict[str, str]:
    """Return the flags of a model's parsers with their names; a model that never thinks has one."""
    thinks = {"reasoning-parser": model.parsers.reasoning} if model.thinking != "never" else {}
    return thinks | {"tool-call-parser": model.parsers.tool}


def _every_parser() -> set[str]:
    """Return the parsers of all models, which are read only where a script names another one."""
    return {name for model in load.names("models") for name in _parsers(load.model(model)).values()}


@rule(
    "engine/other-parsers",
    ERROR,
    "The parsers are those of the model.",
    "Give the parsers of the model: kimi_k2 for Kimi-K2, kimi_k3 for Kimi-K3.",
    "vLLM: kimi_k2 looks for <think> and <|tool_calls_section_begin|>, kimi_k3 for <|open|>think<|sep|>",
    needs=("model",),
)
def parsers_of_the_model(d: Deployment) -> Iterator[Problem]:
    """A parser of another Kimi finds none of this one's marks: the engine starts, and thinking and
    tool calls arrive as plain text."""
    assert d.model is not None
    wanted = _parsers(d.model)
    for server, _ in d.profiles():
        for flag, parser in wanted.items():
            given = server.text(flag)
            if given not in (None, parser) and given in _every_parser():
                yield Problem(
                    server.of(flag),
                    f"--{flag} {given} is not the parser of {d.model.title}",
                    f"Write --{flag} {parser}.",
                )


@rule(
    "engine/model-version",
    ERROR,
    "The version of the engine serves the model.",
    "Take a newer engine (--engine-version).",
    "recipes of vllm-project and guides of vllm-ascend (params/models)",
    needs=("model", "version"),
)
def version_serves(d: Deployment) -> Iterator[Problem]:
    """An engine that does not know the architecture of a checkpoint stops once it has read its
    config.json; one that knows it half gives nonsense."""
    assert d.model is not None
    ranges: Mapping[Any, str] = d.model.engines
    if not catalog.serves(d.engine, ranges):
        for server, _ in d.profiles():
            yield Problem(
                server.spot,
                f"{d.model.title} needs {d.engine.package} {ranges[d.engine.package]}; "
                f"this is {d.engine}",
            )
