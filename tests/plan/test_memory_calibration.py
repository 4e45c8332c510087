"""What an engine's own log teaches the account of memory, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kimi_nb.check import judge, memory_account
from kimi_nb.cli import main
from kimi_nb.core.errors import KimiError, ParameterError
from kimi_nb.plan import build
from kimi_nb.plan.memory import GIB, engine_report

LOGS = Path(__file__).parent / "engine_logs"
CHIP = str(LOGS / "cpu-auto.yaml")
FIRST = ("gpu-memory-utilization=0.15",)
SECOND = (
    "gpu-memory-utilization=0.2",
    "max-num-seqs=4",
    "max-num-batched-tokens=1024",
    "max-model-len=1024",
)
THIRD = ("gpu-memory-utilization=0.12", "tp=2")


def log(name: str) -> engine_report.Log:
    with (LOGS / f"{name}.log").open() as lines:
        return engine_report.read(lines, f"{name}.log")


def cpu(pairs: tuple[str, ...], *layers: Path):
    return build.plan(
        "tiny-k2.5", CHIP, "single", pairs=pairs, calibrations=[str(one) for one in layers]
    )


def words(pairs: tuple[str, ...], chip: str = CHIP) -> list[str]:
    return [
        *("--model", "tiny-k2.5", "--hw", chip, "--layout", "single"),
        *(word for pair in pairs for word in ("--set", pair)),
    ]


@pytest.fixture
def layer(tmp_path) -> Path:
    path = tmp_path / "measured.yaml"
    given_log = str(LOGS / "cpu-0.32.0-a.log")
    assert main.main(["calibrate", given_log, *words(FIRST), "--out", str(path)]) == 0
    return path


@pytest.mark.parametrize(("pairs", "other"), [(SECOND, "cpu-0.32.0-b"), (THIRD, "cpu-0.32.0-c")])
def test_what_one_start_taught_holds_for_another_shape(layer, pairs, other):
    """Both were recorded on one machine by the real engine; within 3 % of the second."""
    said = log(other)
    (bar,) = judge.memory_of(judge.of_plan(cpu(pairs, layer)))
    assert bar.fit.tokens == pytest.approx(said.tokens, rel=0.03)
    assert bar.fit.headroom / GIB == pytest.approx(said.cache, rel=0.03)
    assert bar.fit.low <= said.tokens <= bar.fit.high
    assert bar.fit.mark.startswith("measured on your node, 20")
    assert bar.as_dict()["mark"] == bar.fit.mark and "vllm 0.32.0" in bar.fit.mark


@pytest.mark.parametrize("before", ["", "2026-11-01T10:00:00Z stdout F "])
def test_the_log_of_a_stand_in_is_no_measurement(before, tmp_path, capsys):
    """Also where a container's runtime puts a time before each line, and nothing is written."""
    said = (LOGS / "cpu-0.32.0-a.log").read_text().splitlines()
    path, out = tmp_path / "rank_0.log", tmp_path / "measured.yaml"
    path.write_text(
        "".join(
            f"{before}REHEARSAL (EngineCore_DP0 pid=7) INFO 11-01 10:00:00 [x.py:1] {line}\n"
            for line in said
        )
    )
    assert main.main(["calibrate", str(path), *words(FIRST), "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "rank_0.log: line 1: REHEARSAL: a stand-in wrote this log" in told and not out.exists()


def test_without_it_the_estimate_is_far_off():
    (bar,) = judge.memory_of(judge.of_plan(cpu(SECOND)))
    assert bar.fit.tokens != pytest.approx(log("cpu-0.32.0-b").tokens, rel=0.5)
    assert bar.fit.mark == "estimated"


def test_the_layer_says_where_it_is_from(layer):
    said = yaml.safe_load(layer.read_text())
    assert said["kind"] == "memory-calibration" and said["device_gib"] == 15.09
    assert said["measured"]["logs"] == ["cpu-0.32.0-a.log"] and said["version"] == "0.32.0"
    assert not list(layer.parent.glob("measured.yaml.*"))


def test_each_term_is_compared(capsys):
    given_log = str(LOGS / "cpu-0.32.0-a.log")
    assert main.main(["calibrate", given_log, *words(FIRST), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = {one["term"]: one for one in said["terms"]}
    assert found["cache"]["logged_gib"] == 1.67
    assert said["layer"]["contexts_gib"] == pytest.approx(0.59, abs=0.02)


@pytest.mark.parametrize(
    ("plan", "name", "factor"),
    [
        (
            {
                "model": "k2.5",
                "hardware": "h200",
                "layout": "single",
                "variant": "pip",
                "engine_version": "0.32.0",
                "pairs": ["max-num-seqs=512", "gpu-memory-utilization=0.9"],
            },
            "h200-0.32.0",
            1.004,
        ),
        (
            {"model": "k2.5", "hardware": "a2", "layout": "dp"},
            "a2-0.22.1",
            1.0,
        ),
    ],
)
def test_a_whole_report_closes_the_account(plan, name, factor, tmp_path):
    """Afterwards the account of the same engine is what the log says."""
    said = log(name)
    learnt = memory_account.learn(build.plan(**plan), "", said, "2026-11-23")
    assert learnt.layer.weights == pytest.approx(factor, abs=0.05)
    assert learnt.layer.graphs_gib == said.graphs
    path = tmp_path / "layer.yaml"
    path.write_text(yaml.safe_dump(learnt.layer.model_dump(mode="json")))
    (bar,) = judge.memory_of(judge.of_plan(build.plan(**plan, calibrations=[str(path)])))
    assert bar.fit.headroom / GIB == pytest.approx(said.cache, rel=0.03)
    assert bar.fit.low < bar.fit.tokens < bar.fit.high


def test_a_public_log_line_teaches_too():
    plan = build.plan("k2.5", "h200", "single", variant="pip")
    with pytest.raises(ParameterError, match=r"vLLM 0\.11\.2, the plan is for 0\.19\.1"):
        memory_account.learn(plan, "", log("h200-0.11.2"), "2026-11-23")


# Refused ---------------------------------------------------------------------------------------


REPORT = (LOGS / "cpu-0.32.0-a.log").read_text()
OTHER = (LOGS / "cpu-0.32.0-b.log").read_text()


def _without_arguments(text):
    """A log as it is where only the engine's core was kept, without what the API server says."""
    return "".join(line for line in text.splitlines(True) if "non-default args" not in line)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (REPORT.replace("v0.32.0", "v0.31.0"), "the log is of vLLM 0.31.0, the plan is for 0.32.0"),
        (REPORT.replace("tiny-k2.5", "tiny-llama"), "the log is of /models/tiny-llama"),
        (REPORT + OTHER, "more than one start"),
        (REPORT + REPORT, "more than one start"),
        (2 * _without_arguments(REPORT), "more than one start"),
        (REPORT[: REPORT.index("requested memory")], "is cut"),
        (REPORT[: REPORT.index(" tokens, Maximum")], "is cut"),
        (REPORT.replace("Initializing a V1", "Started a V1"), "version and model cannot be told"),
        ("nothing of memory\n" * 20, "no line about memory"),
        ("", "no line about memory"),
        (REPORT.replace("517,808", "1,035,616"), "another model, cache format"),
        (REPORT.replace("Auto set (1.67/", "Auto set (9.67/").replace("517,808", "3,004,000"),
         "are more than the engine's share has"),
        (REPORT.replace("'max_num_seqs': 8", "'max_num_seqs': 16"), "--max-num-seqs 16 there, 8"),
    ],
    ids=range(13),
)  # fmt: skip
def test_a_log_that_does_not_fit_is_refused(text, said, tmp_path, capsys):
    path, out = tmp_path / "engine.log", tmp_path / "out.yaml"
    path.write_text(text)
    assert main.main(["calibrate", str(path), *words(FIRST), "--out", str(out)]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def ranks(tmp_path: Path, *texts: str) -> list[str]:
    """Logs of processes of their own, each of one start."""
    for number, text in enumerate(texts):
        (tmp_path / f"rank{number}.log").write_text(text)
    return [str(tmp_path / f"rank{number}.log") for number in range(len(texts))]


def test_each_rank_of_an_engine_may_have_a_log_of_its_own(tmp_path, capsys):
    """The engine sizes its cache by the rank that has least."""
    less = REPORT.replace("1.67/", "1.60/").replace("517,808", "496,640")
    assert main.main(["calibrate", *ranks(tmp_path, REPORT, less), *words(FIRST), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {one["term"]: one["logged_gib"] for one in said["terms"]}["cache"] == 1.6
    assert said["layer"]["measured"]["logs"] == ["rank0.log, rank1.log"]


@pytest.mark.parametrize(
    "other", [OTHER, REPORT.replace("v0.32.0", "v0.31.0"), REPORT.replace("15.09", "11.09")]
)
def test_logs_of_two_engines_are_refused(other, tmp_path, capsys):
    assert main.main(["calibrate", *ranks(tmp_path, REPORT, other), *words(FIRST)]) == 2
    assert "logs of two engines" in capsys.readouterr().err


def test_a_cache_that_a_setting_names_teaches_nothing(tmp_path, capsys):
    path = tmp_path / "engine.log"
    path.write_text(
        "\n".join(line for line in REPORT.splitlines() if "Auto set" not in line) + "\n"
    )
    pairs = ("gpu-memory-utilization=0.15",)  # the recipe's VLLM_CPU_KVCACHE_SPACE stays
    assert main.main(["calibrate", str(path), *words(pairs, "cpu")]) == 2
    assert "nothing to learn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0.31.0"}, "version 0.31.0 there, 0.32.0 here"),
        ({"model": "k2.5"}, "model k2.5 there, tiny-k2.5 here"),
        ({"role": "decode"}, "mixed"),
        ({"kind": "site"}, "kind"),
        ({"device_gib": -1}, "device_gib"),
        ({"more": 1}, "key 'more' is not known"),
    ],
)
def test_a_layer_of_something_else_is_refused(layer, change, said):
    layer.write_text(yaml.safe_dump(yaml.safe_load(layer.read_text()) | change))
    with pytest.raises(KimiError, match=said):
        cpu(SECOND, layer)


def test_two_layers_of_one_role_are_refused(layer):
    with pytest.raises(ParameterError, match="a second calibration of mixed"):
        cpu(SECOND, layer, layer)


# Named in a site file --------------------------------------------------------------------------


def site_of(folder: Path, *files: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "cpu", "name": "mine", "calibration": list(files)}))
    return str(path)


