"""Make a plan from names: load the files, find the recipe, resolve the roles, place the engines.

>>> made = plan("k2.5", "a3", "pd", scenario="throughput", pairs=["decode.dp=16"])
>>> made.name
'k2.5-a3-pd-throughput'
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import companions
from kimi_nb.core.errors import NoRecipeError, ParameterError, PlanError, choice
from kimi_nb.params import errata, fields, load, overrides, recipes, schema
from kimi_nb.params.fields import Layout
from kimi_nb.params.settings import Value
from kimi_nb.plan import (
    client_commands,
    command_lines,
    containers,
    context_parallel,
    jobs,
    placement,
    pod_names,
    router,
    step_tokens,
    store,
)
from kimi_nb.plan.roles import Request, RolePlan, fill, resolve
from kimi_nb.plan.serving_job import Serving
from kimi_nb.plan.spec import (
    Container,
    EngineSpec,
    InstallStep,
    Job,
    Launch,
    Plan,
    Router,
    url_of,
)

ROUTER_PORT = 1999  # that of the documents
_PCP = "prefill-context-parallel-size"


def plan(
    model: str,
    hardware: str,
    layout: str | None = None,
    *,
    scenario: str = "",
    variant: str = "",
    site: str = "",
    chosen: Iterable[str] = (),
    dropped: Iterable[str] = (),
    pairs: Iterable[str] = (),
    engine_version: str = "",
    erratum: Iterable[str] = (),
    calibrations: Iterable[str] = (),
    derive: bool = False,
) -> Plan:
    """Return the plan for these names, which may be paths of a user's own files.

    ``chosen`` and ``dropped`` are features to switch on and off, ``pairs`` are key=value overrides,
    and ``site`` defaults to the hardware's example site. ``erratum`` switches corrections of the
    documents off and on, as ID=off; ``all=off`` is as documented. ``calibrations`` are files of
    `kimi-nb calibrate`. With ``derive`` a combination that no document describes is derived from
    the nearest one. Raises KimiErrors.
    """
    return from_request(
        request(
            model,
            hardware,
            layout,
            scenario=scenario,
            variant=variant,
            site=site,
            chosen=chosen,
            dropped=dropped,
            pairs=pairs,
            engine_version=engine_version,
            erratum=erratum,
            calibrations=calibrations,
            derive=derive,
        )
    )


def request(
    model: str,
    hardware: str,
    layout: str | None = None,
    *,
    scenario: str = "",
    variant: str = "",
    site: str = "",
    chosen: Iterable[str] = (),
    dropped: Iterable[str] = (),
    pairs: Iterable[str] = (),
    engine_version: str = "",
    erratum: Iterable[str] = (),
    calibrations: Iterable[str] = (),
    derive: bool = False,
) -> Request:
    """Return everything that the plan is made from, loaded and looked up."""
    chip, named = load.hardware(hardware), load.model(model)
    cluster = load.site(site) if site else None
    transport = cluster.transport if cluster else ""
    recipe = _recipe(named, chip, layout, variant, transport, derive)
    if transport == "kubernetes" and chip.container and not recipe.jobs:
        recipe = recipe.model_copy(update={"install": "docker"})  # pods run in the image
    served = recipes.served(named, chip, recipe.layout)
    row = recipes.scenario(recipe, scenario)
    cluster = cluster or example_site(chip, recipe, nodes=recipes.nodes(recipe, row))
    _check_site(cluster, chip, recipe)
    given = tuple(pairs)
    changes = overrides.parse(given, tuple(recipe.roles))
    switches = tuple(erratum)
    engine = catalog.engine(chip.engine, engine_version or recipe.engine_version)
    given_layers = _calibrations(calibrations, served, chip, recipe, engine)
    layers, stale = _of_site(given_layers, cluster, served, chip, recipe, engine)
    return Request(
        model=served,
        hardware=chip,
        recipe=recipe,
        site=cluster,
        scenario=row,
        engine=engine,
        overrides=changes,
        chosen=tuple(dict.fromkeys(chosen)),
        dropped=tuple(dict.fromkeys(dropped)),
        pairs=given,
        derive=derive,
        named="" if served.name == named.name else named.name,
        errata=switches,
        errata_off=_errata_off(switches, served, recipe),
        calibrations=layers,
        stale=stale,
    )


def _recipe(
    model: schema.Model,
    hardware: schema.Hardware,
    layout: str | None,
    variant: str,
    transport: str,
    derive: bool,
) -> schema.Recipe:
    """Return the recipe that is meant; where there is none, derive it or say what would be derived."""
    try:
        return recipes.find(model, hardware, layout, variant, transport)
    except NoRecipeError:
        from kimi_nb.plan import derivation  # start-up: only where nothing is documented

        return derivation.find(model, hardware, layout, variant, transport, derive=derive)


def _calibrations(
    paths: Iterable[str],
    model: schema.Model,
    hardware: schema.Hardware,
    recipe: schema.Recipe,
    engine: catalog.Engine,
) -> tuple[schema.Calibration, ...]:
    """Return what the files say, one for a role; refuse those of something else."""
    found: dict[str, schema.Calibration] = {}
    for path in paths:
        from kimi_nb.plan.memory import calibration  # start-up: only with a file

        layer = load.calibration(path)
        calibration.refuse_other(layer, _calibrated(model, hardware, recipe, engine), path)
        calibration.refuse_impossible(layer, hardware, path)
        if layer.role not in recipe.roles:
            raise ParameterError(f"{path}: " + choice("role", layer.role, tuple(recipe.roles)))
        if layer.role in found:
            raise ParameterError(f"{path}: a second calibration of {layer.role}; give one.")
        found[layer.role] = layer
    return tuple(found.values())


def _calibrated(
    model: schema.Model, hardware: schema.Hardware, recipe: schema.Recipe, engine: catalog.Engine
) -> dict[str, str]:
    """Return what a calibration has to be of."""
    return {
        "engine": engine.package,
        "version": engine.version,
        "model": model.name,
        "precision": model.weights[recipe.weights].precision,
        "hardware": hardware.name,
    }


def _of_site(
    given: tuple[schema.Calibration, ...],
    site: schema.Site,
    model: schema.Model,
    hardware: schema.Hardware,
    recipe: schema.Recipe,
    engine: catalog.Engine,
) -> tuple[tuple[schema.Calibration, ...], tuple[schema.Calibration, ...]]:
    """Return (the calibrations given and those of the site, those of another version).

    A site serves several models, so what is of another one is left out; what is given on the
    command line comes first.
    """
    found = {layer.role: layer for layer in given}
    wanted = _calibrated(model, hardware, recipe, engine)
    seen: set[str] = set()
    stale = []
    for path in site.calibration:
        layer = load.calibration(path, "calibration")
        other = {key for key, value in wanted.items() if getattr(layer, key) != value}
        if layer.role not in recipe.roles or other - {"version"}:
            continue
        if other:
            stale.append(layer)
            continue
        if layer.role in seen:
            raise ParameterError(f"{path}: a second calibration of {layer.role}; name one.")
        seen.add(layer.role)
        found.setdefault(layer.role, layer)
    return tuple(found.values()), tuple(one for one in stale if one.role not in found)


def _commands(model: schema.Model, recipe: schema.Recipe) -> list[str]:
    """Return the names of the documents' commands that a recipe stands for."""
    clients = (name for key in recipe.clients for name in model.clients[key].source.commands)
    return [*recipe.source.commands, *clients]


