"""A checkout that may hold anything: each fault is a sentence, and nothing outside is read."""

from __future__ import annotations

import json
import os
import time

import pytest
from small_checkouts import COMMIT, PAGE, ascend, recipes, write

from kimi_nb import upstream
from kimi_nb.cli.main import main
from kimi_nb.core.errors import ParameterError
from kimi_nb.upstream import published, vllm_recipes
from kimi_nb.upstream.checkout import open_checkout

OTHER = "f" * 40
MERGES = "a0: &a0 {x: 1, y: 2, z: 3}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    "files, commit",
    [
        ({".git/HEAD": COMMIT}, COMMIT),
        ({".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{COMMIT}\n"}, COMMIT),
        (
            {
                ".git/HEAD": "ref: refs/heads/main",
                ".git/packed-refs": f"# pack-refs\n{OTHER} refs/heads/mai\n{COMMIT} refs/heads/main\n",
            },
            COMMIT,
        ),
        ({".git/HEAD": "ref: refs/heads/main"}, "unknown"),
        ({".git/HEAD": "ref: refs/../../secret"}, "unknown"),
        ({".git/HEAD": "x" * 9000}, "unknown"),
        ({".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": "no commit"}, "unknown"),
    ],
)
def test_the_commit_is_read_without_git(tmp_path, files, commit):
    recipes(tmp_path)
    assert open_checkout(write(tmp_path, files)).commit == commit


def test_a_git_that_leads_elsewhere_is_not_followed(tmp_path):
    recipes(tmp_path / "mine")
    (tmp_path / "mine/.git/HEAD").unlink()
    (tmp_path / "HEAD").write_text(OTHER)
    (tmp_path / "mine/.git/HEAD").symlink_to(tmp_path / "HEAD")
    assert open_checkout(tmp_path / "mine").commit == "unknown"


def test_a_folder_that_is_no_checkout(tmp_path):
    with pytest.raises(ParameterError, match="no such folder"):
        open_checkout(tmp_path / "nowhere")
    with pytest.raises(ParameterError, match=r"neither .* has taxonomy\.yaml"):
        open_checkout(tmp_path)


def unread(root) -> list[str]:
    """What is left out of a checkout of recipes."""
    checkout = open_checkout(root)
    found = list(vllm_recipes.read(checkout))
    assert {one.source.path for one in found} <= {"models/acme/Kimi-Toy.yaml"}
    return checkout.unread


@pytest.mark.parametrize(
    "text, said",
    [
        (MERGES, "merge keys"),
        ("a: &a [*a]", "unfold"),
        ("a: " + "[" * 100_000, "64 levels"),
        ("- a\n- b", "found a list"),
        ("a: b: c", "line 1"),
        ("model: 7", "model: Input should be a valid dictionary"),
        ("#" * (2 << 20), "larger than 1 MB"),
        ("guide: " + "x" * (200 << 10), "its guide is larger than 128 KB"),
    ],
)
def test_a_hostile_page_is_one_sentence_and_takes_no_time(tmp_path, text, said):
    recipes(tmp_path)
    (tmp_path / "models/acme/Odd.yaml").write_text(text)
    begun = time.monotonic()
    (found,) = unread(tmp_path)
    assert time.monotonic() - begun < 20
    assert found.startswith("models/acme/Odd.yaml") and said in found
    assert len(found) < 500 and "\n" not in found and str(tmp_path) not in found


def test_what_is_no_file_or_lies_outside(tmp_path):
    root = recipes(tmp_path / "mine")
    (tmp_path / "secret.yaml").write_text(PAGE)
    models = root / "models/acme"
    (models / "Out.yaml").symlink_to(tmp_path / "secret.yaml")
    (models / "Self.yaml").symlink_to(models / "Self.yaml")
    (models / "Folder.yaml").mkdir()
    os.mkfifo(models / "Pipe.yaml")
    with (models / "Sparse.yaml").open("wb") as file:
        file.truncate(100 << 20)
    (models / "Bytes.yaml").write_bytes(b"\xff\xfe")
    said = dict(line.split(": ", 1) for line in unread(root))
    assert {path.rpartition("/")[2]: why for path, why in said.items()} == {
        "Bytes.yaml": "not a text in UTF-8.",
        "Out.yaml": "a link that leads out of the checkout.",
        "Pipe.yaml": "not a regular file.",
        "Self.yaml": "a link that leads out of the checkout.",
        "Sparse.yaml": "larger than 1 MB.",
    }


def test_a_folder_that_leads_outside_is_not_entered(tmp_path):
    root = recipes(tmp_path / "mine")
    (root / "models").rename(tmp_path / "elsewhere")
    (root / "models").symlink_to(tmp_path / "elsewhere")
    assert unread(root) == ["models: a link that leads out of the checkout."]


def test_values_as_published():
    words = ["-tp", "8", "--max_model_len=32k", "--json", '{"a": NaN}', "--x", "a", "b", "--x", "1"]
    assert published.pairs(words) == (
        ("--tensor-parallel-size", 8),
        ("--max-model-len", "32k"),
        ("--json", '{"a": NaN}'),
        ("--x", 1),
    )
    assert published.value_of("[" * 100_000) == "[" * 100_000
    assert published.layout(published.pairs(["-tp", "$7"])).tp is None


def test_the_command_lists_and_prints_every_fact(tmp_path, capsys):
    one, two = recipes(tmp_path / "recipes"), ascend(tmp_path / "ascend")
    assert main(["upstream", str(one), str(two), "--list"]) == 0
    shown = capsys.readouterr().out
    assert f"vllm-project/recipes, commit {COMMIT}" in shown
    assert "left out: " in shown and "the case proxy has no server_cmd" in shown
    assert main(["upstream", str(one), str(two), "--model", "nvfp4", "--list", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads(json.dumps(upstream.read([one, two], "nvfp4").as_dict()))
    assert {one["model"] for one in facts["deployments"]} == {"nvidia/Kimi-Toy-NVFP4"}
    first = facts["deployments"][0]
    assert first["roles"][0]["argv"][0] == ["--trust-remote-code", True]
    assert first["roles"][0]["layout"]["tp"] == 8 and COMMIT in first["source"]["url"]


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    assert main(["upstream", str(tmp_path)]) == 2
    assert "neither a checkout of" in capsys.readouterr().err
    assert main(["upstream", str(recipes(tmp_path)), "--model", "qwen"]) == 2
    said = capsys.readouterr().err
    assert "No deployment of a model with 'qwen' in its name" in said and "Traceback" not in said