def fit_on(site: str, **more):
    plan = build.plan("tiny-k2.5", CHIP, "single", pairs=SECOND, site=site, **more)
    (bar,) = judge.memory_of(judge.of_plan(plan))
    return bar.fit, plan


def test_a_site_file_names_a_calibration_beside_it(layer, tmp_path):
    by_flag, _ = fit_on("cpu", calibrations=[str(layer)])
    by_site, _ = fit_on(site_of(tmp_path, layer.name))
    assert by_site.mark == by_flag.mark and by_site.mark.startswith("measured on your node")
    assert by_site.tokens == by_flag.tokens


def test_a_calibration_of_a_site_may_lie_in_the_home_folder(layer, tmp_path, monkeypatch):
    (tmp_path / "sites").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    fit, _ = fit_on(site_of(tmp_path / "sites", f"~/{layer.name}"))
    assert fit.mark.startswith("measured on your node")


def test_the_command_line_comes_before_the_site_file(layer, tmp_path):
    other = tmp_path / "other.yaml"
    of_other = yaml.safe_load(layer.read_text()) | {"weights": 1.5}
    other.write_text(yaml.safe_dump(of_other))
    fit, _ = fit_on(site_of(tmp_path, str(layer)), calibrations=[str(other)])
    assert fit.weights == fit_on("cpu", calibrations=[str(other)])[0].weights


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "k2.5"}, False),
        ({"role": "decode"}, False),
        ({"version": "0.31.0"}, True),
    ],
)
def test_a_site_serves_several_models_and_tells_of_another_version(layer, change, told, tmp_path):
    layer.write_text(yaml.safe_dump(yaml.safe_load(layer.read_text()) | change))
    fit, plan = fit_on(site_of(tmp_path, layer.name))
    assert "measured" not in fit.mark
    found = [one for one in judge.plan(plan).findings if one.rule == "capacity/calibration"]
    assert bool(found) == told
    assert not told or "measured with 0.31.0, the plan is for 0.32.0" in found[0].message


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["missing.yaml"], "missing.yaml"),
        (["measured.yaml", "measured.yaml"], "a second calibration of mixed"),
        ([7], "calibration"),
        (["a\nb"], "calibration"),
    ],
)
def test_a_calibration_of_a_site_that_cannot_be_is_refused(layer, files, said, tmp_path):
    with pytest.raises(KimiError, match=said):
        fit_on(site_of(tmp_path, *files))