def _errata_off(
    switches: tuple[str, ...], model: schema.Model, recipe: schema.Recipe
) -> frozenset[str]:
    if not switches:
        return frozenset()
    commands = _commands(model, recipe)
    known = errata.touching(commands)
    able = [
        entry["id"]
        for entry in known
        if not recipe.jobs and errata.switchable(entry, recipe.source.commands)
    ]
    return errata.switched_off(switches, able, [entry["id"] for entry in known])


def example_site(
    hardware: schema.Hardware,
    recipe: schema.Recipe | None = None,
    slurm: bool = False,
    nodes: int = 1,
) -> schema.Site:
    """Return the example site of a hardware: its own, or that of the hardware it is like.

    For a recipe of jobs, or with ``slurm``, it is the one for SLURM; where that has fewer ``nodes``
    than are needed, the one with many of them.
    """
    kind = "-slurm" if slurm or (recipe and recipe.jobs) else ""
    there = load.names("sites")
    wanted = (f"{hardware.name}{kind}", f"{hardware.recipes_of}{kind}")
    name = next((name for name in wanted if name in there), None)
    if name and f"{name}-many" in there and nodes > len(load.site(name).nodes):
        name = f"{name}-many"
    if name is None:
        raise ParameterError(
            f"There is no example site for {hardware.name}{' under SLURM' if kind else ''}: write "
            "one and name it with --site (params/sites/a3.yaml is a start)."
        )
    site = load.site(name)
    if recipe and recipe.derivation:
        return grown(site, sum(role.groups * role.nodes for role in recipe.roles.values()))
    return site


