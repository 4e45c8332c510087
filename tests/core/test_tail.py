"""Log files that grow: whole lines once each, and what counts as progress."""

from __future__ import annotations

from kimi_nb.core.tail import Tails


def append(path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_each_whole_line_is_read_once(tmp_path):
    a, b, tails = tmp_path / "a", tmp_path / "b", Tails()
    append(a, b"one\ntwo\nthr")
    assert tails.read([tmp_path / "none", a, b]) == {a: ["one", "two"]}
    append(a, b"ee\n")
    append(b, b"\xff \x1b[1;31mred\x1b[0m\r\n\n")
    assert tails.read([a, b]) == {a: ["three"], b: ["\ufffd red", ""]}
    assert tails.read([a, b]) == {}
    append(b, b"half")
    assert tails.read([b]) == {}
    append(b, b"\nmore\n")
    assert tails.read([b]) == {b: ["half", "more"]}
    assert tails.lines == {a: ["one", "two", "three"], b: ["\ufffd red", "", "half", "more"]}


def test_a_line_is_progress_but_for_one_that_waits_for_the_same(tmp_path):
    path, tails, seen = tmp_path / "a", Tails(), []
    assert tails.progress == 0
    lines = ("x", "x", "10:01 Waiting for a", "10:02 Waiting for a", "Waiting for b")
    for line in (*lines, "Waiting for b", "y", "Waiting for b", "Waiting for "):
        append(path, f"{line}\n".encode())
        tails.read([path])
        seen.append(tails.progress)
    assert seen == [1, 2, 3, 3, 4, 4, 5, 6, 7]


def test_files_wait_each_for_themselves(tmp_path):
    a, b, tails = tmp_path / "a", tmp_path / "b", Tails()
    append(a, b"Waiting for x\n")
    append(b, b"Waiting for x\n")
    tails.read([a, b])
    assert tails.progress == 2
    append(a, b"Waiting for x\n")
    append(b, b"Waiting for y\n")
    tails.read([a, b])
    assert tails.progress == 3