def test_a_plan_of_two_roles_asks_which(capsys):
    given_log = str(LOGS / "cpu-0.32.0-a.log")
    words = ["calibrate", given_log, "--model", "tiny-k2.5", "--hw", "cpu", "--layout", "pd"]
    assert main.main(words) == 2
    assert "--role is wanted: prefill or decode" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_what_is_no_file_is_refused(name, tmp_path, capsys):
    assert main.main(["calibrate", str(tmp_path / name), *words(FIRST)]) == 2
    assert "not a file" in capsys.readouterr().err


@given(st.lists(st.text(max_size=200), max_size=20), st.integers(0, 4))
def test_any_text_is_read_or_refused(lines, place):
    """A log is another program's output: whatever stands in it is no traceback."""
    whole = REPORT.splitlines()
    lines.insert(min(place, len(lines)), whole[place][: 60 + 20 * place])
    try:
        engine_report.read(lines, "x.log")
    except ParameterError as error:
        assert "x.log" in str(error)


def test_a_line_without_an_end_is_bounded():
    long = "KV cache size: " + "9" * 5_000_000
    with pytest.raises(ParameterError, match="is cut") as told:
        engine_report.read([long], "x.log")
    assert len(str(told.value)) < 600


def test_a_device_larger_than_the_hardware_has_is_refused(tmp_path, capsys):
    """In the layer that somebody changed, and in a log of other hardware under the same name."""
    text = (LOGS / "h200-0.32.0.log").read_text()
    given, layer = tmp_path / "run.log", tmp_path / "mine.yaml"
    asked = [
        *("--model", "k2.5", "--hw", "h200", "--engine-version", "0.32.0"),
        *("--set", "gpu-memory-utilization=0.9", "--set", "max-num-seqs=512"),
    ]
    given.write_text(text)
    assert main.main(["calibrate", str(given), *asked, "--out", str(layer)]) == 0
    known = yaml.safe_load(layer.read_text())
    layer.write_text(yaml.safe_dump({**known, "device_gib": 150.0}))
    assert main.main(["plan", *asked, "--calibration", str(layer)]) == 2
    assert "device_gib: 150 GiB" in capsys.readouterr().err
    given.write_text(text.replace("137.64/139.8 GiB", "177.64/179.8 GiB"))
    assert main.main(["calibrate", str(given), *asked]) == 2
    assert "179.8 GiB, more than a device of h200 has" in capsys.readouterr().err