def grown(site: schema.Site, wanted: int) -> schema.Site:
    """Return a site with ``wanted`` nodes at least: further ones follow the last address."""
    nodes = list(site.nodes)
    stem = nodes[-1].name.rstrip("0123456789")
    for number in range(len(nodes), wanted):
        address = str(ipaddress.ip_address(nodes[-1].address) + 1)
        nodes.append(schema.Node(name=f"{stem}{number}", address=address))
    return site.model_copy(update={"nodes": tuple(nodes)})


def check_hardware(site: schema.Site, hardware: schema.Hardware) -> None:
    """Raise PlanError for a site with other hardware."""
    if site.hardware not in (hardware.name, hardware.recipes_of):
        raise PlanError(
            f"Site {site.name} has hardware {site.hardware}, the plan is for "
            f"{hardware.name}: choose --hw {site.hardware} or another --site."
        )


def _check_site(site: schema.Site, hardware: schema.Hardware, recipe: schema.Recipe) -> None:
    check_hardware(site, hardware)
    if recipe.jobs and site.slurm is None:
        raise PlanError(
            f"Variant {recipe.variant} is made of SLURM jobs; site {site.name} has "
            f"transport {site.transport}. Add the table 'slurm' to the site file, or "
            "choose another --variant."
        )
    if site.kubernetes:
        _check_pods(site, hardware, recipe)
    if recipe.jobs and site.paths.models is None:
        raise PlanError(
            f"Variant {recipe.variant} downloads the weights: site {site.name} needs "
            "paths.models, the folder for them."
        )


def _check_pods(site: schema.Site, hardware: schema.Hardware, recipe: schema.Recipe) -> None:
    if recipe.jobs or hardware.container is None:
        why = "is made of SLURM jobs" if recipe.jobs else f"has no image on {hardware.name}"
        raise PlanError(
            f"Variant {recipe.variant} {why}, and the pods of site {site.name} run in the image of "
            "the engine. Choose another --variant (kimi-nb list), or another --site."
        )
    if site.paths.engine:
        raise PlanError(
            f"Site {site.name}: paths.engine is an environment on the nodes, and pods have that of "
            "their image. Take it out of the site file."
        )


