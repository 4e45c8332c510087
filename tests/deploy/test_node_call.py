"""The text of a call, as bash on a node reads it, and the lines that it answers."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import tarfile

import pytest

from kimi_nb.deploy import node_call
from kimi_nb.deploy.node_call import Line

SCRIPT = r"""#!/usr/bin/env bash
# Says what it was given.
say() {
    printf '%s\t%s\t%s\n' "$1" "$2" "$3"
}
value() {
    # One variable.
    say fact "$1" "$(printf '%s' "${!1-unset}" | base64 -w 0)"
}
all() {
    local name
    for name in RUN HOLDER DRY SEEN CHECKSUMS LEAVE_HOST FILES ARCHIVE DOWNLOAD EDIT CHECK_WEIGHTS; do value "$name"; done
    say fact exported "$(printenv TOKEN | base64 -w 0)"
    say fact args "$*"
    say fact input "$(cat | base64 -w 0)"
}
look() {
    all "$@"
}
push() {
    all "$@"
}
weights() {
    all "$@"
}
other() {
    say fact other ""
}
quiet() {
    :
}
both() {
    first; second
}
first() {
    below_first
}
second() {
    below_second
}
below_first() {
    :
}
below_second() {
    :
}

# The verbs, one by one.
for verb in "$@"; do "$verb" "$@"; done
  # the end
