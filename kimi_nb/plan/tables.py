"""Show plans, models and hardware as tables; everything is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kimi_nb import catalog
from kimi_nb.core import data_files
from kimi_nb.params import fields, load, schema
from kimi_nb.plan import checkpoints
from kimi_nb.plan.spec import EngineSpec, Plan
from kimi_nb.show import Quote, Table, spans

if TYPE_CHECKING:
    from kimi_nb.plan.derivation import Verdict

# The settings that decide how long and how many requests may be, and what they may take.
_DECISIVE = {"max-model-len", "max-num-seqs", "gpu-memory-utilization"}


def topology(plan: Plan) -> Table:
    """Return where every engine runs: its node, ranks, devices and ports.

    Consecutive engines of one node and role share a row.
    """
    rows = []
    for engines in _runs(plan.engines):
        first, last = engines[0], engines[-1]
        ranks = spans(range(first.rank, last.rank + last.ranks))
        devices = spans(sorted({device for engine in engines for device in engine.devices}))
        rows.append(
            (
                first.node,
                first.address,
                first.role,
                first.group,
                f"{ranks} of {first.dp_size}",
                first.tp_size if first.world == first.tp_size else first.sizes,
                devices,
                _span(first, last, lambda engine: engine.http_port),
                _kv(first, last),
                first.rpc_port,
                len(engines),
            )
        )
    engines_in_all, nodes = len(plan.engines), len(plan.nodes)
    return Table(
        f"{plan.heading}: {engines_in_all} engine{'s' * (engines_in_all > 1)} on "
        f"{nodes} node{'s' * (nodes > 1)}",
        (
            "node",
            "address",
            "role",
            "group",
            "ranks",
            "tp",
            "devices",
            "HTTP",
            "kv",
            "rpc",
            "engines",
        ),
        tuple(rows),
    )


def sources(plan: Plan) -> Table:
    """Return the documents that a plan cites, with their addresses and the pages that they name."""
    known = data_files.facts("check/documents")
    said = (plan.source, *(row.source for row in plan.explain()))
    cited = {text.partition(" ")[0] for text in said} | {
        str(one["document"]) for one in plan.errata
    }
    cited.add(plan.request.recipe.source.document)
    rows = []
    for name, document in known.items():
        if name in cited:
            rows.append((name, document["title"], document.get("url", "")))
            rows += [("", page, url) for page, url in document.get("links", {}).items()]
    return Table("Sources", ("cited as", "what", "address"), tuple(rows))


def _runs(engines: Sequence[EngineSpec]) -> list[list[EngineSpec]]:
    out: list[list[EngineSpec]] = []
    for engine in engines:
        if out and (out[-1][0].node, out[-1][0].role) == (engine.node, engine.role):
            out[-1].append(engine)
        else:
            out.append([engine])
    return out


def _span(
    first: EngineSpec, last: EngineSpec, get: Callable[[EngineSpec], int | None]
) -> str | None:
    a, b = get(first), get(last)
    return None if a is None else str(a) if a == b else f"{a}-{b}"


def _kv(first: EngineSpec, last: EngineSpec) -> str | None:
    if not first.kv_ports or not last.kv_ports:
        return None
    return f"{first.kv_ports.start}-{last.kv_ports[-1]}"


def settings(plan: Plan, role: str | None = None) -> Table:
    """Return every flag and variable with its value, layer, source and meaning.

    Of each role those come first that decide most, since a page folds the end of a long table.
    """
    explained = sorted(plan.explain(), key=lambda row: row.name not in _DECISIVE)
    roles = list(plan.flags)
    rows = tuple(
        (
            row.role,
            ("--" if row.kind == "flag" else "") + row.name,
            row.value,
            row.layer,
            row.source,
            row.reason,
        )
        for row in sorted(explained, key=lambda row: roles.index(row.role))
        if role in (None, row.role)
    )
    return Table("Settings", ("role", "name", "value", "layer", "source", "meaning"), rows)


def errata(plan: Plan) -> Table:
    """Return what the plan does differently from its documents, and why."""
    return Table(
        "Differences from the documents",
        ("erratum", "the document says", "we use", "why", "evidence"),
        tuple(
            (entry["id"], entry["says"], entry["uses"], entry["why"], entry["evidence"])
            for entry in plan.errata
        ),
    )


def derivation(plan: Plan) -> Table:
    """Return what differs from the recipe that a plan is derived from, each with its rule."""
    steps = plan.derived.get("steps", ())
    title = f"DERIVED from {plan.derived['base']}" if plan.derived else "Nothing is derived"
    return Table(
        title,
        ("what", "is", "by the rule"),
        tuple((one["what"], one["value"], one["rule"]) for one in steps),
    )


def recipes(rows: Sequence[dict[str, Any]], of: tuple[str, str] | None = None) -> Table:
    """Return every deployment that can be planned; "untried" is published, but not said to be run.

    Those ``of`` one model and hardware have these in the title, and not in each row.
    """
    keys: tuple[str, ...] = ("layout", "variant", "scenario", "documented", "source", "title")
    keys = keys if of else ("model", "hardware", *keys)
    said = [
        {
            **row,
            "scenario": Quote(row["scenario"]),  # as it has to be given
            "documented": "untried"
            if row["documented"] and not row["tried"]
            else row["documented"],
        }
        for row in rows
    ]
    title = "Deployments"
    if of:
        model, hardware = of
        title = f"Deployments of {model} on {hardware}"
    return Table(title, keys, tuple(tuple(row[key] for key in keys) for row in said))


def matrix(cells: Sequence[Verdict]) -> Table:
    """Return for each model, hardware and layout whether it is documented, derived or impossible."""
    words = {(one.model, one.hardware, one.layout): one.word for one in cells}
    pairs = dict.fromkeys((one.model, one.hardware) for one in cells)
    return Table(
        "What there is: documented, derived (--derive) or impossible (kimi-nb list --why)",
        ("model", "hardware", *fields.LAYOUTS),
        tuple((*pair, *(words[*pair, layout] for layout in fields.LAYOUTS)) for pair in pairs),
    )


def reasons(cells: Sequence[Verdict]) -> Table:
    """Return the same with the source, the base or the sum of each."""
    return Table(
        "Why",
        ("model", "hardware", "layout", "is", "why"),
        tuple((one.model, one.hardware, one.layout, one.word, one.why) for one in cells),
    )


def features(model: schema.Model, hardware: schema.Hardware) -> Table:
    """Return the features that can be switched on or off for this model and hardware."""
    rows = []
    for name, feature in load.features().items():
        draft = model.drafts.get(feature.draft)
        if (
            hardware.vendor not in feature.vendors
            or (feature.models and model.name not in feature.models)
            or (feature.draft and (draft is None or hardware.vendor not in draft.vendors))
        ):
            continue
        rows.append((name, feature.reason, feature.price, ", ".join(feature.excludes)))
    return Table("Features", ("feature", "reason", "price", "excludes"), tuple(rows))


def weights(model: schema.Model, gbit_s: float = 0) -> Table:
    """Return the checkpoints of a model: their hub, page and size on disk.

    With a bandwidth ``gbit_s`` in Gbit/s also the minutes that a download takes at the least, when
    nothing else uses the link.
    """
    rows = []
    items: list[tuple[str, schema.Weights | schema.Draft]] = [
        *model.weights.items(),
        *model.drafts.items(),
    ]
    for name, item in items:
        size = checkpoints.size_gb(item)
        if isinstance(item, schema.Weights):
            kind, known = item.precision, f"{size} GB ({item.size_is})"
        else:
            kind, known = f"draft, {item.method}", f"{size} GB (estimated)"
        rows.append(
            (
                name,
                item.id,
                kind,
                item.hub,
                checkpoints.link(item),
                known if size else "not published",
                *([_minutes(size, gbit_s)] if gbit_s else []),
            )
        )
    timed = [f"minutes at {gbit_s:g} Gbit/s"] if gbit_s else []
    return Table(
        "Weights", ("name", "id", "precision", "hub", "page", "size on disk", *timed), tuple(rows)
    )


def _minutes(size_gb: int | None, gbit_s: float) -> str:
    """Return the minutes of a download.

    >>> _minutes(594, 1), _minutes(594, 10), _minutes(None, 1)
    ('79', '7.9', 'not known')
    """
    if size_gb is None:
        return "not known"
    minutes = size_gb * 8 / gbit_s / 60
    return f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}"


def versions(engine: catalog.Engine) -> Table:
    """Return the versions that belong together."""
    row = data_files.facts("catalog/versions")["vllm-ascend"].get(engine.version, {})
    rows = [
        ("vllm", engine.vllm),
        *((name, value) for name, value in row.items() if name != "vllm"),
    ]
    if engine.package != "vllm":
        rows.insert(0, (engine.package, engine.version))
    return Table("Versions that belong together", ("part", "version"), tuple(rows))


def connector(plan: Plan) -> Table:
    """Return the KV cache connector's settings on each side of a prefill-decode plan."""
    rows = []
    for role, values in plan.flags.items():
        rows += [
            (role, name.removeprefix("kv-transfer-config."), value.value)
            for name, value in values.items()
            if name.startswith("kv-transfer-config.")
        ]
    for role in plan.flags:
        first = plan.first(role)
        port = first.kv_port if first.kv_port is not None else first.side_channel_port
        rows.append((role, f"{first.name} listens from port", port))
    return Table("KV cache connector", ("role", "key", "value"), tuple(rows))


def site(cluster: schema.Site) -> Table:
    """Return the nodes of a site."""
    return Table(
        f"{cluster.name} ({cluster.hardware}, {cluster.transport})",
        ("node", "address", "interface"),
        tuple((node.name, node.address, node.nic or cluster.nic) for node in cluster.nodes),
    )


def jobs(plan: Plan) -> Table:
    """Return the SLURM jobs of a plan, in the order in which they are submitted."""
    return Table(
        f"{len(plan.jobs)} jobs",
        ("file", "after", "command"),
        tuple((job.file, job.after, " ".join(job.argv[:4])) for job in plan.jobs),
    )


def notebooks(manifest: Mapping[str, Mapping[str, str]], layouts: Sequence[str]) -> Table:
    """Return the notebooks, and whether each applies to a model and hardware with these layouts."""
    return Table(
        "Notebooks",
        ("notebook", "about", "applies"),
        tuple(
            (
                f"{name}.ipynb",
                entry["title"],
                entry["layout"] in ("", *layouts, *(["any"] if layouts else [])),
            )
            for name, entry in manifest.items()
        ),
    )