def from_request(asked: Request) -> Plan:
    """Return the plan of a request; uses no clock, no network and writes no file."""
    recipe, site = asked.recipe, asked.site
    store.check(asked)
    roles: dict[str, RolePlan] = {
        role: resolve(asked, role) for role in fields.ROLES if role in recipe.roles
    }
    router.check(
        asked.router,
        asked.overrides.router_port,
        recipe.layout,
        sum(_doors(role) for role in roles.values()),
    )
    if site.kubernetes:
        site = pod_names.site_of_pods(site, roles)
        asked = replace(asked, site=site)
    placed, flags, env = _engines(asked, roles)
    fronted = _front_door(asked, placed)
    url = _url(asked, placed, fronted)
    answering = flags["decode" if "decode" in roles else "mixed"]
    named = answering.get("served-model-name")
    # Without --served-model-name vLLM serves a model under the path or id that it was loaded from.
    served = str(named.value) if named else asked.located(asked.weights)
    commands = client_commands.clients(asked, url, served)
    known = errata.touching(_commands(asked.model, recipe))
    first, built = next(iter(roles.values())), _containers(asked, placed)
    shared = store.store(asked, placed)
    _check_context(asked, flags)
    for role, values in flags.items():
        plain = {name: value.value for name, value in values.items()}
        step_tokens.check(asked.engine, role, plain, f"{role}." if len(flags) > 1 else "")
        _check_context_parallel(asked, roles[role], plain)
        _check_transfer(roles[role])
    _check_filled(
        [(engine.name, [*engine.argv, *engine.env.values()]) for engine in placed[:1]]
        + [
            (role, [str(value.value) for value in values.values() if isinstance(value.value, str)])
            for table in (flags, env)
            for role, values in table.items()
        ]
        + [(client.name, [*client.argv, *client.env.values()]) for client in commands]
        + [(container.node, container.argv) for container in built[:1]]
    )
    return Plan(
        model=asked.model.name,
        hardware=asked.hardware.name,
        layout=recipe.layout,
        scenario=asked.scenario_name,
        variant=recipe.variant,
        site=site.name,
        title=f"{_mark(recipe)}{_head(asked, roles, placed)}, {_shape(roles)}",
        documented=recipe.documented and recipe.hardware == asked.hardware.name,
        source=str(asked.scenario.source) if asked.scenario else recipe.cited,
        derived=_derived(recipe),
        engine=asked.hardware.engine,
        engine_version=asked.engine.version,
        vllm_version=asked.engine.vllm,
        image=containers.image(asked.hardware, asked.engine, site.network.registry),
        served_name=served,
        weights=asked.weights.id,
        devices_per_node=asked.hardware.devices.count,
        processes=recipe.processes,
        install=recipe.install,
        transport=site.transport,
        url=url,
        engines=placed,
        engine_folder=_engine_folder(asked),
        libraries=_libraries(asked, flags),
        router=fronted,
        launches=_launches(asked, placed),
        containers=built,
        installs=_installs(asked),
        modules=site.slurm.modules if site.slurm else (),
        jobs=_jobs(asked, placed, commands),
        clients=commands,
        features={name: role.features for name, role in roles.items()},
        host_tuning=_host_tuning(asked, first),
        secrets={"VLLM_API_KEY": site.api_key_env} if site.api_key_env else {},
        errata=tuple(entry for entry in known if entry["id"] not in asked.errata_off),
        errata_off=tuple(entry["id"] for entry in known if entry["id"] in asked.errata_off),
        as_documented=asked.as_documented,
        notes=(*_notes(asked, roles, fronted), *store.notes(shared, fronted is not None)),
        edits=(asked.weights.edit,) if asked.weights.edit else (),
        flags=flags,
        env=env,
        request=asked,
        store=shared,
    )


def _front_door(asked: Request, placed: tuple[EngineSpec, ...]) -> Router | None:
    """Return the router in front of the engines: on the first node, or as a Deployment."""
    if asked.router is None:
        return None
    cluster = asked.site.kubernetes
    port = _router_port(asked)
    place = (
        router.Place(pod_names.door_node(cluster), pod_names.door_host(cluster), "0.0.0.0")
        if cluster
        else None
    )
    keyed, folder = bool(asked.site.api_key_env), _router_folder(asked)
    return router.router(asked.router, port, placed, keyed, folder, place)


def _url(asked: Request, placed: tuple[EngineSpec, ...], fronted: Router | None) -> str:
    """Return where clients ask: the router, else the first engine, or the Service before them."""
    if fronted:
        return fronted.url
    first = next(engine for engine in placed if engine.http_port is not None)
    if asked.site.kubernetes:
        return url_of(pod_names.door_host(asked.site.kubernetes), first.http_port or 0)
    return first.url or ""


def _mark(recipe: schema.Recipe) -> str:
    """Return what the title of a derived plan begins with: no face shows it without."""
    marks = recipe.derivation
    return f"DERIVED from {marks.base}, published by nobody: " if marks else ""