"""
HOSTILE = "a'b\"c $(touch hacked) `id`\n\\ é\t$RUN"
FILES = {
    "node.sh": SCRIPT,
    "node.env": "WORK='/w'\nHOLDER_OF=\"$HOLDER\"",
    "check_weights.py": "print('ok')\n",
    "edit_b.py": "b = 'é'\n",
    "edit_a.py": "a = 1\n",
    "serve.sh": "echo\n",
    "notes.txt": "x\n",
}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "node"
    (made / "logs").mkdir(parents=True)
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


@pytest.fixture
def told(folder, tmp_path):
    """Returns what a call says on a node, by name; the values as text."""

    def made(verbs, **more) -> dict[str, str]:
        text = node_call.text(folder, verbs, **{"run": "r1"} | more)
        done = subprocess.run(
            node_call.READER, input=text, capture_output=True, text=True, timeout=60, cwd=tmp_path,
            env={"PATH": os.environ["PATH"]}, check=True,
        )  # fmt: skip
        assert done.stderr == "" and not (tmp_path / "hacked").exists()
        assert done.stdout.startswith("\n")
        lines = node_call.lines(done.stdout.splitlines())
        return {
            one.thing: one.text if one.thing == "args" else base64.b64decode(one.text).decode()
            for one in lines
        }

    return made


# The call -------------------------------------------------------------------------------------


def test_a_call_without_more(told, folder):
    files = {name: text.encode() for name, text in FILES.items()}
    assert told(["look"]) == {
        "RUN": "r1", "HOLDER": "", "DRY": "", "SEEN": "", "CHECKSUMS": "", "LEAVE_HOST": "",
        "FILES": node_call.digest(files), "ARCHIVE": "unset", "DOWNLOAD": "unset", "EDIT": "unset",
        "CHECK_WEIGHTS": "unset", "exported": "", "args": "look", "input": "",
    }  # fmt: skip


@pytest.mark.parametrize("said", ["me@laptop", HOSTILE, ""])
def test_words_of_people_are_words(said, told):
    found = told(["look"], run=said, holder=said, seen=said, secrets={"TOKEN": said})
    assert {found["RUN"], found["HOLDER"], found["SEEN"]} == {said}
    assert found["exported"] == f"{said}\n"


@pytest.mark.parametrize(
    ("option", "name"), [("dry", "DRY"), ("checksums", "CHECKSUMS"), ("leave_host", "LEAVE_HOST")]
)
def test_an_option_is_1_or_nothing(option, name, told):
    found = told(["look"], **{option: True})
    assert found[name] == "1"
    assert [found[one] for one in ("DRY", "CHECKSUMS", "LEAVE_HOST")].count("1") == 1


def test_weights_get_what_they_need(told):
    found = told(["weights"])
    assert (found["DOWNLOAD"], found["ARCHIVE"]) == ("", "unset")
    # In the order of the names. The end of a text is lost where a shell takes it in.
    assert found["EDIT"] == "a = 1\nb = 'é'\n" and found["CHECK_WEIGHTS"] == "print('ok')\n"
    assert told(["weights"], download=True)["DOWNLOAD"] == "1"
    assert told(["look"], download=True)["DOWNLOAD"] == "unset"


def test_a_push_brings_the_files(told, folder):
    packed = base64.b64decode(told(["push"])["ARCHIVE"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        there = {one.name: (one.mode, archive.extractfile(one).read()) for one in archive}
    assert {name: data.decode() for name, (_, data) in there.items()} == FILES
    runs = {name for name, (mode, _) in there.items() if mode == 0o755}
    assert runs == {name for name in FILES if name.endswith((".sh", ".py"))}
    assert {mode for mode, _ in there.values()} == {0o755, 0o644}
    (folder / "serve.sh").touch()
    assert base64.b64decode(told(["push"])["ARCHIVE"]) == packed
    assert [*there] == sorted(FILES)


def test_several_verbs_are_done_in_their_order(folder):
    text = node_call.text(folder, ["look", "push", "two words"], run="r1")
    assert "\nset -- look push 'two words'\n" in text
    assert text.index("ARCHIVE=") < text.index("WORK='/w'") < text.index("set -- ")


def test_only_what_the_verbs_need_travels(folder):
    lines = node_call.text(folder, ["look"], run="r1").splitlines()
    assert [line for line in lines if line.endswith("() {")] == [
        "say() {",
        "value() {",
        "all() {",
        "look() {",
    ]
    assert not [line for line in lines if line.strip().startswith("#") or not line.strip()]
    assert lines[-1] == "} < /dev/null" and lines[0] == "echo"
    assert 'for verb in "$@"; do "$verb" "$@"; done' in lines
    assert "other() {" in node_call.text(folder, ["other"], run="r1")
    assert "say() {" in node_call.text(folder, ["other"], run="r1")
    assert "value() {" not in node_call.text(folder, ["other"], run="r1")


def test_what_functions_need_travels_with_them(folder):
    def functions(*verbs: str) -> list[str]:
        lines = node_call.text(folder, verbs, run="r1").splitlines()
        return [line.removesuffix("() {") for line in lines if line.endswith("() {")]

    assert functions("quiet") == ["say", "quiet"]  # the script itself says what was called
    assert functions("both") == ["say", "both", "first", "second", "below_first", "below_second"]
    assert functions("quiet", "first") == ["say", "quiet", "first", "below_first"]
    assert functions("unknown") == ["say"]


def test_a_secret_is_in_no_file_of_the_call(folder):
    text = node_call.text(folder, ["push"], run="r1", secrets={"TOKEN": "hunter2", "B": "x y"})
    assert text.count("hunter2") == 1 and "\nexport TOKEN=hunter2\nexport B='x y'\n" in text
    assert b"hunter2" not in base64.b64decode(text.partition("ARCHIVE=")[2].partition("\n")[0])


# Files ----------------------------------------------------------------------------------------


def test_files_have_a_digest():
    one = {"a": b"x\n", "b": b"y\xff"}
    assert node_call.digest(one) == node_call.digest(dict(reversed(one.items())))
    others = [
        {"a": b"x\n"},
        {"a": b"x\n", "b": b"z"},
        {"a": b"x\n", "c": b"y\xff"},
        {"a": b"x", "b": b"\ny\xff"},
        {"a": b"y\xff", "b": b"x\n"},
        {"a": b"x\nb 2\ny\xff"},
        {},
    ]
    found = {node_call.digest(each) for each in [one, *others]}
    assert len(found) == len(others) + 1 and {len(each) for each in found} == {16}
    # The same on every machine and with every version, as nodes remember it.
    assert node_call.digest({"node.sh": b"x\n"}) == "faaac377da94fc60"


# Answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("fact\tverb\tlook", Line("fact", "verb", "look")),
        ("fact\tverb\tlook\n", Line("fact", "verb", "look")),
        ("fail\tdisk\t", Line("fail", "disk", "")),
        ("warn\t\tx", Line("warn", "", "x")),
        ("fact\tfile\tXX", Line("fact", "file", "XX")),
        ("fact\tlog\ta\tb", Line("fact", "log", "a\tb")),
        *((f"{kind}\tx\ty", Line(kind, "x", "y")) for kind in node_call.KINDS),
        ("Welcome!", None),
        ("fact", None),
        ("fact\tverb", None),
        ("Fact\tverb\tlook", None),
        (" fact\tverb\tlook", None),
        ("debug\tverb\tlook", None),
        ("bash: fact\tverb\tlook", None),
        ("", None),
    ],
)
def test_a_line_of_an_answer(said, line):
    assert node_call.lines([said]) == ([] if line is None else [line])
    assert node_call.lines(["noise", said, "same\ta\tb"])[-1] == Line("same", "a", "b")
