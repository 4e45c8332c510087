"""Rules on names that the engine looks up when it starts: quantization, parsers, its own modules."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView
from kimi_nb.core import data_files

# What registers further names.
_PLUGINS = {
    "tool-call-parser": "tool-parser-plugin",
    "reasoning-parser": "reasoning-parser-plugin",
}


@rule(
    "engine/registered-name",
    WARNING,
    "A method of quantization or a parser has a name that the engine registers.",
    "Write one of the names that the engine lists when it refuses this one.",
    "vLLM's registries in November 2025, January, March and May 2026, and at 0.32.0 "
    "(kimi_nb/data/catalog/versions.yaml)",
)
def registered_name(d: Deployment) -> Iterator[Problem]:
    """'invalid tool call parser', 'Unknown quantization method': the engine ends before it loads."""
    known = data_files.facts("catalog/versions")["registered"]
    for server in d.options():
        for flag, names in known.items():
            value = server.text(flag)
            if not value or value in names or _PLUGINS.get(flag) in server.flags:
                continue
            if not re.fullmatch(r"[\w.-]{2,60}", value) or fill_ins.holds(value):
                continue
            near = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.85)
            yield Problem(
                server.of(flag),
                f"--{flag} {value}: no listed version registers this name",
                f"Did you mean {near[0]}?" if near else "",
                ERROR if _certain(d, server, bool(near)) and _looks(server, flag) else "",
            )


def _looks(server: EngineView, flag: str) -> bool:
    """Return whether the engine looks the name up when it starts."""
    return flag != "tool-call-parser" or bool(server.flags.get("enable-auto-tool-choice"))


def _certain(d: Deployment, server: EngineView, near: bool) -> bool:
    """Return whether no plugin may register names, and all names of the version are known.

    A name with a typing error (``near``) is none in any version.
    """
    facts = data_files.facts("catalog/versions")
    version = d.engine.version
    complete = near or (
        version in facts["registered_complete_at"]
        or not catalog.earlier(facts["registered_complete_to"], version)
    )
    return complete and d.engine_known and not d.ascend and not server.env.get("VLLM_PLUGINS")


@rule(
    "engine/module",
    WARNING,
    "python -m names a module of vLLM that runs.",
    "Write vllm serve MODEL.",
    "the modules with a main of vLLM 0.11.2 to 0.32.0",
)
def engine_module(d: Deployment) -> Iterator[Problem]:
    """'No module named vllm....', and nothing starts."""
    runs = data_files.facts("catalog/versions")["modules"]
    for one in d.programs:
        for before, word in itertools.pairwise(one.argv):
            if (
                before == "-m"
                and re.fullmatch(r"vllm(\.\w+)+", word)
                and word not in runs
                and not word.startswith(("vllm.benchmarks.", "vllm.utils."))
            ):
                yield Problem(one.spot, f"vLLM has no module {word} that runs")