def _derived(recipe: schema.Recipe) -> dict[str, Any]:
    """Return the base of a derived recipe and the rule of each difference; {} for any other."""
    marks = recipe.derivation
    return marks.model_dump() if marks else {}


def _head(asked: Request, roles: Mapping[str, RolePlan], placed: tuple[EngineSpec, ...]) -> str:
    """Return the recipe's title, or what is there instead where nodes or drafts are others."""
    recipe, scenario = asked.recipe, asked.scenario
    switched = [*asked.dropped, *asked.chosen]
    if scenario:
        switched += [*scenario.without, *scenario.features]
    if not any(load.features()[name].draft for name in switched) and all(
        (roles[name].groups, roles[name].nodes) == (spec.groups, spec.nodes)
        for name, spec in recipe.roles.items()
    ):
        return recipe.title
    nodes = len({engine.node for engine in placed})
    groups = " and ".join(
        f"{role.groups} {'' if name == 'mixed' else f'{name} '}group{'s' * (role.groups > 1)}"
        for name, role in roles.items()
    )
    return (
        f"{asked.model.title} on {nodes} node{'s' * (nodes > 1)} of {asked.hardware.name}, {groups}"
    )


def _shape(roles: Mapping[str, RolePlan]) -> str:
    """Return the parallel sizes: "dp4 tp4", or "prefill dp2 tp8, decode dp32 tp1" for two roles."""
    return ", ".join(
        " ".join(
            [
                *([name] if len(roles) > 1 else []),
                *([f"dp{role.dp}"] if role.dp > 1 else []),
                f"tp{role.tp}",
                *([f"pp{role.pp}"] if role.pp > 1 else []),
                *([f"pcp{role.pcp}"] if role.pcp > 1 else []),
            ]
        )
        for name, role in roles.items()
    )


def _doors(role: RolePlan) -> int:
    """Return how many APIs a role has whose requests nobody else hands on."""
    return role.groups * (role.nodes if role.hybrid else 1)


def _notes(asked: Request, roles: dict[str, RolePlan], fronted: Router | None) -> tuple[str, ...]:
    """Return what to know about a plan: a model replaced, groups alone, its door, flags renamed."""
    stands = (
        [
            f"{asked.model.name} stands for {asked.named}: random weights, {asked.hardware.name} "
            "has no room for the real ones."
        ]
        if asked.named
        else []
    )
    recipe, derived = asked.recipe, []
    if recipe.derivation:
        derived = [
            f"DERIVED: nobody has published or run this; {len(recipe.derivation.steps)} values differ "
            f"from {recipe.derivation.base}, --explain says by which rule."
        ]
    elif asked.derive:
        derived = [f"--derive changes nothing: this is documented ({recipe.source})."]
    if not recipe.tried:
        derived.append(
            f"{recipe.source.document} renders this for {recipe.hardware}; nobody says there that it "
            "was run."
        )
    doors = 0 if asked.router else sum(_doors(role) for role in roles.values())
    what = "nodes answer" if any(role.hybrid for role in roles.values()) else "groups serve"
    alone = (
        [
            f"{doors} {what} on their own, without a router: clients of the service's URL "
            f"reach the first only. --set router={router.VLLM_ROUTER} puts one in front of all."
        ]
        if doors > 1
        else []
    )
    return tuple(
        dict.fromkeys(
            [
                *derived,
                *stands,
                *alone,
                *router.notes(fronted),
                *(note for role in roles.values() for note in role.notes),
            ]
        )
    )


def _libraries(asked: Request, flags: Mapping[str, Mapping[str, Value]]) -> str:
    """Return the folder that the scripts append to LD_LIBRARY_PATH: that of Mooncake, or ""."""
    connector = "kv-transfer-config.kv_connector"
    moves = any(
        str(values[connector].value).startswith("Mooncake")
        for values in flags.values()
        if connector in values
    )
    return companions.mooncake_libraries(asked.engine) if moves else ""


