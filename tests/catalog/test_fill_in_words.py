"""Fill-ins as texts: what is one, the word that stands for it, and what is left alone."""

from __future__ import annotations

import pytest

from kimi_nb.catalog import fill_ins


def marked(text: str) -> str:
    """The text with the marks, of one that has < and > in their place."""
    return text.replace("<", fill_ins.MARK[0]).replace(">", fill_ins.MARK[1])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("serve <node0_ip> --port <PORT>", "serve <node0_ip> --port <PORT>"),
        ("serve <your model/path>", "serve <your_model_path>"),
        ("`<model>` x", "<model> x"),
        ("image:|vllm_ascend_version|-a3", "image:<vllm_ascend_version>-a3"),
        ("--port {{ .port }}{{- tp }}", "--port <.port><tp>"),
        ("--model [path of the model]", "--model <path_of_the_model>"),
        ("--model=[path of the model]", "--model=<path_of_the_model>"),
        ("--host { node0 ip }", "--host <node0_ip>"),
        ("--host {host} [the other host]", "--host <host> <the_other_host>"),
        # All forms at once, and the same one twice.
        ("<a> {b} |c_version| {{ d }} <a>", "<a> <b> <c_version> <d> <a>"),
    ],
)
def test_a_word_stands_for_a_fill_in(text, wanted):
    made = fill_ins.masked(text)
    assert made == marked(wanted)
    assert fill_ins.shown(made) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "a | b", "a < b > c", "1<a>2", "x[1]", "[a]", "echo ${A} {a,b}", "$((1 + 2))", "a\n<\nb"],
)
def test_what_is_none_is_left_alone(text):
    assert fill_ins.masked(text) == text


def test_in_a_sum_a_word_is_a_variable():
    made = fill_ins.masked("p=$((<port base> + 1)) <port base> $(({{ .n }}*<b-c>))")
    assert made == f"p=$((port_base + 1)) {marked('<port_base>')} $((_n*b_c))"


def test_no_more_than_a_thousand_of_a_kind():
    text = "{{ a }}" * 1001
    assert fill_ins.masked(text) == marked("<a>") * 1000 + "{{ a }}"
    for one, left in (("<a> ", "<a> "), ("`<a>` ", "`<a>` ")):
        made = fill_ins.masked(one * 2001)
        assert made.startswith(marked("<a> ") * 1000) and made.endswith(left)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a {{ .x }} b", "a {{ .x }} b"),
        ("a{% if x %}b{% endif %}c", "abc"),
        ("a {{- if .x }} b{{ end }}", "a  b"),
        ("a {% x %}\nb", "a \nb"),
        # Lines of tags alone: none is lost, and a command goes on over them.
        ("a\n{{ if .x }}\n  {% x %} \nb", "a\n\n\nb"),
        ("a \\\n{{ if .x }}\n  {{ end }}\n  --b\n{{ end }}", "a \\\n\\\n\\\n  --b\n"),
        ("{{ if .x }}\nserve", "\nserve"),
        ("a \\\n\nb {{ end }}", "a \\\n\nb "),
        ("a \\\n  \n{% x %}", "a \\\n  \n"),
    ],
)
def test_a_template_without_its_tags(text, wanted):
    assert fill_ins.untagged(text) == wanted
    assert fill_ins.masked(text) == fill_ins.masked(wanted)


def test_names_of_numbers():
    for text in ("PORT", "MAX_MODEL_LEN", "TP2", "A_1"):
        assert fill_ins.stands_for_number(text) is True
    for text in ("port", "PORT_", "_PORT", "2TP", "A__B", "A B", "PORT\n", "", "8"):
        assert fill_ins.stands_for_number(text) is False


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"a": <b>, "c": [${D},$(E), xxx]}', '{"a":"<b>", "c": ["${D}","$(E)","xxx"]}'),
        ('{"a": ...}', '{"a":"..."}'),
        ('{"a": {...}, "b": 1}', '{"a":"{...}", "b": 1}'),
        ('{"a": "<b>", "c": "x, ${D}"}', '{"a": "<b>", "c": "x, ${D}"}'),
        ('{"a": 1}', '{"a": 1}'),
    ],
)
def test_json_has_quotes_around_bare_ones(text, wanted):
    assert fill_ins.quoted(marked(text)) == marked(wanted)


HELD = ["$X", "${X:-1}", "$(x)", "a `b`", marked("<b>"), "{{ x }}", "<node ip>", "xxx", "a XX b"]
HELD += ["10.0.x.1.x", "192.168.1.xx", "x.x.x.x", "...", "{...}", "\u2026", "???", "---"]
HELD += ["node0_ip", "master_port", "your_model", "YOUR_KEY", "REPLACE_ME", "[the model]"]
LACK = [
    "",
    "8000",
    "a.b",
    "x",
    "box",
    "10.0.0.1",
    "a... b",
    "node ip",
    "yours",
    "a [b] c",
    "-",
    "$",
]


def test_what_holds_a_fill_in():
    assert [one for one in [*HELD, *LACK] if fill_ins.holds(one)] == HELD
    assert not fill_ins.holds(8000) and not fill_ins.holds(None) and fill_ins.holds(["$X"])


def test_a_long_text_is_searched_as_a_short_one_to_its_4000th_character():
    # Short ones are kept, so both sides of 200 characters.
    for length in (197, 198, 199, 200, 3998):
        assert fill_ins.holds("a" * (length - 1) + " $X") is True
        assert fill_ins.holds("a" * (length + 2)) is False
    assert fill_ins.holds("a" * 3999 + "$X") is False
    kept = fill_ins._holds.cache_info().currsize
    assert fill_ins.holds("b" * 199 + "$") is False
    assert fill_ins._holds.cache_info().currsize == kept
    assert fill_ins.holds("b" * 198 + "$") is False
    assert fill_ins._holds.cache_info().currsize == kept + 1
