"""What the tables of plans, models and hardware say, cell by cell."""

from __future__ import annotations

import dataclasses

import pytest

from kimi_nb import catalog
from kimi_nb.core import data_files
from kimi_nb.params import load, schema
from kimi_nb.params.settings import Value
from kimi_nb.plan import build, tables
from kimi_nb.plan.spec import Job, Plan

PLAN = build.plan("k2.5", "a3", "pd")
SINGLE = build.plan("k2.5", "h200", "single")


def changed(of: Plan = PLAN, **more) -> Plan:
    return dataclasses.replace(of, **more)


# Topology -----------------------------------------------------------------------------------------


def test_engines_of_one_node_and_role_share_a_row():
    table = tables.topology(PLAN)
    assert table.title == "k2.5-a3-pd: 36 engines on 4 nodes"
    assert table.headings == (
        *("node", "address", "role", "group", "ranks", "tp", "devices", "HTTP", "kv", "rpc"),
        "engines",
    )
    first = ("a3-0", "192.0.2.11", "prefill", 0, "0-1 of 2", 8, "0-15", "7100-7101")
    last = ("a3-3", "192.0.2.14", "decode", 0, "16-31 of 32", 1, "0-15", "7100-7115")
    assert table.rows[0] == (*first, "36000-36015", 12321, 2)
    assert table.rows[-1] == (*last, "36216-36231", 12321, 16)
    assert [row[:4] for row in table.rows[1:3]] == [
        ("a3-1", "192.0.2.12", "prefill", 1),
        ("a3-2", "192.0.2.13", "decode", 0),
    ]


def test_one_engine_alone():
    table = tables.topology(SINGLE)
    assert table.title == "k2.5-h200-single: 1 engine on 1 node"
    assert table.rows == (
        ("dgx-0", "198.51.100.11", "mixed", 0, "0 of 1", 8, "0-7", "8000", None, None, 1),
    )


def test_roles_on_one_node_have_rows_of_their_own():
    (engine,) = SINGLE.engines
    other = dataclasses.replace(engine, role="decode")
    rows = tables.topology(changed(SINGLE, engines=(engine, other, other))).rows
    assert [(row[2], row[-1]) for row in rows] == [("mixed", 1), ("decode", 2)]
    two = changed(SINGLE, engines=(engine, dataclasses.replace(engine, node="dgx-1")))
    assert tables.topology(two).title == "k2.5-h200-single: 2 engines on 2 nodes"


def test_a_rank_that_spans_nodes_is_told_by_its_factors():
    (engine,) = SINGLE.engines
    wide = dataclasses.replace(engine, pp_size=2, http_port=None, devices=(0, 1, 4, 3))
    (row,) = tables.topology(changed(SINGLE, engines=(wide,))).rows
    assert row[5:8] == ("8 x pp 2", "0-1, 3-4", None)


def test_ranks_of_one_process_and_ports_of_the_cache():
    (engine,) = SINGLE.engines
    first = dataclasses.replace(engine, rank=2, ranks=2, tp_size=4, dp_size=6, kv_port=36000)
    (row,) = tables.topology(changed(SINGLE, engines=(first,))).rows
    assert (row[4], row[8]) == ("2-3 of 6", "36000-36007")
    without = dataclasses.replace(first, kv_port=None)
    for both in ((first, without), (without, first)):
        (row,) = tables.topology(changed(SINGLE, engines=both)).rows
        assert row[8] is None


def test_a_derived_plan_says_so_in_its_title():
    title = tables.topology(changed(SINGLE, derived={"base": "x"})).title
    assert title.startswith("DERIVED k2.5-h200-single-derived: 1 engine")


# Sources and settings -----------------------------------------------------------------------------


def test_the_documents_that_a_plan_cites():
    known = data_files.facts("check/documents")
    table = tables.sources(SINGLE)
    assert (table.title, table.headings) == ("Sources", ("cited as", "what", "address"))
    cited = {row[0]: row[1:] for row in table.rows if row[0]}
    assert set(cited) == {"h200-slurm", "usage-guide"}
    for name, row in cited.items():
        assert row == (known[name]["title"], known[name]["url"])
    at = [row[0] for row in table.rows].index("usage-guide")
    links = known["usage-guide"]["links"]
    assert table.rows[at + 1 : at + 1 + len(links)] == tuple(("", *pair) for pair in links.items())


@pytest.mark.parametrize("by", ["source", "row", "erratum", "recipe"])
def test_each_of_these_cites_a_document(by):
    name = "ascend-k2.6"
    request = SINGLE.request
    value = Value(1, "recipe", f"{name} 5.1 and more", "why")
    recipe = request.recipe.model_copy(update={"source": schema.Source(document=name)})
    how = {
        "source": {"source": f"{name} 9.1"},
        "row": {"flags": {"mixed": {"seed": value}}},
        "erratum": {"errata": ({"document": name},)},
        "recipe": {"request": dataclasses.replace(request, recipe=recipe)},
    }
    assert name in {row[0] for row in tables.sources(changed(SINGLE, **how[by])).rows}
    assert name not in {row[0] for row in tables.sources(SINGLE).rows}