def _check_context(asked: Request, flags: dict[str, Any]) -> None:
    """Refuse what the engine would refuse only after loading the weights.

    That is a prefill-decode plan without a connector, and a context longer than the model's.
    """
    most = asked.model.context_length
    for role, values in flags.items():
        if role != "mixed" and "kv-transfer-config.kv_connector" not in values:
            raise PlanError(
                f"{role}: without kv-transfer-config.kv_connector no cache travels "
                "from prefill to decode; layout pd needs it."
            )
        found = values.get("max-model-len")
        if found and isinstance(found.value, int) and found.value > most:
            raise PlanError(
                f"{role}: max-model-len {found.value} ({found.source}) is more than "
                f"the {most} tokens of {asked.model.title}."
            )


def _check_context_parallel(asked: Request, role: RolePlan, values: Mapping[str, Any]) -> None:
    """Refuse context parallelism beside a draft that it does not go with at this version."""
    split = values.get("decode-context-parallel-size")
    found = context_parallel.fault(
        asked.engine,
        role.role,
        dcp=split if isinstance(split, int) else 1,
        pcp=role.pcp,
        dp=role.dp,
        method=str(values.get("speculative-config.method", "")),
        draft=str(values.get("speculative-config.model", "")),
    )
    if found and found.certain and role.pcp > 1:
        raise PlanError(
            f"{role.role}: {_PCP} {role.pcp} in {asked.engine}: {found.says} ({found.source}). "
            f"Take it away (--set {'' if role.role == 'mixed' else role.role + '.'}{_PCP}=null)."
        )
    if found and found.certain:
        features = load.features()
        drafts = [name for name in role.features if features[name].draft]
        raise PlanError(
            f"{role.role}: decode-context-parallel-size {split} in {asked.engine}: {found.says} "
            f"({found.source}). Take the draft away (--without {', '.join(drafts) or 'its feature'})"
            " or context parallelism (--without decode-context-parallel)."
        )


def _check_transfer(role: RolePlan) -> None:
    """Refuse sizes that NIXL refuses: VllmConfig and NixlBaseConnectorWorker of vLLM 0.32.0."""
    if not str(placement.connector(role)).startswith("Nixl"):
        return
    if role.pp > 1 and role.role == "decode":
        raise PlanError(
            f"decode: pp {role.pp} with {placement.connector(role)}: vLLM refuses pipeline parallelism "
            "in an engine that takes the cache from others. Set decode.pp=1, and raise decode.tp or "
            "decode.dp instead."
        )
    whole = max(role.tp, role.pcp)
    if role.dcp not in (1, whole):
        raise PlanError(
            f"{role.role}: decode-context-parallel-size {role.dcp} with {placement.connector(role)}: "
            f"the cache that travels is whole on every device or split over all of them; "
            f"allowed: 1, {whole}."
        )


def _check_filled(texts: list[tuple[str, Iterable[str]]]) -> None:
    """Refuse an unknown placeholder; the known ones are filled later, for each engine."""
    known = {"{address}", "{nic}", "{leader}", "{node_folder}"}
    for what, words in texts:
        for word in words:
            left = [name for name in re.findall(r"\{[a-z_]+\}", word) if name not in known]
            if left:
                raise ParameterError(
                    f"{what}: the placeholder {left[0]} in {word[:80]!r} is not "
                    f"known; known are {', '.join(sorted(known))}."
                )


