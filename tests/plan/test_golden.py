"""Fidelity: each of the documents' 51 commands against the plan, as sets of (name, value).

A difference is allowed only where `kimi_nb/data/params/errata.yaml` names it with the document's value
and ours; an erratum that explains no difference is a fault as well.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from kimi_nb import catalog
from kimi_nb.core import data_files, paths
from kimi_nb.params import errata, load
from kimi_nb.plan import build, containers
from kimi_nb.plan.spec import Plan

HERE = Path(__file__).parent / "golden"
COMMANDS = {
    entry["name"]: entry
    for entry in json.loads((paths.DATA / "check" / "commands.json").read_text())
}
WHERE = yaml.safe_load((HERE / "where.yaml").read_text())

# Short names of the documents, and switches of tools that the catalog does not describe.
SHORT = {"-tp": "--tensor-parallel-size"}
SWITCHES = {
    "conda": {"--override-channels"},
    "docker": {"--rm", "-it"},
    "lm_eval": {"--apply_chat_template", "--fewshot_as_multiturn"},
    "benchmark_moe": {"--tune", "--enable-expert-parallel", "--trust-remote-code"},
}


@cache
def plan_of(key: tuple) -> Plan:
    named = dict(key)
    return build.plan(
        named["model"],
        named["hw"],
        named.get("layout"),
        variant=named.get("variant", ""),
        chosen=named.get("with", ()),
        dropped=named.get("without", ()),
        scenario=named.get("scenario", ""),
        erratum=named.get("erratum", ()),
    )


def ours(name: str) -> tuple[dict, list, list, dict]:
    """(env, argv, other pairs, words for placeholders) of our side of a golden command."""
    spec = dict(WHERE[name])
    part, pick = spec.pop("part"), spec.pop("pick", None)
    if part == "container-only":
        chip, model = load.hardware(spec["hw"]), load.model(spec["model"])
        site = build.example_site(chip)
        engine = catalog.engine(chip.engine, model.container_versions[chip.name])
        made = containers.container(chip, site, site.nodes[0], engine)
        return dict(made.env), list(made.argv), [], placeholders(site, None, made)
    spec = {key: tuple(value) if isinstance(value, list) else value for key, value in spec.items()}
    plan = plan_of(tuple(sorted(spec.items())))
    site = load.site(_site_file(plan))
    if part == "engine":
        engine = next(engine for engine in plan.engines if engine.name == pick)
        tuning = [("host", key, value) for key, value in plan.host_tuning]
        return dict(engine.env), list(engine.argv), tuning, placeholders(site, engine, None)
    if part == "container":
        made = plan.containers[0]
        return dict(made.env), list(made.argv), [], placeholders(site, plan.engines[0], made)
    if part == "launch":
        launch = next(launch for launch in plan.launches if launch.node == pick)
        return {}, list(launch.argv), [], placeholders(site, None, None)
    if part == "router":
        return {}, list(plan.router.argv), [], placeholders(site, None, None)
    if part == "client":
        client = next(client for client in plan.clients if client.name == pick)
        return (
            dict(client.env),
            list(client.argv),
            [],
            placeholders(site, plan.engines[0], None, client.argv, plan),
        )
    job = next(job for job in plan.jobs if job.name == pick)
    words = placeholders(site, plan.engines[0], None, job.argv, plan)
    return dict(job.env), list(job.argv), [("sbatch", *_option(o)) for o in job.options], words


def _site_file(plan: Plan) -> str:
    return next(name for name in load.names("sites") if load.site(name).name == plan.site)


def placeholders(site, engine, container, argv=(), plan=None) -> dict[str, str]:
    """What each placeholder of the documents stands for on our example site."""
    words = {
        "141.xx.xx.": "192.0.2.1",
        "$nic_name": site.nic,
        "${SLURM_JOB_ACCOUNT}": "kimi",
        "/valhalla/projects": "/projects",
        "/mnt/sfs_turbo/.cache": site.paths.cache,
        "$NAME": site.container_name,
        "~/.cache/huggingface": site.paths.cache,
    }
    if engine:
        words |= {
            "$local_ip": engine.address,
            "$node0_ip": site.nodes[0].address,
            "$1": ",".join(map(str, engine.devices)),
            "$2": str(engine.http_port),
            "$3": str(engine.dp_size),
            "$4": str(engine.rank),
            "$5": "192.0.2.13" if engine.role == "decode" else engine.address,
            "$6": str(engine.rpc_port),
            "$7": str(engine.tp_size),
            "<unique_port>": str(engine.side_channel_port),
            "<routable_ip_of_this_host>": engine.address,
            "<prefill_http_port_rank0>": "7100",
            "<decode_http_port_rank0>": "7200",
            "<prefill_dp_rpc_port>": "12321",
            "<decode_dp_rpc_port>": "12322",
            "<prefill_dp_leader_ip>": "203.0.113.31",
            "<decode_dp_leader_ip>": "203.0.113.32",
            "<eagle3_model_name>": "lightseekorg/kimi-k2.5-eagle3-mla",
        }
    if container:
        tag = container.image.rpartition(":")[2].removesuffix("-a3")
        words |= {"$IMAGE": container.image, "|vllm_ascend_version|": tag}
    if plan and plan.jobs:
        base = "/projects/kimi"
        words |= {
            "${VIRTUAL_ENV}": f"{base}/virt_envs/vllm-kimi",
            ":${PATH}": "",
            "${MODEL_DIR}": f"{base}/models/kimi-k2.5",
            "${MODEL_PATH}": f"{base}/models/kimi-k2.5",
            "${EAGLE3_PATH}": f"{base}/models/kimi-k2.5-eagle3-mla",
            "${TUNING_DIR}": f"{base}/configs/moe_tuning",
            "${SERVER_URL}": plan.url,
        }
    if plan and "$CONCURRENCY" not in words:
        words |= {
            "$MODEL_NAME": plan.served_name,
            "$INPUT_LEN": "1024",
            "$OUTPUT_LEN": "1024",
            "$NUM_PROMPTS": "10",
            "$CONCURRENCY": "1",
        }
    return words | {":$LD_PRELOAD": "", ":$LD_LIBRARY_PATH": ""}


def put(text: str, words: dict[str, str]) -> str:
    # Longest first: $node0_ip before $n, ${MODEL_DIR} before $M.
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, words[word])
    return text


def pairs(argv: list[str], tool: str) -> set[tuple[str, str, str]]:
    """A command line as (kind, name, value). JSON flags count by their leaves."""
    out: set[tuple[str, str, str]] = set()
    words = list(argv)
    if tool == "router":
        return _router_pairs(words)
    command = {"bench": "bench_serve", "serve": "serve"}.get(tool)
    start = {
        "serve": 3,
        "bench": 3,
        "docker": 2,
        "launch": 2,
        "lm_eval": 1,
        "hf": 2,
        "conda": 2,
        "pip": 2,
        "benchmark_moe": 2,
    }[tool]
    head, rest = words[:start], words[start:]
    out.add(("argv", "command", " ".join(head[:2])))
    if len(head) > 2 and tool == "serve":
        out.add(("argv", "model", head[2]))
    if tool == "benchmark_moe":
        out = {("argv", "command", head[0]), ("argv", "script", head[1])}
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            if tool == "docker":  # the image; the rest is the command inside
                return out | {("argv", "image", word)} | _inside(rest)
            out.add(("argv", "word", word))
            continue
        name, sign, value = word.partition("=")
        name = _full(name, command)
        if command and (top := name.partition(".")[0].replace("_", "-")) != name and "." in name:
            name = top + name[name.index(".") :]  # --compilation_config.a.b
        elif command:
            name = name.replace("_", "-")
        if not sign and not _switch(name, tool, command):
            value = rest.pop(0)
        out |= _leaves(name, value or "true")
    return out


def _full(name: str, command: str | None) -> str:
    name = SHORT.get(name, name)
    if command is None or "." in name:
        return name
    known = catalog.tables("vllm")[command]
    plain = name.replace("_", "-").replace("--no-", "--")
    if plain in known or name in known:
        return name
    fits = [flag for flag in known if flag.startswith(plain)]
    exact = [flag for flag in fits if flag == f"{plain}-len"]
    return exact[0] if exact else name


def _switch(name: str, tool: str, command: str | None) -> bool:
    if name in SWITCHES.get(tool, ()):
        return True
    if command is None:
        return name in ("-y",)
    runs = catalog.tables("vllm")[command].get(name.replace("--no-", "--"), [])
    return name == "--skip-non-local-expert-weights" or (bool(runs) and not runs[-1]["takes_value"])


def _leaves(name: str, value: str) -> set[tuple[str, str, str]]:
    plain = name.lstrip("-") if name.startswith("--") else name
    if value.startswith(("{", "[")):

        def walk(path, item):
            if isinstance(item, dict):
                return {
                    leaf for key, inner in item.items() for leaf in walk(f"{path}.{key}", inner)
                }
            return {("argv", path, item if isinstance(item, str) else json.dumps(item))}

        return walk(plain, json.loads(value))
    if plain == "model_args":
        return {
            ("argv", f"model_args.{part.partition('=')[0]}", part.partition("=")[2])
            for part in value.split(",")
        }
    return {("argv", plain, value)}


def _inside(rest: list[str]) -> set[tuple[str, str, str]]:
    if rest == ["bash"]:
        return {("argv", "runs", "bash")}
    return {pair for pair in pairs(["vllm", "serve", *rest], "serve") if pair[1] != "command"}


def _router_pairs(words: list[str]) -> set[tuple[str, str, str]]:
    lists: dict[str, list[str]] = {}
    name = "command"
    for word in words:
        if word.startswith("--"):
            name = word
        else:
            lists.setdefault(name, []).append(word)
    out = {("argv", "command", " ".join(lists["command"]))}
    out |= {("argv", key.lstrip("-"), " ".join(lists[key])) for key in ("--port", "--host")}
    for role in ("prefiller", "decoder"):
        workers = zip(lists[f"--{role}-hosts"], lists[f"--{role}-ports"], strict=True)
        out |= {("argv", role, f"{host}:{port}") for host, port in workers}
    return out


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition(" " if text.startswith(("-o", "-e")) else "=")
    return name.lstrip("-"), value


def _tuning(line: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"sysctl (?:-w )?([\w.]+)=(\w+)", line)
    if found:
        return ("host", *found.groups())
    assert line.startswith("echo ") and line.endswith("/scaling_governor")
    return ("host", "governor", line.split()[1])


def tool_of(argv: list[str], what: str) -> str:
    if what == "proxy":
        return "router"
    if argv[:2] == ["vllm", "serve"]:
        return "serve"
    if argv[:3] == ["vllm", "bench", "serve"]:
        return "bench"
    return {
        "docker": "docker",
        "lm_eval": "lm_eval",
        "conda": "conda",
        "pip": "pip",
        "huggingface-cli": "hf",
        "hf": "hf",
    }.get(argv[0]) or ("launch" if argv[1] == "launch_online_dp.py" else "benchmark_moe")


def differences(name: str) -> set[tuple[str, str, str | None, str | None]]:
    """(kind, name, the document's value, ours) for all that is not equal."""
    entry = COMMANDS[name]
    env, argv, others, words = ours(name)
    theirs = pairs(
        [put(word, words) for word in entry["argv"]], tool_of(entry["argv"], entry["what"])
    )
    theirs |= {("env", key, put(value, words)) for key, value in entry["env"]}
    theirs |= {_tuning(line) for line in entry["host_tuning"]}
    theirs |= {("sbatch", *_option(option)) for option in entry.get("sbatch", [])}
    mine = pairs(argv, tool_of(argv, entry["what"])) | {("env", *pair) for pair in env.items()}
    mine |= set(others)
    # The cluster's own words stand empty in the document.
    theirs = {
        (kind, key, value)
        for kind, key, value in theirs
        if not (kind == "sbatch" and key in ("account", "qos") and not value)
    }
    if entry["what"] == "sbatch":
        named = {key for kind, key, value in theirs if kind == "sbatch"}
        mine = {
            pair
            for pair in mine
            if pair[0] != "sbatch" or pair[1] in named or pair[1] not in ("account", "qos")
        }
    missing, extra = theirs - mine, mine - theirs
    out = set()
    for kind, key, value in sorted(missing):
        same = sorted(pair for pair in extra if pair[:2] == (kind, key))
        if same:
            extra.discard(same[0])
        out.add((kind, key, value, same[0][2] if same else None))
    return out | {(kind, key, None, value) for kind, key, value in extra}


def explains(entry: dict, difference: tuple) -> bool:
    """Whether an erratum names this difference: kind, name, the document's value, ours."""
    kind, name, theirs, mine = difference
    return any(
        change["where"] == kind
        and change["name"] == name
        and _same(change.get("says"), theirs)
        and _same(change.get("uses"), mine)
        for change in entry.get("changes", ())
    )


def _same(pattern, value) -> bool:
    """``null`` is absent, ``any`` is whatever stands there, a list is one of these."""
    if isinstance(pattern, list):
        return any(_same(one, value) for one in pattern)
    if pattern is None or value is None:
        return pattern is value
    return str(pattern) == value


def test_every_command_is_placed():
    assert len(COMMANDS) == 51
    assert set(WHERE) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_command(name):
    entries = [entry for entry in errata.entries() if name in entry["commands"]]
    unexplained = [
        difference
        for difference in sorted(differences(name), key=str)
        if not any(explains(entry, difference) for entry in entries)
    ]
    assert unexplained == []


def test_no_erratum_is_unused():
    """Each change of each erratum explains a difference of each command that it names."""
    unused = []
    for entry in errata.entries():
        for name in entry["commands"]:
            assert name in COMMANDS, f"{entry['id']}: {name} is no command"
            if entry.get("changes") and not any(
                explains(entry, difference) for difference in differences(name)
            ):
                unused.append((entry["id"], name))
        for change in entry.get("changes", ()):
            alone = {"changes": [change]}
            if not any(
                explains(alone, difference)
                for name in entry["commands"]
                for difference in differences(name)
            ):
                unused.append((entry["id"], change))
    assert unused == []


def test_errata_are_whole():
    titles = data_files.facts("check/documents")
    seen = set()
    for entry in errata.entries():
        assert entry["id"] not in seen
        seen.add(entry["id"])
        assert entry["document"] in titles
        for key in ("says", "uses", "why", "evidence"):
            assert entry[key].strip(), f"{entry['id']}: {key}"
        golden = titles[entry["document"]]["golden"]
        assert entry["commands"]
        for name in entry["commands"]:
            assert COMMANDS[name]["document"] == golden, f"{entry['id']}: {name}"


def test_a_difference_is_noticed():
    """The test itself: a changed value is a difference that no erratum explains."""
    entry = COMMANDS["k2.5/a3/single"]
    at = entry["argv"].index("--max-num-seqs") + 1
    before = entry["argv"][at]
    try:
        entry["argv"][at] = "63"
        assert ("argv", "max-num-seqs", "63", "64") in differences("k2.5/a3/single")
    finally:
        entry["argv"][at] = before


ENGINES = [name for name, spec in WHERE.items() if spec["part"] == "engine"]


@pytest.mark.parametrize("name", ENGINES)
def test_as_documented_is_what_the_document_has(name, monkeypatch):
    """What still differs is of errata that cannot be off, each of which the plan names."""
    monkeypatch.setitem(WHERE, name, {**WHERE[name], "erratum": ["all=off"]})
    spec = {key: value for key, value in WHERE[name].items() if key not in ("part", "pick")}
    plan = plan_of(
        tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in spec.items()))
    )
    on = [entry for entry in plan.errata if name in entry["commands"]]
    assert set(plan.errata_off).isdisjoint(entry["id"] for entry in on)
    assert [
        difference
        for difference in sorted(differences(name), key=str)
        if not any(explains(entry, difference) for entry in on)
        # Where one of its documents' commands says nothing: vLLM listens everywhere by default.
        and difference != ("argv", "host", None, "0.0.0.0")
    ] == []


def test_each_erratum_alone():
    """One that is off gives its own differences back, and no other."""
    key = (("hw", "a3"), ("layout", "pd"), ("model", "k2.5"))
    usual = plan_of(key)
    for name in plan_of((("erratum", ("all=off",)), *key)).errata_off:
        plan = plan_of((("erratum", (f"{name}=off",)), *key))
        assert plan.errata_off == (name,)
        assert {entry["id"] for entry in usual.errata} - {entry["id"] for entry in plan.errata} == {
            name
        }
        assert [one.argv for one in plan.engines] != [one.argv for one in usual.engines] or [
            one.env for one in plan.engines
        ] != [one.env for one in usual.engines]
