"""Rules on flags of an engine that its configuration check takes only beside another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView


def _is_ray(server: EngineView) -> bool:
    names = ("distributed-executor-backend", "data-parallel-backend")
    return "ray" in map(server.text, names)


def _has_replicas(server: EngineView) -> bool:
    # One that is not known may be several.
    return server.dp != 1 or server.single


def _drafts(server: EngineView) -> bool:
    return bool({"spec-method", "spec-model", "speculative-config"} & set(server.flags))


# Flag: whether what it needs is there, and what that is.
_NEEDS: dict[str, tuple[Callable[[EngineView], bool], str]] = {
    "enable-elastic-ep": (lambda one: bool(one.flags.get("enable-eplb")), "--enable-eplb"),
    "ray-workers-use-nsight": (_is_ray, "--distributed-executor-backend ray"),
    "data-parallel-external-lb": (_has_replicas, "--data-parallel-size above 1"),
    "data-parallel-hybrid-lb": (_has_replicas, "--data-parallel-size above 1"),
    "spec-tokens": (_drafts, "--spec-method or --spec-model"),
}


@rule(
    "engine/needs-flag",
    ERROR,
    "A flag stands beside the one that it needs.",
    "Add what is named, or take the flag out.",
    "ParallelConfig and EngineArgs of vLLM 0.32.0, and what it refused when it was run",
)
def needs_flag(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses it, after the arguments were parsed."""
    for server, _ in d.profiles():
        for flag, (fulfilled, wanted) in _NEEDS.items():
            if server.flags.get(flag) and not fulfilled(server):
                yield Problem(
                    server.of(flag),
                    f"--{flag} without {wanted}",
                    "",
                    "" if d.engine_known else WARNING,
                )