def _engines(
    asked: Request, roles: dict[str, RolePlan]
) -> tuple[tuple[EngineSpec, ...], dict[str, Any], dict[str, Any]]:
    """Return every engine, and by role the flags and variables that its engines share."""
    per_rank = asked.recipe.processes == "rank"
    for name, role in roles.items():
        given = asked.overrides.ports.get(name, {})
        placement.check_set_ports(role, given, asked.hardware, per_rank)
    groups = placement.layout(
        roles, asked.hardware, asked.site, per_rank, asked.model.architecture["heads"]
    )
    nodes = sum(len(group.nodes) for group in groups)
    flags: dict[str, Any] = {}
    env: dict[str, Any] = {}
    plain: dict[str, tuple[dict[str, Any], dict[str, str]]] = {}
    count = asked.hardware.devices.count
    by_group = [
        (group, list(placement.places(group, roles[group.role], count, per_rank)))
        for group in groups
    ]
    places = [place for _, mine in by_group for place in mine]
    for name, role in roles.items():
        flags[name], env[name] = command_lines.role_values(asked, role, roles, nodes)
        plain[name] = (
            {key: value.value for key, value in flags[name].items()},
            {key: value.value for key, value in env[name].items()},
        )
        first = next(place for place in places if place.group.role == name)
        flags[name] |= {
            key: Value(value, "plan", "first engine; each has its own")
            for key, value in command_lines.place_flags(asked, role, first).items()
        }
    extra = []
    if asked.router:
        extra = [(groups[0].nodes[0].name, _router_port(asked), "the router")]
    named = [node.name for group in groups for node in group.nodes]
    extra += store.claims(asked.store, named)
    placement.check_ports(places, extra)
    for name in roles:
        env[name] |= _of_first(asked, env[name], next(p for p in places if p.group.role == name))
    built = tuple(
        engine
        for group, mine in by_group
        for engine in command_lines.group_engines(
            asked, roles[group.role], mine, *plain[group.role]
        )
    )
    return built, flags, env


def _of_first(asked: Request, env: Mapping[str, Value], place: placement.Place) -> dict[str, Value]:
    """Return the variables that differ from engine to engine with the values of the first one."""
    words = command_lines.words_of(asked, place)
    filled = {name: fill(value.value, words) for name, value in env.items()}
    return {
        name: Value(filled[name], value.layer, value.source, "first engine; each has its own")
        for name, value in env.items()
        if filled[name] != value.value
    }


def _router_port(asked: Request) -> int:
    return asked.overrides.router_port or asked.recipe.router_port or ROUTER_PORT


def _launches(asked: Request, placed: tuple[EngineSpec, ...]) -> tuple[Launch, ...]:
    """Return the call of the launcher for each node, where each rank is a process."""
    if asked.recipe.processes != "rank":
        return ()
    first: dict[str, EngineSpec] = {}
    count: dict[str, int] = {}
    leader: dict[tuple[str, int], str] = {}
    for engine in placed:
        first.setdefault(engine.node, engine)
        count[engine.node] = count.get(engine.node, 0) + 1
        leader.setdefault((engine.role, engine.group), engine.address)
    return tuple(
        Launch(
            node,
            (
                "python",
                "launch_online_dp.py",
                "--dp-size",
                str(engine.dp_size),
                "--tp-size",
                str(engine.tp_size),
                "--dp-size-local",
                str(count[node]),
                "--dp-rank-start",
                str(engine.rank),
                "--dp-address",
                leader[engine.role, engine.group],
                *(["--dp-rpc-port", str(engine.rpc_port)] if engine.rpc_port else []),
                "--vllm-start-port",
                str(engine.http_port),
                "--devices",
                str(asked.hardware.devices.count),
            ),
        )
        for node, engine in first.items()
    )


def _installs(asked: Request) -> dict[str, tuple[InstallStep, ...]]:
    """Return the ways to install the engine, filled in; none where SLURM jobs install it."""
    if asked.recipe.jobs:
        return {}
    return {
        name: install_steps(
            asked.hardware,
            asked.site,
            asked.engine,
            name,
            asked.recipe.layout,
            asked.router == router.VLLM_ROUTER,
            asked.store is not None,
        )
        for name in asked.hardware.installs
    }


def _router_folder(asked: Request) -> str:
    """Return the router's own virtual environment, if the recipe's installation makes one."""
    steps = asked.hardware.installs.get(asked.recipe.install, ())
    own = asked.router == router.VLLM_ROUTER and any(
        "{router_folder}" in word for step in steps if step.router for word in step.argv
    )
    return _environment_of_router(asked.site) if own else ""


def _environment_of_router(site: schema.Site) -> str:
    return f"{site.paths.work}/router"


