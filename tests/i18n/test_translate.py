"""Translation at the edge: which language, sentences in sentences, hostile values, and its speed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from kimi_nb import i18n, show
from kimi_nb.check import judge
from kimi_nb.cli import main as cli_main
from kimi_nb.core.errors import ParameterError
from kimi_nb.diagnose import doctor, faq
from kimi_nb.i18n import catalogue
from kimi_nb.i18n.templates import Template
from kimi_nb.plan import build


@pytest.fixture
def chinese():
    with i18n.using("zh"):
        yield


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "C", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"KIMI_NB_LANG": "zh", "LC_ALL": "en_US.UTF-8"}, "zh"),
        ({"KIMI_NB_LANG": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"KIMI_NB_LANG": "fr"}, "en"),
    ],
)
def test_the_language_is_that_of_the_environment(monkeypatch, environment, language):
    for name in ("KIMI_NB_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert i18n.current() == language


def test_what_is_set_is_stronger_than_the_environment(chinese):
    assert i18n.current() == "zh"
    with i18n.using("en"):
        assert i18n.translate("rank died") == "rank died"
    with pytest.raises(ValueError, match="Allowed: en, zh"):
        i18n.use("fr")


def test_values_are_found_from_both_ends():
    found = list(Template("{a} ({b})").matches("x (y) (z)"))
    assert found == [{"a": "x", "b": "y) (z"}, {"a": "x (y)", "b": "z"}]
    assert list(Template("{a} and {a}").matches("1 and 2")) == []
    assert list(Template("at {a} end").matches("at end")) == []


def test_sentences_inside_sentences(chinese):
    assert i18n.translate("a3-2, rank 5: rank died at start: exit code 1") == (
        "a3-2，rank 5：rank 在启动时退出：退出码 1"
    )
    assert i18n.translate("node-1: the node is unreachable") == "node-1：节点不可达"
    assert i18n.translate("Take the flag out. https://example.org/a") == (
        "去掉该参数。https://example.org/a"
    )


def test_a_refused_plan_is_told_line_by_line(chinese):
    told = i18n.translate(
        "k2.5-a3-pd: 1 error, 0 warnings, 2 notes. 160 rules asked of vllm-ascend 0.22.1rc1, 2 skipped.\n"
        "a3-1 rank 0: rank 4 does not exist: dp 4 has ranks 0 to 3. Take the flag out. [topology/ranks]"
    )
    assert told == (
        "k2.5-a3-pd：1 个错误、0 个警告、2 个提示。对 vllm-ascend 0.22.1rc1 应用了 160 条规则，跳过 2 条。\n"
        "a3-1 rank 0：rank 4 不存在：dp 4 的 rank 为 0 到 3。去掉该参数。 [topology/ranks]"
    )


def test_what_is_not_known_stays_english(chinese):
    for text in ("", "k2.5", "nobody wrote this sentence", "{key} is not here, {x", "a\n\n  b"):
        assert i18n.translate(text) == text


def test_hostile_values_stay_escaped_text(chinese):
    text = "rank <img src=x onerror=alert(1)> does not exist: dp </script> has ranks 0 to 1"
    table = show.Table("{title}", ("what",), ((text,),))
    shown = table._repr_html_()
    assert "不存在" in shown and "<img" not in shown and "</script" not in shown


def test_a_long_hostile_text_is_quick(chinese):
    begun = time.perf_counter()
    i18n.translate("rank " * 3000 + "does not exist: dp has ranks 0 to " * 100)
    assert time.perf_counter() - begun < 2


def test_a_page_of_findings_is_quick(chinese):
    found = judge.plan(build.plan("k2.5", "a3", "pd"))
    texts = [text for one in found.findings for text in (one.told, one.fix, one.severity)]
    i18n.translate("the catalogue is read now")
    fresh = catalogue.Catalogue(catalogue.load("zh")._messages)
    begun = time.perf_counter()
    told = [fresh.translate(text) for text in texts]
    assert time.perf_counter() - begun < 0.2  # 15 ms; the machine may be busy
    assert sum(one == text for one, text in zip(told, texts, strict=True)) <= len(texts) // 20


def test_findings_diagnoses_and_errors_are_chinese_and_json_is_not(chinese):
    found = judge.plan(build.plan("k2.5", "a3", "pd"))
    assert "个警告" in str(found) and "文档写的是" in found._repr_html_()
    assert found.as_dict()["findings"][0]["severity"] == "warning"
    report = doctor.examine(doctor.SAMPLE)
    assert "显存不足" in str(report) and "负载下" in report._repr_html_()
    assert report.as_dict()["first"]["cause"] == "out of memory under load"
    shown = ParameterError(
        "check: --select and --ignore leave no rule to ask."
    )._render_traceback_()
    assert "没有留下任何规则" in shown[0]


@pytest.mark.parametrize(
    ("question", "entry"),
    [
        ("显存不足", "out-of-memory"),
        ("端口被占用", "port-taken"),
        ("权重缺失", "weights-missing"),
        ("KV cache 太小", "cache-too-small"),
        ("回答乱码", "garbled-ascend"),
    ],
)
def test_the_faq_is_searched_in_chinese_in_any_language(question, entry):
    assert entry in faq.search(question).ids


def test_the_command_line_speaks_chinese():
    done = subprocess.run(
        [sys.executable, "-m", "kimi_nb", "plan", "--model", "k2.5", "--hw", "a33"],
        env={**os.environ, "KIMI_NB_LANG": "zh", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "是否想写 'a3'" in done.stderr


def test_a_table_of_chinese_keeps_its_columns(chinese):
    from wcwidth import wcswidth

    rows = (("first", "the node is unreachable"), ("next", "k2.5"))
    lines = str(show.Table("", ("what", "value"), rows)).splitlines()
    starts = {
        wcswidth(line[: line.index(word)])
        for line, word in zip(lines[2:], ("节点", "k2.5"), strict=True)
    }
    assert len(starts) == 1


@pytest.mark.parametrize("command", ["", *cli_main.COMMANDS])
def test_help_is_chinese(chinese, capsys, command):
    with pytest.raises(SystemExit):
        cli_main.main([*filter(None, [command]), "--help"])
    told = capsys.readouterr().out
    assert "用法: kimi-nb" in told and "显示这份帮助并退出" in told
    assert not re.search(r"(?:\b[a-z]{2,} ){3}[a-z]{2,}\b", told)
    assert max(map(len, told.splitlines())) <= 100


def test_a_mistake_on_the_command_line_is_told_in_chinese(chinese, capsys):
    with pytest.raises(SystemExit) as ended:
        cli_main.main(["run", "--model", "k2.5", "--hw", "a3", "--jobs", "x"])
    assert ended.value.code == 2
    assert "kimi-nb run: 错误: 参数 --jobs：无效的 int 值：'x'" in capsys.readouterr().err


def test_english_help_reads_no_catalogue(capsys):
    catalogue.load.cache_clear()
    with i18n.using("en"), pytest.raises(SystemExit):
        cli_main.main(["up", "--help"])
    assert "usage: kimi-nb up" in capsys.readouterr().out
    assert catalogue.load.cache_info().currsize == 0


def test_values_of_a_template_take_no_neighbours(chinese):
    assert i18n.translate("the best: 1 x dp8 tp2, 256 sequences a rank") == (
        "最好的：1 x dp8 tp2，每个 rank 256 个序列"
    )
    for quoted in (
        "content 'Say in one sentence what you are.', finish_reason length",
        '{"messages": [{"role": "user", "content": "no: 1, two"}], "max_tokens": 8}',
        "OSError: [Errno 99] Cannot assign requested address: '10.1.2.11'",
        "a3-0, a3-1, a3-2",
    ):
        assert i18n.translate(quoted) == quoted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("16-31 of 32", "16-31（共 32）"),
        (
            "requests → router (upstream) on a3-0, 192.0.2.11:1999",
            "请求 → a3-0 上的路由（upstream），192.0.2.11:1999",
        ),
        (
            "REHEARSAL of kimi_k25 at http://127.77.0.1:1999: 7 pass, 2 not applicable",
            "预演（REHEARSAL），http://127.77.0.1:1999 上的 kimi_k25：7 项通过，2 项不适用",
        ),
        ("2 of 3 right", "3 项中答对 2 项"),
        ("22 files: a3-0, a3-1, client", "22 个文件：a3-0, a3-1, client"),
        ("a: 1, b: 2, 3", "a: 1, b: 2, 3"),
    ],
)
def test_what_stands_in_titles_and_pictures(chinese, text, told):
    assert i18n.translate(text) == told


def test_no_blank_stands_between_chinese_and_chinese(chinese):
    said = i18n.translate("no --reasoning-parser and no --tool-call-parser: thinking and tool calls "
                          "arrive as plain text")  # fmt: skip
    assert "工具调用会以纯文本返回" in said and "没有 --reasoning-parser" in said
