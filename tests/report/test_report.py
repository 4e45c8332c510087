"""The report of a run: what it says, of whole and of broken folders; and no secret anywhere."""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import check_page

from kimi_nb import report
from kimi_nb.cli import main
from kimi_nb.core import evidence, known_secrets, paths
from kimi_nb.core.errors import ParameterError
from kimi_nb.notebook import runbook
from kimi_nb.plan import build
from kimi_nb.report import plan_section
from kimi_nb.report.collect import run_of
from kimi_nb.report.sections import Sections

ROOT = Path(__file__).resolve().parents[2]
# Put together here, so that no scanner takes them for real ones. By the name of its variable:
DOOR = 'open, "sesame" <&> é\\n of seven'
# By their shapes:
SHAPED = {
    "openai": "sk-" + "proj-Q1w2E3r4T5y6U7i8",
    "hub": "hf_" + "QwErTyUiOpAsDfGhJkLzXcVb",
    "github": "ghp_" + "q1W2e3R4t5Y6u7I8o9P0a1S2d3F4g5H6j7K8",
    "cloud": "AKIA" + "Q1W2E3R4T5Y6U7I8",
    "jwt": "eyJhbGciOiJub25lIn0" + ".eyJzdWIiOiJxd2VydHoifQ.c2lnbmF0dXJl",
}
# By what stands before them:
NAMED = {
    "basic": "cXdlcnR6" + "OnF3ZXJ0ejEyMw==",
    "assigned": "tr0ub4dor" + "-and-3",
    "userinfo": "p4ss" + "-in-url",
}
PEM = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" + "q1w2e3r4"


SECTIONS = [
    cell.source.removeprefix("report.")
    for cell in nbformat.read(ROOT / "notebooks" / "11_report.ipynb", as_version=4).cells
    if cell.source.startswith("report.")
]


def shown(folder: Path) -> str:
    """What the cells of notebook 11 show of a folder, executed here; checked as a page."""
    sections = Sections(report.collect(folder))
    values = [getattr(sections, name) for name in SECTIONS]
    assert all(str(value) and repr(value) for value in values)
    page = folder / "shown.html"
    page.write_text("".join(value._repr_html_() for value in values))
    return check_page(page)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The notebooks, of which 00 spills secrets every way a notebook can, and then fails."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "params", root / "params")
    shutil.copytree(ROOT / "notebooks", root / "notebooks")
    path = root / "notebooks" / "00_start.ipynb"
    book = nbformat.read(path, as_version=4)
    at = next(i for i, cell in enumerate(book.cells) if "kimi_nb.start" in cell.source) + 1
    book.cells[at:] = [
        nbformat.v4.new_code_cell(source)
        for source in (
            "import base64, gzip, os, pathlib, sys\n"
            "folder, door = pathlib.Path(run_dir), os.environ['KIMI_DOOR']\n"
            f"shaped = {list(SHAPED.values())!r}\n"
            "print(door, shaped)\nprint(repr(door), file=sys.stderr)",
            "os.write(2, f'started with {door}\\n'.encode())\n"
            "(folder / 'x').mkdir()\n"
            "(folder / 'x' / 'engine.log').write_text(f'INFO key {door} {shaped}\\n')\n"
            "_ = (folder / 'x' / 'old.log.gz').write_bytes(gzip.compress(door.encode()))",
            "from IPython.display import display\n"
            "display({'image/png': base64.b64encode(b'x' + door.encode() + b'yz').decode(),\n"
            "         'text/html': f'<b title=\"{door}\">{door}</b>'}, raw=True)",
            f"pem = '''-----BEGIN PRIVATE KEY-----\n{PEM}\n{PEM}\n-----END PRIVATE KEY-----'''\n"
            "print(pem)\nrun.record('spilled', door=door, shaped=shaped, pem=pem,\n"
            f"           password={NAMED['assigned']!r})",
            f"password = {NAMED['assigned']!r}\n"
            f"url = 'https://me:{NAMED['userinfo']}@example.org'\n"
            f"headers = 'Authorization: Basic {NAMED['basic']}'\n"
            "raise RuntimeError(f'{door} {shaped} {pem} {url} {headers} password={password}')",
        )
    ]
    nbformat.write(book, path)
    return root


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site of one's own, that asks for a key by name."""
    path = tmp_path_factory.mktemp("site") / "mine.yaml"
    text = (ROOT / "params" / "sites" / "a3.yaml").read_text()
    path.write_text(text.replace("a3-example", "mine") + "api_key_env: KIMI_DOOR\n")
    return path