def _engine_folder(asked: Request) -> str:
    """Return the virtual environment that the scripts enter; "" where there is none.

    That is what the site names, or else what the installation of this recipe makes.
    """
    site = asked.site
    if site.paths.engine or asked.recipe.jobs:
        return site.paths.engine or ""
    steps = asked.hardware.installs.get(asked.recipe.install, ())
    made = any("{engine}" in word for step in steps for word in step.argv)
    return _own_environment(site) if made else ""


def _own_environment(site: schema.Site) -> str:
    """Return where an installation puts the engine's environment: the site's, or in its folder."""
    return site.paths.engine or f"{site.paths.work}/engine"


def install_steps(
    hardware: schema.Hardware,
    site: schema.Site,
    engine: catalog.Engine,
    method: str,
    layout: Layout,
    routed: bool,
    stored: bool = False,
) -> tuple[InstallStep, ...]:
    """Return the commands of one way to install the engine, for this site, version and layout.

    ``routed`` is whether vllm-router is the front door, ``stored`` whether there is a KV store.
    """
    if method not in hardware.installs:
        raise ParameterError(
            choice(f"way to install on {hardware.name}:", method, hardware.installs)
        )
    words = {
        "image": containers.image(hardware, engine, site.network.registry),
        "work": site.paths.work,
        "engine": _own_environment(site),
        "version": engine.version,
        "vllm": engine.vllm,
        "torch": companions.torch_build(engine),
        "nixl": companions.nixl(engine),
        "router": companions.router(),
        "mooncake": companions.mooncake(engine, hardware.vendor),
        "router_folder": _environment_of_router(site),
    }
    return tuple(
        InstallStep(
            step.says,
            tuple(fill(word, words) for word in step.argv),
            fill(step.directory, words),
            dict(step.env),
        )
        for step in hardware.installs[method]
        if layout in step.layouts and (routed or not step.router) and (stored or not step.store)
    )


def _containers(asked: Request, placed: tuple[EngineSpec, ...]) -> tuple[Container, ...]:
    if asked.recipe.install != "docker" or asked.site.kubernetes:
        return ()
    first: dict[str, EngineSpec] = {}
    for engine in placed:
        first.setdefault(engine.node, engine)
    spread = Counter((engine.role, engine.group) for engine in first.values())
    return tuple(
        containers.container(
            asked.hardware,
            asked.site,
            node,
            asked.engine,
            first[node.name],
            asked.recipe.layout,
            asked.recipe.layout == "pd"  # whose roles have nodes of their own
            or spread[first[node.name].role, first[node.name].group] > 1,
            asked.models,
        )
        for node in asked.site.nodes
        if node.name in first
    )


def _jobs(
    asked: Request, placed: tuple[EngineSpec, ...], commands: tuple[Any, ...]
) -> tuple[Job, ...]:
    """Return the SLURM jobs, which serve both the baseline and the optimised engine.

    The plan's own engine is one of the two; the other is planned in addition.
    """
    if not asked.recipe.jobs:
        return ()

    # The user's choice replaces what it excludes in a scenario that the user did not name.
    features = load.features()
    replaced = {one for name in asked.chosen for one in features[name].excludes} - {*asked.chosen}

    def served(scenario: schema.Scenario | None) -> Serving:
        other, engines = asked, placed
        if scenario is not asked.scenario:
            dropped = (*asked.dropped, *(name for name in features if name in replaced))
            other = replace(asked, scenario=scenario, dropped=dropped)
            engines = _engines(other, {"mixed": resolve(other, "mixed")})[0]
        routed = other.router and sum(engine.url is not None for engine in engines) > 1
        return Serving(
            engines, _router_port(asked) if routed else None, bool(asked.site.api_key_env)
        )

    best = asked.scenario or asked.recipe.scenarios["optimised"]
    return jobs.jobs(asked, served(None), served(best), commands[0].argv)


def _host_tuning(asked: Request, role: RolePlan) -> tuple[tuple[str, str], ...]:
    """Return (name, value): ``governor`` first, then each sysctl."""
    if not role.host_tuning:
        return ()
    tuning = asked.hardware.host_tuning
    governor = [("governor", tuning.governor)] if tuning.governor else []
    return (*governor, *((name, str(value)) for name, value in tuning.sysctl.items()))