def test_a_document_without_an_address_is_named_without_one(monkeypatch):
    known = {"check/documents": {"usage-guide": {"title": "A guide"}}}
    real = data_files.facts
    monkeypatch.setattr(tables.data_files, "facts", lambda name: known.get(name) or real(name))
    assert tables.sources(SINGLE).rows == (("usage-guide", "A guide", ""),)


def test_of_each_role_the_decisive_settings_come_first():
    table = tables.settings(PLAN)
    assert table.title == "Settings"
    assert table.headings == ("role", "name", "value", "layer", "source", "meaning")
    assert len(table.rows) == len(PLAN.explain())
    by_role = {role: [row for row in table.rows if row[0] == role] for role in PLAN.flags}
    assert [row[0] for row in table.rows] == [
        role for role in ("prefill", "decode") for _ in by_role[role]
    ]
    decisive = {"--max-model-len", "--max-num-seqs", "--gpu-memory-utilization"}
    for role, rows in by_role.items():
        assert {row[1] for row in rows[:3]} == decisive, role
        assert rows[3][1] == "--trust-remote-code"
    row = next(row for row in table.rows if row[1] == "HCCL_BUFFSIZE")
    assert row[2:5] == ("256", "recipe", "ascend-k2.5 5.3") and row[5]


def test_the_settings_of_one_role():
    rows = tables.settings(PLAN, "decode").rows
    assert {row[0] for row in rows} == {"decode"}
    assert len(rows) == sum(row.role == "decode" for row in PLAN.explain())


# Differences and rules ----------------------------------------------------------------------------


def test_what_a_plan_does_differently_from_its_documents():
    table = tables.errata(PLAN)
    assert table.title == "Differences from the documents"
    assert table.headings == ("erratum", "the document says", "we use", "why", "evidence")
    entry = PLAN.errata[0]
    keys = ("id", "says", "uses", "why", "evidence")
    assert table.rows[0] == tuple(entry[key] for key in keys)
    assert len(table.rows) == len(PLAN.errata)


def test_what_differs_from_the_recipe_that_a_plan_is_derived_from():
    nothing = tables.derivation(PLAN)
    assert (nothing.title, nothing.rows) == ("Nothing is derived", ())
    steps = [{"what": "tp", "value": "8", "rule": "heads / 8"}]
    table = tables.derivation(changed(derived={"base": "there", "steps": steps}))
    assert (table.title, table.headings) == ("DERIVED from there", ("what", "is", "by the rule"))
    assert table.rows == (("tp", "8", "heads / 8"),)
    assert tables.derivation(changed(derived={"base": "there"})).rows == ()


# Features and weights -----------------------------------------------------------------------------


def names(model: str, hardware: str) -> set[str]:
    return {row[0] for row in tables.features(load.model(model), load.hardware(hardware)).rows}


def test_the_features_of_a_model_on_a_hardware():
    table = tables.features(load.model("k2.5"), load.hardware("h200"))
    assert (table.title, table.headings) == ("Features", ("feature", "reason", "price", "excludes"))
    features = load.features()
    by_name = {row[0]: row[1:] for row in table.rows}
    off = features["mm-processor-cache-off"]
    assert by_name["mm-processor-cache-off"] == (off.reason, off.price, "mm-processor-cache-shm")
    assert by_name["eagle3-instant"][2].startswith("eagle3, eagle3-instant, ")
    assert by_name["eplb"][2] == ""


@pytest.mark.parametrize(
    ("model", "hardware", "there", "gone"),
    [
        ("k2.5", "h200", {"eplb", "eagle3-instant", "thinking-off"}, {"mlapo", "eagle3", "dflash"}),
        ("k2.5", "a3", {"mlapo", "eagle3", "dflash", "thinking-off"}, {"eplb", "eagle3-instant"}),
        ("k2-thinking", "h200", {"eplb", "tool-parser"}, {"thinking-off", "eagle3-instant"}),
    ],
)
def test_features_that_do_not_apply_are_left_out(model, hardware, there, gone):
    found = names(model, hardware)
    assert there <= found and not gone & found


ITEMS = {
    "int4": {"id": "a/b", "precision": "INT4", "directory": "b", "hub": "huggingface"},
}


def model_of(size_gb=None, million=None) -> schema.Model:
    size = {"size_gb": size_gb, "size_is": "published"} if size_gb else {}
    draft = {"id": "a/d", "method": "eagle3", "tokens": 3, "directory": "d", "vendors": ["amd"]}
    return load.model("k2.5").model_copy(
        update={
            "weights": {"int4": schema.Weights(**ITEMS["int4"] | size)},
            "drafts": {"x": schema.Draft(**draft, parameters_million=million)},
        }
    )


