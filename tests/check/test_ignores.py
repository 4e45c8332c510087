"""Comments that ignore a rule: for which lines they speak, and that nothing vanishes silently."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kimi_nb.check import formats
from kimi_nb.check.reading import assemble, ignores, syntax
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry
from kimi_nb.cli.main import main

ASK = "# kimi-nb: ignore[engine/flag-unknown]"


def checked(text: str, name: str = "run.sh"):
    read = Text(name, "", _kind(Path(name), text), text)
    return registry.check(assemble.of_texts([read], "vllm", "0.19.1"))


def lines(found) -> list[int]:
    """Where an unknown flag is still told."""
    return sorted(
        line
        for one in found.findings
        if one.rule == "engine/flag-unknown"
        for line in (one.line, *one.also)
    )


@pytest.mark.parametrize(
    "text",
    [
        f"{ASK} why\nvllm serve m --nope\n",
        f"vllm serve m --nope  {ASK} why\n",
        f"{ASK} why\n# another comment\n\nvllm serve m --nope\n",
        f"{ASK} why\nvllm serve m \\\n  --port 8000 \\\n  --nope\n",
        f"vllm serve m \\\n  --nope \\\n  --port 8000 {ASK} why\n",
        f"{ASK} why\nvllm serve m --hf-overrides '{{\n \"a\": 1}}' \\\n  --nope\n",
        f"{ASK} why\nA=1 vllm serve m --nope | tee log\n",
        f"if true; then\n  {ASK} why\n  vllm serve m --nope\nfi\n",
        f"start() {{\n  vllm serve m --nope {ASK} why\n}}\nstart\n",
        f"{ASK} why\nif true; then vllm serve m --nope; fi\n",
        "# kimi-nb: ignore[security/open-api, engine/flag-unknown] why\nvllm serve m --nope\n",
        "#kimi-nb:ignore [ engine/flag-unknown ]  why <host> not\nvllm serve m --nope\n",
        f"cat > s.sh <<'EOF'\n{ASK} why\nvllm serve m --nope\nEOF\nbash s.sh\n",
    ],
)
def test_a_comment_speaks_for_its_command(text):
    assert lines(checked(text.replace("kimi-nb:", "note:")))  # it is there without
    found = checked(text)
    assert not lines(found)
    assert [one.rule for one, _ in found.ignored if one.rule.startswith("engine/")] == [
        "engine/flag-unknown"
    ]
    assert not [one for one in found.findings if one.rule.startswith("ignores/")]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{ASK} why\nvllm serve m --nope\nvllm serve m --nope --port 1\n", [3]),
        (f"vllm serve m --nope\nvllm serve m --nope --port 1 {ASK} why\n", [1]),
        (f"vllm serve m --nope\n{ASK} why\n", [1]),
        (f"echo '{ASK} why'\nvllm serve m --nope\n", [2]),
        (f"{ASK}\nvllm serve m --nope\n", [2]),
        ("# kimi-nb: ignore[engine/flag-unkown] why\nvllm serve m --nope\n", [2]),
        ("# kimi-nb: ignore why\nvllm serve m --nope\n", [2]),
    ],
)
def test_no_other_command_is_spoken_for(text, wanted):
    assert lines(checked(text)) == wanted


COMPOSE = """\
services:
  one:{service}
    image: vllm/vllm-openai:v0.19.1
    {above}
    command:{behind}
      - --model=m
      - --nope{item}
  two:
    image: vllm/vllm-openai:v0.19.1
    command: --model m --nope
"""


@pytest.mark.parametrize("place", ["service", "above", "behind", "item"])
def test_comments_of_yaml(place):
    holes = dict.fromkeys(("service", "above", "behind", "item"), "")
    before = lines(checked(COMPOSE.format(**holes), "compose.yaml"))
    assert len(before) == 2
    text = COMPOSE.format(**{**holes, place: f" {ASK} why"})
    found = checked(text, "compose.yaml")
    assert lines(found) == before[1:]
    assert not [one for one in found.findings if one.rule == "ignores/unused"]


def test_a_script_inside_yaml():
    text = (
        "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata:\n  run.sh: |\n    #!/bin/bash\n"
        f"    {ASK} why\n    vllm serve m \\\n      --nope\n    vllm serve m --nope --port 1\n"
    )
    found = checked(text, "map.yaml")
    assert lines(found) == [10]
    assert not [one for one in found.findings if one.rule.startswith("ignores/")]


def test_documents_and_dockerfiles():
    text = f"# Serve\n\n```bash\n{ASK} why\nvllm serve m --nope\n```\n"
    assert lines(checked(text, "a.md")) == [] != lines(checked(text.replace("why", ""), "a.md"))
    text = f'FROM vllm/vllm-openai:v0.19.1\n{ASK} why\nCMD ["--model", "m", "--nope"]\n'
    assert lines(checked(text, "Dockerfile")) == []
    assert lines(checked(text.replace("why", ""), "Dockerfile")) == [3]


def test_what_is_ignored_is_counted_and_kept():
    found = checked(f"{ASK} the test cluster\nvllm serve m --nope --host 127.0.0.1\n")
    assert found.ok and "Ignored by comments: 1 error, 0 warnings, 0 notes." in found.verdict
    (ignored,) = found.as_dict()["ignored"]
    assert ignored["reason"] == "the test cluster" and ignored["line"] == 2
    results = formats.sarif(found)["runs"][0]["results"]
    (result,) = [one for one in results if "suppressions" in one]
    assert result["ruleId"] == "engine/flag-unknown"
    assert result["suppressions"] == [{"kind": "inSource", "justification": "the test cluster"}]


def test_the_exit_code(tmp_path, capsys):
    script = tmp_path / "run.sh"
    script.write_text(f"{ASK} why\nvllm serve m --nope\n")
    asked = ["check", str(script), "--engine-version", "0.19.1"]
    assert main(asked) == 0
    script.write_text(f"{ASK}\nvllm serve m --nope\n")
    assert main(asked) == 1
    assert "gives no reason [ignores/form]" in capsys.readouterr().out


def test_thousands_of_comments_are_no_load():
    """A file may hold 256 KB of them."""
    script = f"{ASK} why\nA=1\n" * 4000
    begin = time.process_time()
    assert len(ignores.of_script(syntax.tree(script).root_node, "a", 1)) == ignores.MOST
    text = f"{ASK} why\n" * 4000 + "a:\n" + " b\n" * 4000
    assert len(ignores.of_lines(text, "a", 1)) == ignores.MOST
    assert time.process_time() - begin < 5