@pytest.fixture(scope="module")
def spilled(tree, site, tmp_path_factory):
    """A run in which one notebook spills, and one rehearses."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIMI_DOOR", DOOR)
        patch.setattr(paths, "root", lambda: tree)
        patch.setattr(known_secrets, "_names", set())
        outcome = runbook.run("k2.5", "a3", only="00,03", site=str(site), run_dir=str(folder))
        # As papermill gets it with -p: in the injected cell and in its metadata.
        passed = runbook._execute(
            "01_prerequisites",
            folder,
            {
                "hw": "a3",
                "model": "k2.5",
                "run_dir": str(folder),
                "confirm": SHAPED["hub"],
                "action": f"action {DOOR}",
            },
        )
        runbook._close(folder)
    return outcome, passed


def secrets_in(data: bytes) -> list[str]:
    """Which of the planted secrets stand in some bytes, in whatever form."""
    found = []
    for name, value in {**SHAPED, **NAMED, "door": DOOR, "pem": PEM}.items():
        forms = {
            value,
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            html.escape(value),
            html.escape(value, quote=False),
            repr(value)[1:-1],
        }
        if any(form.encode() in data for form in forms):
            found.append(name)
    return found


def contents(path: Path) -> list[bytes]:
    """The bytes of a file, and what is packed or encoded in them."""
    data = path.read_bytes()
    out = [data]
    if data[:2] == b"\x1f\x8b":
        out.append(gzip.decompress(data))
    for word in re.findall(rb"[A-Za-z0-9+/_-]{12,}={0,2}", data):
        plain = word.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
        out += [base64.b64decode(plain[at : len(plain) - (len(plain) - at) % 4]) for at in range(4)]
    return out


def test_no_secret_is_left_in_the_folder(spilled):
    """Bytewise, in every file, packed and encoded ones too."""
    outcome, passed = spilled
    files = [path for path in outcome.folder.rglob("*") if path.is_file()]
    assert len(files) > 30
    for path in files:
        for data in contents(path):
            assert not secrets_in(data), path
    assert not secrets_in(str(outcome).encode()) and not secrets_in(passed.fault.encode())
    # It was all there: what took its place stands in each of these.
    for name in (
        "00_start.ipynb",
        "00_start.html",
        "01_prerequisites.ipynb",
        "evidence.jsonl",
        "kernels.log",
        "x/engine.log",
        "report.html",
    ):
        assert "[redacted]" in (outcome.folder / name).read_text(), name
    book = nbformat.read(outcome.folder / "00_start.ipynb", as_version=4)
    nbformat.validate(book)
    error = next(
        out for cell in book.cells for out in cell.get("outputs", []) if out.output_type == "error"
    )
    assert "[redacted]" in error.evalue and any("[redacted]" in line for line in error.traceback)
    book = nbformat.read(outcome.folder / "01_prerequisites.ipynb", as_version=4)
    assert "[redacted]" in json.dumps(book.metadata.papermill.parameters)
    assert book.metadata.papermill.output_path == str(outcome.folder / "01_prerequisites.ipynb")


def test_what_is_no_secret_is_still_there(spilled):
    folder = spilled[0].folder
    plan = json.loads((folder / "k2.5-a3-single" / "bundle" / "plan.json").read_text())
    assert plan["secrets"] == {"VLLM_API_KEY": "KIMI_DOOR"}
    assert "[redacted]" not in "".join(
        path.read_text()
        for path in (folder / "k2.5-a3-single" / "bundle").rglob("*")
        if path.is_file()
    )
    kept = evidence.read(folder)
    run = next(one for one in kept if one["stage"] == "run")
    assert len(run["catalogs"]) == 12 and run["host"] and run["python"] and "[" not in run["commit"]
    assert all(len(one["hash"]) == 12 for one in kept if one["stage"] in ("plan", "write"))


def test_the_report_of_a_failed_run(spilled, capsys):
    outcome, _ = spilled
    assert outcome.report == outcome.folder / "report.html"
    assert str(outcome.report) in str(outcome)
    text = check_page(outcome.report)
    found = report.collect(outcome.folder)
    assert found.verdict.status == "failed" and "00_start" in found.verdict.text
    assert "RuntimeError" in found.verdict.text
    assert found.verdict.mark == "REHEARSAL"
    assert "Nothing here was measured on accelerators." in found.verdict.limits
    assert text.index("failed") < text.index("Notebooks") and "papermill" not in text
    assert "color-scheme: light dark" in text and "@media print" in text
    book = nbformat.read(outcome.folder / "report.ipynb", as_version=4)
    assert not [out for cell in book.cells for out in cell.get("outputs", []) if "ename" in out]
    # It does not count itself, nor does it leave evidence.
    assert "report" not in {one.name for one in found.notebooks}
    assert "notebook" in evidence.read(outcome.folder)[-1]["stage"]
    plan = found.plans[0]
    assert plan.last.status == "ok" and "1 of 1" in plan.last.text
    # Words may break at their joints.
    said = re.sub(r"<wbr[^>]*>|</?span[^>]*>", "", text)
    for words in (
        "REHEARSAL",
        "1 of 1",
        "k2.5-moved-variables",
        "vllm-ascend",
        "docker_run.sh",
        "hash of the bundle",
        "estimated",
        "The service was not verified",
        'href="03_single_node.html"',
        'href="03_single_node.ipynb"',
        "truth/known-fault",
    ):
        assert words in said, words
    assert main.main(["report", str(outcome.folder)]) == 0
    assert "failed: 00_start" in capsys.readouterr().out


def test_a_damaged_run_whatever_it_is_called(tmp_path):
    """Through the notebook: a name that papermill has to quote, and nothing whole inside."""
    folder = tmp_path / "a \"b\" \\n é 'c' <i>"
    lines(folder / "evidence.jsonl", {"stage": "run", "model": "<b>m</b>", "hardware": "</title>"})
    with (folder / "evidence.jsonl").open("a") as file:
        file.write('{"stage": "no')
    for name in ("bundle/plan.json", "findings.json", "rehearsals/001/rehearsal.json"):
        put(folder / "<script>p" / name, [])
    written = runbook.write_report(folder)
    text = check_page(written)
    assert "1 line damaged" in text and "&lt;b&gt;m" in text and "&lt;script&gt;p" in text
    assert text.count("</title>") == 1
    assert (folder / "report.ipynb").is_file()


def test_the_page_may_stand_elsewhere(spilled, tmp_path, capsys):
    folder = spilled[0].folder
    assert main.main(["report", str(folder), "--out", str(tmp_path / "a b" / "page.html")]) == 0
    check_page(tmp_path / "a b" / "page.html")
    assert [path.name for path in (tmp_path / "a b").iterdir()] == ["page.html"]
    capsys.readouterr()
    assert main.main(["report", str(folder), "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["verdict"]["status"] == "failed"
    assert not secrets_in(printed.encode())


def test_nothing_of_a_run_turns_the_writing_of_a_terminal(tmp_path, capsys):
    evidence.record(tmp_path / "run", "start", package="\u202e\u00e9", commit="c")
    assert main.main(["report", str(tmp_path / "run"), "--json"]) == 0
    printed = capsys.readouterr().out
    assert "\u202e" not in printed and '"\\u202e\u00e9"' in printed
    assert json.loads(printed)


# Folders of all kinds -------------------------------------------------------------------


@pytest.fixture
def copy(spilled, tmp_path):
    """A copy of the run, to be broken."""
    return Path(shutil.copytree(spilled[0].folder, tmp_path / "run"))


PLAN = "k2.5-a3-single"


@pytest.mark.parametrize(
    "name, data, said",
    [
        ("evidence.jsonl", lambda old: old[:-40], "1 line damaged or cut off"),
        ("evidence.jsonl", lambda old: b"", "is missing or empty"),
        ("evidence.jsonl", None, "is missing or empty"),
        ("evidence.jsonl", lambda old: b"\xff\x00[1]\n3\n" + old, "2 lines damaged"),
        (f"{PLAN}/bundle/plan.json", lambda old: old[:500], "damaged or cut off"),
        (f"{PLAN}/bundle/plan.json", None, ""),  # that of the rehearsal is taken
        (f"{PLAN}/findings.json", lambda old: b"null", "damaged or cut off"),
        (f"{PLAN}/findings.json", None, "The findings were not recorded"),
        (f"{PLAN}/rehearsals/001/rehearsal.json", None, "it was killed, or still runs"),
        (f"{PLAN}/bundle/a3-0/serve.sh", None, "is listed in plan.json and is not there"),
        ("00_start.html", None, ""),
    ],
)
def test_what_is_missing_is_said(copy, name, data, said):
    path = copy / name
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data(path.read_bytes()))
    assert said in html.unescape(shown(copy))


def lines(path: Path, *entries: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in entries))


def put(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def check(name: str, status: str, **more: str) -> dict:
    return {
        "time": "t",
        "stage": "verify",
        "name": name,
        "status": status,
        "sent": "a chat",
        "got": "<b>text</b>",
        "help": "Way out.",
        "url": "http://127.0.0.1:1",
        "model": "kimi",
        "mark": "REHEARSAL",
        **more,
    }


def test_contract_accuracy_and_performance(copy):
    """As the stages of verification, accuracy and performance leave them."""
    lines(
        copy / PLAN / "verify.jsonl",
        check("old/service", "fail", url="http://127.0.0.2:1"),
        check("api/models", "fail"),
        check("api/models", "pass"),
        check("tools/ids", "fail"),
        check("image/url", "not applicable"),
    )
    put(
        copy / PLAN / "accuracy" / "001" / "score.json",
        {
            "tool": "lm-eval",
            "task": "arithmetic",
            "subject": {"mark": ""},
            "fault": "",
            "parts": [
                {
                    "metric": "exact_match",
                    "filter": "strict",
                    "value": 0.75,
                    "samples": 24,
                    "correct": 18,
                }
            ],
        },
    )
    put(
        copy / PLAN / "accuracy" / "001" / "published.json",
        {
            "verdicts": [
                {"published": name, "verdict": "not comparable", "figures": "dataset: another"}
                for name in ("gsm8k", "aime2025")
            ]
        },
    )
    with (copy / "evidence.jsonl").open("a") as file:
        print(
            json.dumps(
                {
                    "time": "t",
                    "stage": "sweep",
                    "plan": PLAN,
                    "mark": "REHEARSAL",
                    "best": "max-num-seqs=16",
                    "headings": ["serve flags", "tokens/s"],
                    "rows": [["max-num-seqs=16", "40.0"]],
                }
            ),
            file=file,
        )
    put(copy / PLAN / "accuracy" / "001" / "settings.json", {"of": "a tool"})
    for repetition, speed in enumerate((90.0, 110.0, 100.0)):
        put(
            copy / PLAN / "bench" / f"c4-i64-o32-r{repetition}-x.json",
            {
                "failed": 0,
                "output_throughput": speed,
                "median_ttft_ms": 5,
                "kimi_nb": {
                    "identity": {
                        "concurrency": 4,
                        "input_len": 64,
                        "output_len": 32,
                        "repetition": repetition,
                        "tool": "kimi_nb",
                        "mark": "REHEARSAL",
                    }
                },
            },
        )
    drawn = copy / PLAN / "bench" / "pictures"
    drawn.mkdir()
    (drawn / "throughput.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    found = next(plan for plan in report.collect(copy).plans if plan.name == PLAN)
    assert found.contract.title.startswith("1 pass, 1 fail, 1 not applicable")
    assert [found.contract.rows[at][0] for at in found.contract.bad] == ["tools/ids"]
    assert found.accuracy.rows[0][4:] == (
        "0.750",
        "0.533 to 0.902",
        "24",
        "gsm8k, aime2025: not comparable (dataset: another)",
        "measured",
    )
    assert (
        found.sweep.title == "max-num-seqs=16"
        and found.sweep.rows == (("max-num-seqs=16", "40.0"),)
        and found.sweep.known == "measured, REHEARSAL"
    )
    assert [title for title, _, _ in found.pictures["plan"]] == [
        f"{PLAN}: where every engine stands",
        "Memory of one device, estimated",
    ]
    assert len(found.performance.rows) == 1 and found.performance.rows[0][6] == "100.0"
    assert found.performance.rows[0][-1] == "measured, REHEARSAL"
    text = shown(copy)
    assert "&lt;b&gt;text" in text and "data:image/svg+xml;base64," in text
    assert "Way out." in text


def test_a_failed_deployment_names_the_step_and_the_node(tmp_path):
    """As `kimi-nb up` leaves it: no notebook, no evidence of the run itself."""
    place = tmp_path / "k2.5-a3" / "k2.5-a3-pd" / "deployments" / "001"
    cause = {
        "kind": "disk",
        "node": "a3-2",
        "rank": None,
        "cause": "the disk is full",
        "evidence": "df: 100%",
        "help": "Make room on /data.",
    }
    lines(
        place / "evidence.jsonl",
        {"stage": "deploy", "step": "reach", "failed": [], "changed": [], "seconds": 1.5},
        {"stage": "deploy", "step": "weights", "failed": [cause], "changed": []},
    )
    put(place / "state.json", {"site": "mine", "by": "me@here", "state": "failed"})
    found = report.collect(tmp_path / "k2.5-a3")
    assert found.verdict.status == "failed" and "a3-2: the disk is full" in found.verdict.text
    assert found.verdict.next == "Make room on /data."
    assert "evidence.jsonl: is missing or empty" in found.gaps[0] or found.gaps
    text = shown(tmp_path / "k2.5-a3")
    assert "df: 100%" in text and "1.5 s" in text
    # A second call that went through.
    with (place / "evidence.jsonl").open("a") as file:
        file.write(
            json.dumps(
                {"stage": "deploy", "step": "verify", "failed": [], "facts": {"ready_s": 61.25}}
            )
            + "\n"
        )
    found = report.collect(tmp_path / "k2.5-a3")
    assert found.verdict.status == "ok" and found.verdict.mark == ""
    assert "Nothing here was measured on accelerators." not in found.verdict.limits


@pytest.mark.parametrize(
    "entries, status, said",
    [
        ([{"stage": "run", "notebooks": ["00_start"]}], "unfinished", "still runs, or was killed"),
        (
            [{"stage": "run", "notebooks": []}, {"stage": "end", "ok": False, "interrupted": True}],
            "unfinished",
            "interrupted",
        ),
        ([{"stage": "run", "notebooks": []}, {"stage": "end", "ok": False}], "failed", "not where"),
        ([{"stage": "start"}], "nothing", "nothing was run"),
        (
            [
                {"stage": "run"},
                {"stage": "notebook", "notebook": "a", "status": "failed", "fault": "F"},
                {"stage": "end", "ok": False},
                {"stage": "run"},
                {"stage": "notebook", "notebook": "a", "status": "ok"},
                {"stage": "end", "ok": True},
            ],
            "ok",
            "1 notebook",
        ),
    ],
)
def test_verdicts(tmp_path, entries, status, said):
    lines(tmp_path / "evidence.jsonl", *entries)
    found = report.collect(tmp_path).verdict
    assert found.status == status and said in found.text
    assert status in shown(tmp_path)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def some(*keys: str) -> st.SearchStrategy:
    return ANY | st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            keys,
            ANY | st.lists(st.dictionaries(st.sampled_from(keys), ANY, max_size=4), max_size=2),
        ),
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    run=some("stage", "notebooks", "notebook", "status", "ok", "plan", "hash", "seconds"),
    stage=st.sampled_from(["run", "notebook", "end", "plan", "deploy", "verify"]),
    plan=some("engines", "files", "errata", "settings", "router", "devices", "node", "name"),
    result=some("ok", "diagnosis", "notes", "ready", "fault", "node", "rank", "cause"),
    finding=some("findings", "counts", "memory", "severity", "parts_gib", "rules", "errors"),
    measurement=some(
        "kimi_nb", "failed", "identity", "output_throughput", "task", "subject", "parts"
    ),
)
def test_whatever_stands_there(tmp_path_factory, run, stage, plan, result, finding, measurement):
    """Files of another make, or another version, are no traceback."""
    folder = tmp_path_factory.mktemp("any")
    entry = {**(run if isinstance(run, dict) else {}), "stage": stage}
    lines(folder / "evidence.jsonl", run, entry)
    put(folder / "p" / "bundle" / "plan.json", plan)
    put(folder / "p" / "findings.json", finding)
    put(folder / "p" / "rehearsals" / "001" / "rehearsal.json", result)
    put(folder / "p" / "deployments" / "001" / "state.json", result)
    lines(folder / "p" / "deployments" / "001" / "evidence.jsonl", {"stage": "deploy"}, entry)
    lines(folder / "p" / "verify.jsonl", {"stage": "verify", "name": run}, entry)
    put(folder / "p" / "bench" / "c1.json", measurement)
    put(folder / "p" / "accuracy" / "001" / "s.json", measurement)
    found = report.collect(folder)
    sections = Sections(found)
    for name in SECTIONS:
        assert "<script" not in getattr(sections, name)._repr_html_()
        str(getattr(sections, name))
    json.dumps(found.as_dict())


def test_names_of_files_cannot_leave_the_folder(tmp_path):
    secret = tmp_path / "outside.sh"
    secret.write_text("outside")
    put(
        tmp_path / "run" / "p" / "bundle" / "plan.json",
        {"files": ["../../../outside.sh", str(secret), "<script>alert(1)</script>.sh"]},
    )
    text = shown(tmp_path / "run")
    assert "outside" not in text.replace("outside.sh", "") and "<script" not in text


def test_why_nothing_was_asked_is_said(tmp_path):
    put(tmp_path / "p" / "bundle" / "plan.json", {"files": []})
    lines(
        tmp_path / "evidence.jsonl",
        {
            "stage": "accuracy",
            "plan": "p",
            "skipped": "lm-eval is not installed; make tools installs it.",
        },
    )
    found = report.collect(tmp_path).plans[0].accuracy
    assert found.title == "nothing was asked: lm-eval is not installed; make tools installs it"
    assert "nothing was asked" in shown(tmp_path)


def test_names_that_no_file_can_have(tmp_path):
    lines(tmp_path / "evidence.jsonl", {"stage": "run", "notebooks": ["n" * 300, "a\0b"]})
    put(tmp_path / "p" / "bundle" / "plan.json", {"files": ["s" * 300 + ".sh", "\0.sh"]})
    found = report.collect(tmp_path)
    assert [one.status for one in found.notebooks] == ["not finished"] * 2
    assert found.plans[0].scripts == ()


def test_no_run(tmp_path, capsys, monkeypatch):
    with pytest.raises(ParameterError, match="is no run's folder"):
        report.collect(tmp_path)
    assert main.main(["report", str(tmp_path / "none")]) == 2
    assert "kimi-nb run makes one" in capsys.readouterr().err
    monkeypatch.setattr("kimi_nb.notebook.start.runs_folder", lambda: tmp_path / "runs")
    assert main.main(["report"]) == 2
    assert "holds no run yet" in capsys.readouterr().err


def test_a_folder_inside_a_run_names_the_run(tmp_path):
    """As kimi-nb status, logs and down take it."""
    place = tmp_path / "k2.5-a3" / "k2.5-a3-pd" / "deployments" / "001"
    place.mkdir(parents=True)
    for folder in (place, place.parent, place.parent.parent, tmp_path / "k2.5-a3"):
        assert run_of(folder) == tmp_path / "k2.5-a3"
    assert run_of(tmp_path) == tmp_path


def test_the_newest_run_is_taken(tmp_path, capsys, monkeypatch):
    for at, name in enumerate(("b", "a", "c")):
        lines(tmp_path / name / "evidence.jsonl", {"stage": "run", "model": name})
        os.utime(tmp_path / name / "evidence.jsonl", (1000 + (at == 1), 1000 + (at == 1)))
    monkeypatch.setattr("kimi_nb.notebook.start.runs_folder", lambda: tmp_path)
    assert main.main(["report"]) == 0
    assert str(tmp_path / "a" / "report.html") in capsys.readouterr().out


def test_what_the_front_door_causes_is_a_limit_and_no_failure_of_the_run(copy):
    lines(
        copy / PLAN / "verify.jsonl",
        check("api/chat", "pass"),
        check("errors/bad-json", "fail", cause="example-proxy"),
    )
    found = report.collect(copy)
    assert "verification of" not in found.verdict.text, "what else failed there is another's"
    (told,) = [one for one in found.verdict.limits if "front door" in one]
    assert "fails errors/bad-json" in told and "router=vllm-router" in told
    lines(copy / PLAN / "verify.jsonl", check("errors/unknown-model", "fail"))
    worse = report.collect(copy).verdict
    assert worse.status == "failed" and "verification of" in worse.text, worse
    assert "errors/unknown-model" in worse.text


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"cache_tokens_low": 900, "cache_tokens_high": 1100}, "1000 (900 to 1100)"),
        ({}, "1000"),  # recorded before ranges were
        ({"cache_tokens_low": "x", "cache_tokens_high": 1}, "1000"),
    ],
)
def test_tokens_of_cache_are_shown_with_their_range(more, shown):
    row = plan_section._bar({"role": "mixed", "cache_tokens": 1000, "figures": "estimated"} | more)
    assert shown in row and row[-1] == "estimated"


def test_the_shape_of_a_pipeline_is_told(nodes_file):
    site = nodes_file("h200", 2)
    pairs = ["nodes=2", "pp=2"]
    plan = build.plan("k2.5", "h200", "single", variant="pip", site=site, pairs=pairs)
    (row,) = plan_section._parts(json.loads(plan.as_json())["engines"])
    assert "8 x pp 2" in row