def test_the_checkpoints_of_a_model():
    table = tables.weights(model_of(594, 1900))
    assert (table.title, table.headings) == (
        "Weights",
        ("name", "id", "precision", "hub", "page", "size on disk"),
    )
    page = "https://huggingface.co/a"
    assert table.rows == (
        ("int4", "a/b", "INT4", "huggingface", f"{page}/b", "594 GB (published)"),
        ("x", "a/d", "draft, eagle3", "huggingface", f"{page}/d", "4 GB (estimated)"),
    )
    unknown = tables.weights(model_of())
    assert [row[5] for row in unknown.rows] == ["not published", "not published"]


def test_how_long_a_download_takes():
    table = tables.weights(model_of(594, 1900), 2.5)
    assert table.headings[-1] == "minutes at 2.5 Gbit/s"
    assert [row[6] for row in table.rows] == ["32", "0.2"]
    assert [row[6] for row in tables.weights(model_of(), 10).rows] == ["not known", "not known"]
    assert tables.weights(model_of(), 10).headings[-1] == "minutes at 10 Gbit/s"


@pytest.mark.parametrize(
    ("size", "gbit", "minutes"),
    [(75, 1, "10"), (74, 1, "9.9"), (75, 10, "1.0"), (600, 1, "80"), (None, 1, "not known")],
)
def test_minutes_of_a_download(size, gbit, minutes):
    assert tables._minutes(size, gbit) == minutes


# Other tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "version", "rows"),
    [
        ("vllm", "0.32.0", [("vllm", "0.32.0")]),
        (
            "vllm-ascend",
            "0.22.1rc1",
            [
                ("vllm-ascend", "0.22.1rc1"),
                ("vllm", "0.22.1"),
                ("cann", "9.0.0"),
                ("torch", "2.10.0"),
                ("torch_npu", "2.10.0"),
                ("mooncake", "0.3.9"),
            ],
        ),
    ],
)
def test_versions_that_belong_together(package, version, rows):
    table = tables.versions(catalog.engine(package, version))
    assert (table.title, table.headings) == ("Versions that belong together", ("part", "version"))
    assert table.rows == tuple(rows)


def test_a_version_of_which_no_more_is_known():
    made = catalog.Engine("vllm-ascend", "9.9.9", "9.9.8", "9.9.8")
    assert tables.versions(made).rows == (("vllm-ascend", "9.9.9"), ("vllm", "9.9.8"))


def test_the_connector_on_each_side():
    table = tables.connector(PLAN)
    assert (table.title, table.headings) == ("KV cache connector", ("role", "key", "value"))
    base = "kv_connector_extra_config"
    assert table.rows[:3] == (
        ("prefill", "kv_connector", "MooncakeConnectorV1"),
        ("prefill", "kv_role", "kv_producer"),
        ("prefill", f"{base}.prefill.dp_size", 2),
    )
    assert ("decode", "kv_role", "kv_consumer") in table.rows
    assert table.rows[-2:] == (
        ("prefill", "prefill0-rank0 listens from port", 36000),
        ("decode", "decode0-rank0 listens from port", 36200),
    )
    assert len(table.rows) == 18
    nixl = tables.connector(build.plan("tiny-k2.5", "cpu", "pd"))
    assert [row[2] for row in nixl.rows[-2:]] == [
        build.plan("tiny-k2.5", "cpu", "pd").first(role).side_channel_port
        for role in ("prefill", "decode")
    ]


def test_the_nodes_of_a_site():
    nodes = (
        schema.Node(name="n0", address="192.0.2.1"),
        schema.Node(name="n1", address="192.0.2.2", nic="ib0"),
    )
    cluster = load.site("h200").model_copy(update={"name": "mine", "nodes": nodes, "nic": "eth7"})
    table = tables.site(cluster)
    assert table.title == "mine (h200, ssh)"
    assert table.headings == ("node", "address", "interface")
    assert table.rows == (("n0", "192.0.2.1", "eth7"), ("n1", "192.0.2.2", "ib0"))


def test_the_jobs_of_a_plan():
    job = Job("install", "2_install.sbatch", "create-env", (), {}, tuple("abcde"), ())
    table = tables.jobs(changed(jobs=(job, job)))
    assert (table.title, table.headings) == ("2 jobs", ("file", "after", "command"))
    assert table.rows == (("2_install.sbatch", "create-env", "a b c d"),) * 2


@pytest.mark.parametrize(
    ("layouts", "applies"),
    [
        (["pd"], [True, True, False, True]),
        (["single", "dp"], [True, False, True, True]),
        ([], [True, False, False, False]),
    ],
)
def test_whether_a_notebook_applies(layouts, applies):
    layout_of = {"00": "", "05": "pd", "03": "single", "09": "any"}
    manifest = {name: {"title": f"About {name}", "layout": one} for name, one in layout_of.items()}
    table = tables.notebooks(manifest, layouts)
    assert (table.title, table.headings) == ("Notebooks", ("notebook", "about", "applies"))
    assert [row[:2] for row in table.rows] == [
        (f"{name}.ipynb", f"About {name}") for name in layout_of
    ]
    assert [row[2] for row in table.rows] == applies
