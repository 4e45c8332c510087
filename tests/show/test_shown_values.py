"""Values as HTML: numbers, marks, long and hostile cells, long tables, scripts and their fold."""

from __future__ import annotations

import html
import re

import pytest

from kimi_nb import i18n
from kimi_nb.show import File, Files, Quote, Table, Text
from kimi_nb.show.fixed_width import Preformatted
from kimi_nb.show.frame import style
from kimi_nb.show.parts import Line, Mark, Parts

HOSTILE = "<script>alert(1)</script>"


def drawn(value) -> str:
    """The HTML without its style sheet."""
    text = value._repr_html_()
    assert text.count(style()) == 1 and text.startswith(style())
    return text.removeprefix(style())


def plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", text))


def test_numbers_with_units_stand_at_the_right():
    table = Table(
        "", ("a", "n", "size", "mixed"), (("x", 12, "4.8 GiB (estimated)", 1), ("y", "", "-", "?"))
    )
    text = drawn(table)
    assert '<th class="num">n</th><th class="num">size</th><th>mixed</th>' in text
    assert '<td class="num">12</td><td class="num">4.8 GiB (estimated)</td>' in text


@pytest.mark.parametrize("text", ["0.22.1rc1", "0-15", "7100-7101", "32 of 36", "192.0.2.11", "-"])
def test_what_is_no_number_stands_at_the_left(text):
    assert "num" not in drawn(Table("", ("what",), ((text,),)))


@pytest.mark.parametrize("heading", ["status", "severity", "verdict", "result"])
def test_a_word_of_a_status_is_a_mark_under_its_heading_only(heading):
    text = drawn(Table("", ("what", heading), (("ok", "ok"), ("x", "left out"), ("y", "odd"))))
    assert text.count('class="mark ok"') == 1 and 'class="mark left-out">left out<' in text
    assert ">odd<" in text
    assert 'class="mark failed"' in drawn(Table("", ("what", "is"), (("result", "failed"),)))


def test_no_loud_row_stands_behind_a_click():
    rows = tuple(("note", str(at)) for at in range(30))
    text = drawn(Table("", ("severity", "what"), rows))
    assert '<details class="more"><summary>20 more rows</summary>' in text
    assert text.index(">9<") < text.index('<tbody class="rest">') < text.index(">10<")
    loud = (*rows[:20], ("error", "the last"), *rows[:9])
    text = drawn(Table("", ("severity", "what"), loud))
    assert text.index("the last") < text.index('<tbody class="rest">')
    within = tuple((Line("x", Mark("failed")),) for _ in range(30))
    assert "more rows" not in drawn(Table("", ("what",), within))
    assert "more rows" not in drawn(Table("", ("severity", "what"), rows[:14]))


def test_a_long_word_breaks_at_its_slashes_and_a_short_one_nowhere():
    url = "https://github.com/vllm-project/vllm-ascend/issues/15238"
    text = drawn(Table("", ("do",), ((f"Restart the proxy of all-to-all traffic. {url}",),)))
    parts = 'https://github.<wbr>com/<wbr><span class="whole">vllm-project/</span><wbr>'
    assert parts in text
    assert '<span class="whole">all-to-all</span>' in text
    assert url in plain(text)  # copied as it is
    path = "/root/kimi/models/Kimi-K2.5-W4A8"
    assert "/root/<wbr>kimi/<wbr>models/" in drawn(Table("", ("path",), ((path,),)))


def test_dollars_are_no_formula_in_jupyterlab():
    """It would set what stands between two of them as mathematics."""
    text = drawn(Table("", ("do",), (("export PATH=$VIRTUAL_ENV/bin:$PATH",),)))
    assert '<div class="kimi mathjax_ignore">' in text and "$VIRTUAL_" in text


def test_a_name_may_break_at_its_joints_and_an_option_nowhere():
    text = drawn(Table("", ("name",), (("HCCL_OP_EXPANSION_MODE",), ("--max-num-seqs",))))
    assert 'HCCL_<wbr class="tight">OP_<wbr class="tight">EXPANSION_' in text
    assert '<span class="whole option">--max-num-seqs</span>' in text
    assert "192.168.100.121:<wbr" in drawn(Table("", ("at",), (("192.168.100.121:7100",),)))
    assert "requests/<wbr>s" in drawn(Table("", ("requests/s",), (("1",),)))


def test_what_strangers_say_is_escaped():
    long = f"{HOSTILE}-{'x' * 60}/{HOSTILE} and {HOSTILE}-a " + HOSTILE * 9
    for value in (
        Table(HOSTILE, (HOSTILE, "status"), ((long, HOSTILE), (HOSTILE, "ok"))),
        Text(HOSTILE, f"{HOSTILE}\n" * 50),
        Files(HOSTILE, (File(HOSTILE, HOSTILE, (HOSTILE,)), File("a", "", hidden=HOSTILE))),
        Parts(Preformatted(HOSTILE), Mark(HOSTILE)),
    ):
        text = drawn(value)
        assert "<script" not in text and "&lt;script" in text


def test_a_long_text_is_folded_and_each_can_be_copied():
    assert "<details>" in drawn(Text("a.sh", "line\n" * 31))
    short = drawn(Text("a.sh", "line\n" * 30))
    assert "<details>" not in short and "<button" in short
    assert "<button" not in drawn(Text("", "no change"))
    assert "<button" not in drawn(Parts(Preformatted("a\nb")))  # for a page that runs nothing


def test_files_are_folded_one_by_one_and_one_is_only_named():
    files = Files(
        "bundle/a",
        (
            File("a/run.sh", "echo run\n", ("b/run.sh",)),
            File("a/node.sh", "é\n" * 9, hidden="/tmp/a/node.sh"),
        ),
    )
    text = drawn(files)
    assert text.count("<details>") == 1 and text.count("<button") == 1
    assert "1 line; the same: b/run.sh" in text
    assert "9 lines, 27 bytes, not shown here: /tmp/a/node.sh" in text
    assert "echo run" in files.text and "é" not in str(files) + text


def test_frames_within_a_frame_bring_no_style_of_their_own():
    table = Table("", ("a",), (("b",),))
    assert (
        drawn(Parts(table, Parts(table, Text("", "x\ny")))).count('class="kimi mathjax_ignore"')
        == 5
    )


def test_what_another_program_said_is_not_translated(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sesame-4711")
    said = "no answer: say in one sentence what you are. sesame-4711"
    table = Table("", ("what", "is"), (("answer", Quote(said)), ("answer", Quote(HOSTILE))))
    with i18n.using("zh"):
        text, page = str(table), plain(drawn(table))
    for one in (text, page):
        assert "no answer: say in one sentence what you are. [redacted]" in one and "回答" in one
    assert HOSTILE not in drawn(table) and HOSTILE in page


def test_a_chinese_sentence_breaks_around_the_names_in_it():
    said = "两侧使用相同的--max-model-len，在客户端检查长度"
    text = drawn(Table("", ("what",), ((said,),)))
    assert (
        '两侧使用相同的<span class="whole option">--max-model-len</span>，在客户端检查长度' in text
    )
