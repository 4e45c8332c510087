r"""Report what ``vllm serve`` refuses before it loads anything.

    refused = refusals.refusal(engine, words, env, site)     # None: it would start
    print("\n".join(refused.lines())); sys.exit(refused.code)

The checks are those of vLLM 0.20.2 in its order (vllm/entrypoints/cli/serve.py, vllm/engine/
arg_utils.py create_engine_config, vllm/config/*.py). The texts are vLLM's, without the last lines
that pydantic adds. What needs the files of the model or the draft is not checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kimi_nb import catalog
from kimi_nb.check.findings import ERROR
from kimi_nb.check.rules import engine_settings
from kimi_nb.check.view import engine_view
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.params import load, schema
from kimi_nb.rehearse.engine.start import config_checks, rank_limits
from kimi_nb.rehearse.engine.start.argument_parser import Refusal, parser_refusal, processed, raised
from kimi_nb.rehearse.engine.start.start_facts import Start
from kimi_nb.rehearse.simulated_site import SimulatedSite

# Our own rules, by id, for what the real engine refuses and no other check covers. The other checks
# report the other errors of these families in the engine's own words, except for
# engine/quantization and engine/context-parallel-ascend, which end the engine while it loads or
# serves, and the limits of engine/value, which are our own.
FALLBACK = (
    (
        "engine/draft-method",
        engine_settings.draft_known,
        "SpeculativeConfig knows the method of a draft from some version on, which our facts name.",
    ),
)


def refusal(
    engine: catalog.Engine, words: Sequence[str], env: Mapping[str, str], site: SimulatedSite
) -> Refusal | None:
    """Return the first thing that the real engine would refuse in the words after ``vllm serve``.

    The parser's errors come first, then those of the configuration. None means that the engine
    would start to load.
    """
    refused = parser_refusal(engine, words)
    if refused is not None:
        return refused
    words = processed(engine, words)
    server = engine_view.of(engine, ["vllm", "serve", *words], env, engine_view.Spot("engine"))
    start = Start(engine, server, env, site)
    return next((found for check in _CHECKS for found in check(start)), None)


def _rules(start: Start) -> Iterator[Refusal]:
    """Yield what the rules of `FALLBACK` find; they concern Kimi's checkpoints only."""
    if "speculative-config" not in start.server.flags or (model := _kimi(start)) is None:
        return
    one = Deployment("rehearsal", start.engine, True, servers=(start.server,), model=model)
    for _, find, _ in FALLBACK:
        yield from (
            raised("ValueError", problem.message)
            for problem in find(one)
            if problem.severity in ("", ERROR)
        )


def _kimi(start: Start) -> schema.Model | None:
    """Return the facts of the served model, by the id or folder of its checkpoint, or None."""
    served = start.server.model.rstrip("/")
    return next(
        (
            model
            for model in map(load.model, load.names("models"))
            if any(
                served == one.id or served.rpartition("/")[2] == one.directory
                for one in model.weights.values()
            )
        ),
        None,
    )


_CHECKS: tuple[Callable[[Start], Iterator[Refusal]], ...] = (
    config_checks.arguments,
    config_checks.model,
    config_checks.cache,
    rank_limits.nodes,
    rank_limits.parallel,
    rank_limits.transfer,
    config_checks.speculative,
    config_checks.scheduler,
    config_checks.vllm_config,
    rank_limits.devices,
    _rules,
)
