"""What the values of a plan say of themselves: ports, stages, names, and the plan as JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest
from plan.made_values import engine

from kimi_nb.params.settings import Value
from kimi_nb.plan import build, spec
from kimi_nb.plan.spec import Plan

# Addresses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("192.0.2.1", "http://192.0.2.1:80"),
        ("h", "http://h:80"),
        ("fd00::1", "http://[fd00::1]:80"),
    ],
)
def test_the_url_of_a_server(address, url):
    assert spec.url_of(address, 80) == url
    assert engine(address=address, http_port=80).url == url
    assert spec.Router("vllm-router", "n0", address, 80, (), ()).url == url


def test_a_headless_engine_has_no_url():
    assert engine(http_port=None).url is None


# Devices of a rank --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "world", "spans", "words"),
    [
        ({}, 8, False, "8"),
        ({"tp_size": 4, "pp_size": 2}, 8, False, "4 x pp 2"),
        ({"tp_size": 4, "pp_size": 2, "pcp_size": 2}, 16, True, "4 x pp 2 x pcp 2"),
        ({"tp_size": 16}, 16, True, "16"),
        ({"tp_size": 16, "ranks": 2}, 16, False, "16"),
        ({"tp_size": 16, "devices": ()}, 16, False, "16"),
        ({"tp_size": 2, "devices": (0,)}, 2, True, "2"),
        ({"tp_size": 1, "devices": (0,)}, 1, False, "1"),
    ],
)
def test_the_devices_of_a_rank(sizes, world, spans, words):
    one = engine(**sizes)
    assert (one.world, one.spans, one.sizes) == (world, spans, words)


def test_the_part_of_a_rank_on_a_node():
    parts = [engine("--node-rank", str(rank), tp_size=16).part for rank in range(4)]
    assert parts == [0, 1, 0, 1]
    assert [engine("--node-rank", str(rank), tp_size=32).part for rank in range(4)] == [0, 1, 2, 3]
    assert engine("--node-rank", "1").part == 0  # it does not span
    assert engine(tp_size=16).part == 0


@pytest.mark.parametrize(
    ("sizes", "rank", "stages"),
    [
        ({}, 0, (0,) * 8),
        ({"tp_size": 4, "pp_size": 2}, 0, (0, 0, 0, 0, 1, 1, 1, 1)),
        ({"tp_size": 8, "pp_size": 2}, 1, (1,) * 8),
        ({"tp_size": 4, "pp_size": 4}, 1, (2, 2, 2, 2, 3, 3, 3, 3)),
        ({"tp_size": 2, "pp_size": 2, "pcp_size": 2}, 0, (0, 0, 0, 0, 1, 1, 1, 1)),
        ({"tp_size": 2, "pp_size": 2, "ranks": 2}, 0, (0, 0, 1, 1, 0, 0, 1, 1)),
    ],
)
def test_the_stage_of_each_device(sizes, rank, stages):
    assert engine("--node-rank", str(rank), **sizes).stages == stages


def test_the_ports_of_the_cache():
    assert engine().kv_ports == range(0) and engine().side_channel_ports == range(0)
    whole = engine(kv_port=36000, side_channel_port=5600, tp_size=4, ranks=2)
    assert (whole.kv_width, whole.kv_ports) == (4, range(36000, 36008))
    assert whole.side_channel_ports == range(5600, 5602)
    part = engine(kv_port=36008, side_channel_port=5600, tp_size=16)
    assert (part.kv_width, part.kv_ports) == (8, range(36008, 36016))
    assert part.side_channel_ports == range(5600, 5601)


@pytest.mark.parametrize(
    ("argv", "headless", "port"),
    [
        ((), False, None),
        (("--nnodes", "2"), False, 29501),
        (("--nnodes", "2", "--master-port", "29700"), False, 29700),
        (("--nnodes", "2", "--master-port", "29700"), True, None),
        (("--master-port", "29700"), False, None),
    ],
)
def test_where_the_nodes_of_a_group_meet(argv, headless, port):
    assert engine(*argv, headless=headless).master_port == port


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "scenario", "documented", "derived", "name"),
    [
        ("docker", "default", False, False, "m-h-dp"),
        ("pip", "long", True, True, "m-h-dp-pip-long-as-documented-derived"),
        ("pip", "default", False, True, "m-h-dp-pip-derived"),
        ("docker", "long", True, False, "m-h-dp-long-as-documented"),
    ],
)
def test_the_name_of_a_plan_says_what_is_not_the_default(
    variant, scenario, documented, derived, name
):
    assert spec.name_of("m", "h", "dp", variant, scenario, documented, derived) == name
    made = changed(
        model="m",
        hardware="h",
        layout="dp",
        variant=variant,
        scenario=scenario,
        as_documented=documented,
        derived={"base": "x"} if derived else {},
    )
    assert made.name == name
    assert made.heading == ("DERIVED " * derived + name)


def test_neither_variant_nor_scenario_is_no_part():
    assert spec.name_of("m", "h", "dp", "", "", False, False) == "m-h-dp"


# A plan -------------------------------------------------------------------------------------------

PLAN = build.plan("k2.5", "a3", "pd")


def changed(**more) -> Plan:
    return dataclasses.replace(PLAN, **more)


def test_the_nodes_and_engines_of_a_plan():
    assert PLAN.nodes == ("a3-0", "a3-1", "a3-2", "a3-3")
    assert [one.name for one in PLAN.of("a3-1")] == ["prefill1-rank0", "prefill1-rank1"]
    assert PLAN.of("a3-9") == ()
    assert PLAN.first("decode").name == "decode0-rank0"
    with pytest.raises(KeyError, match="mixed"):
        PLAN.first("mixed")


@pytest.mark.parametrize(
    ("flags", "random"),
    [
        ({}, False),
        ({"prefill": {}, "decode": {"load-format": Value("dummy", "recipe", "a")}}, True),
        ({"prefill": {"load-format": Value("auto", "recipe", "a")}}, False),
    ],
)
def test_random_weights(flags, random):
    assert changed(flags=flags).random_weights is random


def test_pictures_need_eyes_in_every_engine():
    assert PLAN.takes_pictures is True
    blind = {"decode": {"language-model-only": Value(True, "recipe", "a")}, "prefill": {}}
    assert changed(flags=blind).takes_pictures is False
    model = PLAN.request.model.model_copy(update={"architecture": {"heads": 64}})
    request = dataclasses.replace(PLAN.request, model=model)
    assert changed(request=request).takes_pictures is False


def test_each_setting_has_a_row_with_its_meaning():
    flags = {
        "decode": {
            "seed": Value(7, "site", "site mine", "as agreed"),
            "max-num-seqs": Value(8, "recipe", "guide"),
            "speculative-config.method": Value("eagle3", "recipe", "guide"),
            "compilation-config.of.no_key": Value(1, "recipe", "guide"),
            "no-such-flag": Value(1, "recipe", "guide"),
        }
    }
    env = {
        "decode": {"HCCL_BUFFSIZE": Value("800", "recipe", "guide")},
        "prefill": {"MINE": Value("1", "override", "--set")},
    }
    rows = changed(flags=flags, env=env).explain()
    words, method = spec.data_files.facts("plan/glossary"), "speculative-config.method"
    assert rows[0] == spec.Setting("decode", "flag", "seed", 7, "site", "site mine", "as agreed")
    assert [(one.role, one.kind, one.name, one.reason) for one in rows[1:]] == [
        ("decode", "flag", "max-num-seqs", words["flags"]["max-num-seqs"]),
        ("decode", "flag", method, words["flags"][method]),
        ("decode", "flag", "compilation-config.of.no_key", words["flags"]["compilation-config"]),
        ("decode", "flag", "no-such-flag", ""),
        ("decode", "variable", "HCCL_BUFFSIZE", words["env"]["HCCL_BUFFSIZE"]),
        ("prefill", "variable", "MINE", ""),
    ]


# As values and as JSON ----------------------------------------------------------------------------


def test_a_plan_as_values():
    said = PLAN.as_dict({"README.md": "text"})
    assert next(iter(said)) == "name" and said["name"] == "k2.5-a3-pd"
    assert not {"flags", "env", "request", "store"} & set(said)
    assert said["files"] == {"README.md": "text"}
    first = said["engines"][0]
    assert (first["name"], first["url"]) == ("prefill0-rank0", "http://192.0.2.11:7100")
    assert (first["devices"], first["env"]) == (PLAN.engines[0].devices, PLAN.engines[0].env)
    assert len(said["engines"]) == len(PLAN.engines)
    assert said["router"]["url"] == "http://192.0.2.11:1999"
    assert said["router"]["kind"] == "upstream"
    assert said["router"]["workers"][0] == {
        "role": "prefill",
        "url": "http://192.0.2.11:7100",
        "engine": "prefill0-rank0",
    }
    assert said["launches"][0] == {"node": "a3-0", "argv": PLAN.launches[0].argv}
    assert said["containers"][0]["image"] == PLAN.image
    assert [one["name"] for one in said["clients"]] == ["bench"] and said["jobs"] == []
    assert said["installs"]["docker"][0]["says"] == PLAN.installs["docker"][0].says
    assert len(said["settings"]) == len(PLAN.explain())
    assert said["settings"][0]["layer"] == PLAN.explain()[0].layer
    assert PLAN.as_dict(["a", "b"])["files"] == ["a", "b"] and PLAN.as_dict()["files"] == []


def test_a_plan_without_a_front_door_and_one_with_a_store(stored_model):
    assert build.plan("k2.5", "a3", "single").as_dict()["router"] is None
    stored = build.plan(stored_model(), "h200", "single", variant="pip")
    said = stored.as_dict()["store"]
    assert (said["kind"], said["port"], said["node"]) == ("mooncake", 50051, stored.store.node)


def test_a_plan_as_json_has_a_line_for_each_key_and_each_item_of_a_list():
    given = changed(title="zwölf 十二")
    text = given.as_json(["a.sh"], faults=({"id": 1}, {"id": 2}), memory=(), names=["x"])
    assert json.loads(text) == json.loads(
        json.dumps(
            given.as_dict(["a.sh"])
            | {"faults": [{"id": 1}, {"id": 2}], "memory": [], "names": ["x"]}
        )
    )
    lines = text.split("\n")
    assert lines[0] == "{" and lines[-1] == "}"
    assert lines[1] == '  "name": "k2.5-a3-pd",'
    assert '  "title": "zwölf 十二",' in lines
    at = lines.index('  "faults": [')
    assert lines[at + 1 : at + 4] == ['    {"id": 1},', '    {"id": 2}', "  ],"]
    assert lines[at + 4 :] == ['  "memory": [],', '  "names": ["x"]', "}"]
    assert lines[at - 1] == '  "files": ["a.sh"],'


def test_what_is_no_number_is_no_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        changed(title=float("nan")).as_json()
