"""What ``vllm serve`` refuses before it loads anything, for the stand-in of a rehearsal.

    refused = refusals.refusal(engine, words, env, world)     # None: it would start
    print("\\n".join(refused.lines())); sys.exit(refused.code)

The checks are those of vLLM 0.20.2 in its order (vllm/entrypoints/cli/serve.py, vllm/engine/
arg_utils.py create_engine_config, vllm/config/*.py), its messages without pydantic's tails. What
needs the model's or the draft's files is not looked at: whether they are there is not said here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.check.findings import ERROR
from kimi_nb.check.rules import engine_settings as settings
from kimi_nb.check.view import engine_view as servers
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.params import load as params
from kimi_nb.params import schema
from kimi_nb.rehearse.engine.start import config_checks as configuration
from kimi_nb.rehearse.engine.start import rank_limits as placement
from kimi_nb.rehearse.engine.start.argument_parser import Refusal, parser_refusal, processed, raised
from kimi_nb.rehearse.engine.start.start_facts import Start
from kimi_nb.rehearse.simulated_site import World

# Rules of ours that say what the real engine refuses and nothing above says, by id. The other
# errors of these families are said here in the engine's own words, except engine/quantization and
# Eagle3 in engine/context-parallel, which end it while it loads or serves, and the limits of
# engine/value, which are ours.
FALLBACK = (
    (
        "engine/draft-method",
        settings.draft_known,
        "SpeculativeConfig knows the method of a draft from some version on, which our facts name.",
    ),
)


def refusal(
    engine: catalog.Engine, words: Sequence[str], env: Mapping[str, str], world: World
) -> Refusal | None:
    """The first thing that the real engine would refuse of the words after ``vllm serve``: the
    parser's errors first, then the configuration's; None where it would start to load."""
    refused = parser_refusal(engine, words)
    if refused is not None:
        return refused
    words = processed(engine, words)
    server = servers.server(engine, ["vllm", "serve", *words], env, servers.Spot("engine"))
    start = Start(engine, server, env, world)
    return next((found for check in _CHECKS for found in check(start)), None)


def _rules(start: Start) -> Iterator[Refusal]:
    """The rules of `FALLBACK`, which are about Kimi's checkpoints only."""
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
    """The facts of the model that is served, found by its checkpoint's id or folder."""
    served = start.server.model.rstrip("/")
    return next(
        (
            model
            for model in map(params.model, params.names("models"))
            if any(
                served == one.id or served.rpartition("/")[2] == one.directory
                for one in model.weights.values()
            )
        ),
        None,
    )


_CHECKS: tuple[Callable[[Start], Iterator[Refusal]], ...] = (
    configuration.arguments,
    configuration.model,
    configuration.cache,
    placement.nodes,
    placement.parallel,
    configuration.speculative,
    configuration.scheduler,
    configuration.vllm_config,
    placement.devices,
    _rules,
)
