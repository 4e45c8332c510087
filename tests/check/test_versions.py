"""Any version: candidates, development builds, and what lies between two listed ones."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.check import judge
from kimi_nb.core.errors import ParameterError

SWAP = "vllm serve org/model --swap-space 4\n"  # the last listed version with it is 0.17.0


def files(tmp_path, text: str, version: str = "", engine: str = "vllm"):
    (tmp_path / "run.sh").write_text(text)
    return judge.files([tmp_path / "run.sh"], engine=engine, version=version)


def severities(found, rule: str) -> list[str]:
    return [one.severity for one in found.findings if one.rule == rule]


@pytest.mark.parametrize(
    "version", ["0.17.1", "0.18.0rc1", "v0.18.0rc2", "0.18.0.dev12", "0.17.2rc1.dev48+g1a2b3c4"]
)
def test_an_error_of_one_neighbour_is_a_warning(tmp_path, version):
    found = files(tmp_path, SWAP, version)
    assert severities(found, "engine/flag-removed") == ["warning"]
    assert "not so in vllm 0.17.0" in str(found)
    assert "checked as 0.18.0 and 0.17.0" in str(found)


@pytest.mark.parametrize("version", ["0.19.0", "0.20.0rc1", "0.25.2rc3"])
def test_an_error_of_both_is_an_error(tmp_path, version):
    found = files(tmp_path, SWAP, version)
    assert severities(found, "engine/flag-removed") == ["error"] and not found.ok
    assert severities(found, "truth/unknown-version") == ["warning"]


def test_an_error_of_the_older_one_is_told_too(tmp_path):
    found = files(tmp_path, "vllm serve org/model --kv-offloading-size 4\n", "0.11.3")
    first = catalog.listed("kv-offloading-size")
    assert first is not None
    wanted = ["warning"] if catalog.earlier("0.11.2", first[0]) else []
    assert severities(found, "engine/flag-newer") == wanted


@pytest.mark.parametrize("version", ["0.1.0", "0.33.1.dev9", "0.34.0rc1", "0.34.0"])
def test_one_neighbour_decides_nothing(tmp_path, version):
    found = files(tmp_path, "vllm serve org/model --no-such-thing\n", version)
    assert found.ok and severities(found, "truth/unknown-version") == ["warning"]


@pytest.mark.parametrize("version", ["0.19.1", " V0.19.1 ", "0.19.1+cu130", "v0.19.1-cu130"])
def test_a_listed_version_says_nothing_of_it(tmp_path, version):
    found = files(tmp_path, SWAP, version)
    assert found.engine == "vllm 0.19.1"
    assert severities(found, "truth/unknown-version") == []


def test_of_vllm_ascend(tmp_path):
    found = files(tmp_path, SWAP, "0.20.0rc1", "vllm-ascend")
    assert severities(found, "engine/flag-removed") == ["error"]
    assert "checked as 0.20.2rc1 and 0.19.1rc1" in str(found)


@pytest.mark.parametrize(
    "version",
    [
        "latest",
        "nightly",
        "main",
        " ",
        "1",
        "1.0",
        "0.35.0",
        "0.99.0",
        "9.9.9",
        "0.19.1; rm -rf /",
        "0..1",
        "1e9.2",
    ],
)
def test_what_is_no_version_is_refused(tmp_path, version):
    with pytest.raises(
        ParameterError, match=r"version .* is not known.* are judged by the nearest"
    ):
        files(tmp_path, SWAP, version)


@pytest.mark.parametrize(
    ("pin", "says"),
    [
        ("0.19.*", "vllm 0.19 is not among"),
        ("0.10.1.1", "vllm 0.10.1.1 is not among"),
        ("0.19.1_cu12", ""),
        ("0.19.1+cu128", ""),
        ("20250101", ""),
        ("0.19.1.", ""),
    ],
)
def test_a_pin_of_any_form_does_not_end_the_check(tmp_path, pin, says):
    found = files(tmp_path, f"pip install vllm=={pin}\n{SWAP}")
    told = [one.message for one in found.findings if one.rule == "truth/unknown-version"]
    assert [says in one for one in told] == [True] * bool(says)


def test_a_tag_is_judged_as_the_option_is(tmp_path):
    run = "docker run --gpus all -v /data:/root/.cache vllm/vllm-openai:v0.18.0rc1 --model m --swap-space 4\n"
    found = files(tmp_path, run)
    assert severities(found, "engine/flag-removed") == ["warning"]


def test_an_image_that_is_no_release_has_warnings(tmp_path):
    run = (
        "docker pull vllm/vllm-openai:v0.19.1\n"
        "docker run --gpus all -v /data:/root/.cache vllm/vllm-openai:glm51 --model m --swap-space 4\n"
    )
    assert severities(files(tmp_path, run), "engine/flag-removed") == ["warning"]


@pytest.mark.parametrize("said", ["0.10.1.1", "0.9.0.1", "0.8.5.post1"])
def test_a_version_of_four_parts_is_one(tmp_path, said):
    found = files(tmp_path, f"pip install vllm=={said}\n{SWAP}")
    assert severities(found, "truth/unknown-version") == ["warning"] and f"vllm {said} is" in str(
        found
    )


@pytest.mark.parametrize("said", ["0.x.y", "0.19."])
def test_what_a_script_names_and_is_no_version_ends_nothing(tmp_path, said):
    found = files(tmp_path, f"pip install vllm=={said}\nvllm serve m --port abc\n")
    assert severities(found, "engine/value") == ["error"]
