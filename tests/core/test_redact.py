"""Secrets out of texts, and nothing else out of them."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import html
import json
import os
import stat
import time
import tracemalloc
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimi_nb.bundle import scripts
from kimi_nb.core import evidence, known_secrets, redacted_files, redaction, secret_forms
from kimi_nb.core.errors import WriteError

ROOT = Path(__file__).resolve().parents[2]
PEM = (
    "-----BEGIN OPENSSH PRIVATE "
    "KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nBG5vbmUAAAAEbm9u\n"
    "-----END OPENSSH PRIVATE "
    "KEY-----"
)
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"

# (the text, what must be gone of it): put together here, so that no scanner takes them for real.
SHAPES = [
    ("key sk-" + "proj-Ab1" * 4 + " end", "proj-Ab1"),
    ("hf_" + "AbCdEfGh" * 4, "AbCdEfGh"),
    ("ghp_" + "a1B2" * 9, "a1B2"),
    ("github_pat_" + "11ABC_" * 5, "11ABC_"),
    ("glpat-" + "x9-Y" * 5, "x9-Y"),
    ("AKIA" + "IOSFODNN7EXAMPLE", "IOSFODNN7"),
    ("xoxb-" + "123456789012-abc", "123456789012"),
    ("nvapi-" + "Zz9_" * 6, "Zz9_Zz9_"),
    ("ms-" + "0a1b2c3d-0000-4000-8000-0123456789ab", "0a1b2c3d"),
    ("Authorization: Bearer abc123def456", "abc123def456"),
    ("Authorization: Basic " + base64.b64encode(b"user:pa55word").decode(), "dXNlcjpw"),
    ("curl -u x https://me:hunter2@example.org/a", "hunter2"),
    ("postgres://me:p@ss:w0rd@db/x", "w0rd"),
    (JWT, "eyJzdWIi"),
    (PEM, "b3BlbnNz"),
    (json.dumps({"a": PEM}), "b3BlbnNz"),
    (PEM.partition("-----END")[0], "b3BlbnNz"),
    ("password=hunter2", "hunter2"),
    ("password: hunter2", "hunter2"),
    ('"password": "hunter2"', "hunter2"),
    (r"{\"api_key\": \"hunter2\"}", "hunter2"),
    ("MY_API_KEY=hunter2", "hunter2"),
    ("export HF_TOKEN='hunter2'", "hunter2"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalrXUtn"),
    ("vllm serve x --api-key hunter2 --port 1", "hunter2"),
    ("--api-key=hunter2", "hunter2"),
    ("['--api-key', 'hunter2']", "hunter2"),
    (
        'password\x1b[39m \x1b[38;5;241m=\x1b[39m \x1b[33m"\x1b[39m\x1b[33mhunter2\x1b[39m',
        "hunter2",
    ),
    ("&quot;password&quot;: &quot;hunter2&quot;", "hunter2"),
    ("PGPASSWORD=hunter2 psql", "hunter2"),
    ("MYSQL_PWD=hunter2", "hunter2"),
    ("SSHPASS=hunter2", "hunter2"),
    ("sshpass -p hunter2 ssh me@example.org", "hunter2"),
    ("SECRET_KEY=hunter2", "hunter2"),
    ("OPENAI_KEY=hunter2", "hunter2"),
    ("DEPLOY_KEY=a1b2c3d4e5f6g7h8", "a1b2c3d4"),
    ("DB_PASS=hunter2", "hunter2"),
    ("db_pass: hunter2", "hunter2"),
    ("--token hunter2", "hunter2"),
    ("--token=abcdef", "abcdef"),
    ("['--hf-token', 'hunter2']", "hunter2"),
    ('"--token",\n      "hunter2"', "hunter2"),
    ("GET /lab?token=hunter2 HTTP/1.1", "hunter2"),
    ("/x?a=b&token=hunter2&c=d", "hunter2"),
    ("/x?X-Amz-Credential=hunter2&X-Amz-Signature=0badcafe", "0badcafe"),
    ("Cookie: sid=hunter2; other=word", "hunter2"),
    ("{'cookie': 'sid=hunter2'}", "hunter2"),
    ("(b'cookie', b'sid=hunter2')", "hunter2"),
    ("Set-Cookie: sid=hunter2; Path=/", "hunter2"),
    ("curl --cookie 'sid=hunter2' x", "hunter2"),
    ("Authorization: Token hunter2", "hunter2"),
    ("authorization: hunter2hunter2", "hunter2"),
    ('Proxy-Authorization: Digest username="me", response="0badcafe"', "0badcafe"),
    ("curl -u me:hunter2 http://127.0.0.1", "hunter2"),
    ("curl -s --user me:hunter2 x", "hunter2"),
    ("['curl', '-u', 'me:hunter2']", "hunter2"),
    ('password="correct horse battery"', "battery"),
    ("'api_key': 'with blanks in it 1'", "blanks"),
    ("password%3Dhunter2", "hunter2"),
    ("<password>hunter2</password>", "hunter2"),
    ("//registry.example.org/:_authToken=hunter2", "hunter2"),
    ("npm_" + "aB3" * 12, "aB3aB3"),
    ("pypi-" + "AgEIcHlwaS5vcmc" + "x1_-" * 20, "x1_-x1"),
    ("SG." + "a1-b" * 5 + "ab." + "c2_d" * 10 + "abc", "c2_d"),
    ("sk_live_" + "a1B2" * 6, "a1B2"),
    ("glrt-" + "x9-Y" * 5, "x9-Y"),
    ("12345678:AA" + "x" * 33, "xxxxx"),
    ("https://hooks.slack.com/services/" + "T0AB/B0CD/xyz", "xyz"),
    ("AccountKey=" + "aB3/" * 22, "aB3/"),
]

PLAIN = [
    "api_key_env: MY_KEY",
    '"secrets": {"VLLM_API_KEY": "MY_KEY"}',
    '"api_key_env": "KIMI_KEY_2"',
    'export VLLM_API_KEY="${MY_KEY:?set it}"',
    "--api-key $VLLM_API_KEY",
    '-H "Authorization: Bearer $MY_KEY"',
    "max_tokens: 12345678",
    '"total_tokens": 1234567',
    '"eos_token": "<|im_end|>"',
    "prompt_tokens=123456",
    "commit be72d58a1b2c3d4e5f60718293a4b5c6d7e8f901",
    "sha256:" + "0123456789abcdef" * 4,
    "PWD=/home/me/kimi",
    "OLDPWD=/root",
    "0e5c1c3a-7d2b-4c55-9e50-1d2f3a4b5c6d",
    "--tokenizer kimi",
    "http://192.0.2.11:8000/v1",
    "ssh://root@192.0.2.11:22/x",
    "git@example.org:me/kimi.git",
    "sk-learn-and-other-names-of-packages",
    "hf_hub_download hf_transfer HF_HUB_OFFLINE=1",
    "Basic authentication is off",
    "Bearer authentication",
    "--api-key leaves the API open",
    "secrets are never written down: keep them",
    "functions.get_weather:0",
    "chatcmpl-0123456789abcdef",
    "a token stands in the command (its value is not shown)",
    "task-1234567890123456789",
    "password=[redacted]",
    "tool_choice: none",
    "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3",
    "forward_pass=12.345ms two_pass: 12345 bypass=always VLLM_BYPASS=enabled compass: north",
    "SSH_ASKPASS=/usr/bin/ssh-askpass",
    "valid_token=12345678 grid_token: abcdef1",
    "--stop-token 163586 --eos-token 163585 --max-tokens 4096",
    "MAX_TOKEN=128000 PAD_TOKEN=163839",
    '{"token": "Paris", "logprob": -0.1}',
    "CACHE_KEY=layer SORT_KEY=time key: value keyword=argument1",
    "docker run -u 1000:1000 image",
    "curl --user-agent kimi-nb http://127.0.0.1:8000/v1",
    "Cookie: none",
    "Authorization: Bearer token required",
    "missing authorization header",
    "the secret > the word",
    "tokens: 1024, key_value=cache, passes: 3",
    "avg prompt throughput: 1234.5 tokens/s, prefix cache hit rate: 45.6%",
    "request-id: chatcmpl-9f86d081884c7d659a2feaa0c55ad015",
]


@pytest.mark.parametrize("text, secret", SHAPES, ids=range(len(SHAPES)))
def test_shapes(text, secret):
    for made in (redaction.text(text), redaction.data(text.encode()).decode()):
        assert secret not in made and made != text
    assert redaction.MARK in redaction.text(text)
    assert len(redaction.data(text.encode())) == len(text.encode())
    assert secret not in redaction.text(f"before {text} after") and "after" in redaction.text(
        f"before {text}\nafter"
    )


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text):
    assert redaction.text(text) == text
    assert redaction.data(text.encode()) == text.encode()


def test_the_project_s_own_files_stay():
    for path in [
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("params/**/*.yaml"),
        ROOT / "kimi_nb/data/params/errata.yaml",
        ROOT / "kimi_nb/data/diagnose/signatures.yaml",
    ]:
        data = path.read_bytes()
        assert redaction.data(data) == data and redaction.text(data.decode()) == data.decode(), path


def test_bundles_stay_as_they_are(each_plan):
    """A script in which something was replaced would not run."""
    with_key = dataclasses.replace(each_plan, secrets={"VLLM_API_KEY": "MY_KEY"})
    whole = "\n".join(dict.fromkeys(scripts.files(with_key).values()))
    assert "MY_KEY" in whole
    assert redaction.text(whole) == whole and redaction.data(whole.encode()) == whole.encode()
    assert redaction.value(json.loads(with_key.as_json())) == json.loads(with_key.as_json())


# A value that is known ------------------------------------------------------------------

SECRET = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=8, max_size=40).filter(
    lambda text: len(set(text)) > 4 and text == text.strip() and "redacted" not in text
)
AROUND = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30)


@given(SECRET, AROUND, AROUND)
def test_a_known_value_is_gone_in_every_form(secret, before, after):
    plain = before + secret + after
    for text in (
        plain,
        json.dumps(plain),
        json.dumps(plain, ensure_ascii=False),
        html.escape(plain),
        repr(plain),
        quote(plain),
        json.dumps(json.dumps({"x": plain})),
    ):
        made = redaction.text(text, [secret])
        as_bytes = redaction.data(text.encode(), [secret])
        assert len(as_bytes) == len(text.encode())
        for found in (made, as_bytes.decode("utf-8", "replace")):
            for form in (secret, json.dumps(secret)[1:-1], html.escape(secret), quote(secret)):
                assert form not in found


@settings(max_examples=40)
@given(SECRET, st.binary(max_size=20), st.binary(max_size=20))
def test_a_known_value_inside_of_base64(secret, before, after):
    encoded = base64.b64encode(before + secret.encode() + after).decode()
    made = redaction.data(encoded.encode(), [secret]).decode()
    assert len(made) == len(encoded)
    # Groups of four letters that are the secret's alone.
    begin = -(-len(before) // 3) * 4
    end = (len(before) + len(secret.encode())) // 3 * 4
    assert end > begin and made[begin:end] != encoded[begin:end]
    assert all(letter in "*[redacted]" for letter in made[begin:end])


@given(st.text(max_size=200))
def test_twice_is_as_once(text):
    once = redaction.text(text)
    assert redaction.text(once) == once
    data = text.encode("utf-8", "replace")
    assert redaction.data(redaction.data(data)) == redaction.data(data)


@given(st.sampled_from(SHAPES), AROUND)
def test_twice_is_as_once_with_a_secret(shape, more):
    once = redaction.text(shape[0] + " " + more)
    assert redaction.text(once) == once


def test_values_under_names_of_secrets():
    made = redaction.value(
        {
            "password": "x",
            "api_key": "short",
            "api_key_env": "MY_KEY",
            "HF_TOKEN": "a b c",
            "eos_token": "</s>",
            "n": 1,
            "secret": "$REF",
            "list": [{"VLLM_API_KEY": "q w"}, "password=abcd"],
            "none": None,
            "password_empty": "",
            "token": "</think>",
        }
    )
    mark = redaction.MARK
    assert made == {
        "password": mark,
        "api_key": mark,
        "api_key_env": "MY_KEY",
        "HF_TOKEN": mark,
        "eos_token": "</s>",
        "n": 1,
        "secret": "$REF",
        "list": [{"VLLM_API_KEY": mark}, f"password={mark}"],
        "none": None,
        "password_empty": "",
        "token": "</think>",
    }


@pytest.mark.parametrize("option", ["password", "db-password", "passwd", "passphrase", "passcode"])
def test_the_word_after_an_option_for_a_password_is_gone(option):
    text = f"mysql --{option} tr0ub4dor-and-3 --host h"
    assert redaction.text(text) == f"mysql --{option} {redaction.MARK} --host h"


@pytest.mark.parametrize("key", ["userPassword", "dbpassword", "mypasswd", "sshpassphrase"])
def test_a_key_that_ends_in_a_name_of_passwords_is_secret(key):
    assert redaction.value({key: "tr0ub4dor"}) == {key: redaction.MARK}


def test_what_stands_around_and_between_secrets_stays():
    """Also half of a character of UTF-16, as a file name of Windows has, and where two touch."""
    values = ("quartz-seven", "basalt-nine")
    for text, wanted in (
        ("a quartz-seven b basalt-nine c", "a [redacted] b [redacted] c"),
        ("quartz-sevenbasalt-nine", "[redacted][redacted]"),
        ("\ud800 quartz-seven \udfff", "\ud800 [redacted] \udfff"),
        ("\ud800 no secret", "\ud800 no secret"),
    ):
        assert redaction.text(text, values) == wanted


def test_short_values_are_not_looked_for():
    assert redaction.text("a3 and on", ["a3", "on", ""]) == "a3 and on"


# Files ----------------------------------------------------------------------------------


def test_files(tmp_path, monkeypatch):
    monkeypatch.setenv("KIMI_DOOR", "open-sesame-é")
    monkeypatch.setattr(known_secrets, "_names", set())
    known_secrets.name(["KIMI_DOOR", ""])
    secret = "open-sesame-é".encode()
    log, packed = tmp_path / "a" / "x.log", tmp_path / "a" / "x.log.gz"
    log.parent.mkdir()
    log.write_bytes(b"\xff\xfe one " + secret + b" two\n")
    log.chmod(0o640)
    packed.write_bytes(gzip.compress(b"line " * 100 + secret))
    aside = tmp_path / "aside"
    aside.write_bytes(secret)
    (tmp_path / "a" / "link").symlink_to(aside)
    os.mkfifo(tmp_path / "a" / "pipe")
    with log.open("ab") as writer:  # somebody goes on writing
        assert known_secrets.folder(tmp_path / "a") == 2
        writer.write(b"three\n")
    assert secret not in log.read_bytes() and log.read_bytes().endswith(b" two\nthree\n")
    assert log.read_bytes().startswith(b"\xff\xfe one [")
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
    assert secret not in gzip.decompress(packed.read_bytes())
    assert gzip.decompress(packed.read_bytes()).startswith(b"line line")
    assert aside.read_bytes() == secret, "not through a link"
    assert known_secrets.folder(tmp_path / "a") == 0


def test_evidence_holds_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", 'quo"te\\d value')
    evidence.record(
        tmp_path,
        "x",
        said='with quo"te\\d value',
        password="hunter2",
        n=3,
        argv=["--api-key", "abc123"],
        path=tmp_path,
    )
    text = (tmp_path / evidence.FILE).read_text()
    assert "te\\\\" not in text and "hunter2" not in text
    entry = evidence.read(tmp_path)[0]
    assert entry["said"] == f"with {redaction.MARK}" and entry["n"] == 3
    assert entry["path"] == str(tmp_path)


def test_evidence_after_a_torn_line_is_whole(tmp_path):
    evidence.record(tmp_path, "one")
    path = tmp_path / evidence.FILE
    path.write_bytes(path.read_bytes() + b'{"time": "2026')
    evidence.record(tmp_path, "two")
    assert [one["stage"] for one in evidence.read(tmp_path)] == ["one", "two"]


def test_evidence_goes_through_no_link(tmp_path):
    aside = tmp_path / "aside"
    aside.write_text("mine\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / evidence.FILE).symlink_to(aside)
    with pytest.raises(
        WriteError, match="is a symbolic link, through which no evidence is written"
    ):
        evidence.record(tmp_path / "run", "one")
    assert aside.read_text() == "mine\n"


NAMED = ["PGPASSWORD", "MYSQL_PWD", "SSHPASS", "SECRET_KEY", "OPENAI_KEY", "DB_PASS", "HF_TOKEN"]


@pytest.mark.parametrize("name", NAMED)
def test_variables_of_these_names_are_secret(name, monkeypatch):
    monkeypatch.setenv(name, "what it holds")
    assert known_secrets.text("it says: what it holds!") == f"it says: {redaction.MARK}!"


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "SSH_ASKPASS", "GPG_KEY_ID", "HF_TOKEN_PATH"])
def test_variables_of_these_names_are_not(name, monkeypatch):
    monkeypatch.setenv(name, "/what/it/holds")
    assert known_secrets.text("it says: /what/it/holds") == "it says: /what/it/holds"


# What nobody knows: planted in each form, around ordinary lines -------------------------

LINES = [
    "INFO 11-23 05:50:10 [core.py:123] Avg prompt throughput: 1234.5 tokens/s, Running: 8 reqs",
    "(EngineCore_DP0 pid=123) Loading safetensors checkpoint shards: 42% Completed | 8/19",
    "Traceback (most recent call last):",
    "  File '/usr/lib/python3.11/asyncio/base_events.py', line 654, in run_until_complete",
    "RuntimeError: NPU out of memory. Tried to allocate 1.25 GiB (NPU 3; 60.96 GiB total)",
    "[rank3]:[E1123 05:50:10.123456 ProcessGroupNCCL.cpp:616] Watchdog caught timeout",
    "INFO:     127.0.0.1:54321 - 'POST /v1/chat/completions HTTP/1.1' 200 OK",
    "vllm serve /models/kimi --tensor-parallel-size 8 --max-model-len 131072 --port 8000",
]
PLACES = [
    "{}_TOKEN={}",
    "export API_KEY='{1}'",
    '{{"password": "{1}"}}',
    "--api-key {1} --port 1",
    "--token {1}",
    "https://me:{1}@example.org/",
    "/lab?token={1}",
    "Authorization: Token {1}",
    "Authorization: Bearer {1}",
    "Cookie: sid={1}",
    "curl -u me:{1} x",
    "PGPASSWORD={1}",
    "sshpass -p {1} ssh x",
    "db_pass: {1}",
    "secret_key = '{1}'",
]
UNKNOWN = st.text(
    "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789-_.~+", min_size=8, max_size=80
)


@settings(max_examples=200)
@given(
    UNKNOWN.filter(
        lambda one: one[0].isalnum() and any(map(str.isdigit, one)) and one.isascii()
    ).filter(lambda one: any(map(str.isalpha, one))),
    st.sampled_from(PLACES),
    st.lists(st.sampled_from(LINES), max_size=3),
    st.lists(st.sampled_from(LINES), max_size=3),
    st.sampled_from(["\n", "\r\n"]),
)
def test_a_planted_secret_never_passes_and_the_rest_stays(secret, place, before, after, end):
    planted = place.format("GITHUB", secret)
    text = end.join([*before, planted, *after])
    made = redaction.text(text)
    assert secret not in made
    assert made.startswith(end.join([*before, ""])) and made.endswith(end.join(["", *after]))
    as_bytes = redaction.data(text.encode())
    assert secret.encode() not in as_bytes and len(as_bytes) == len(text.encode())


@given(st.lists(st.sampled_from(LINES), max_size=30))
def test_ordinary_lines_stay(lines):
    text = "\n".join(lines)
    assert redaction.text(text) == text and redaction.data(text.encode()) == text.encode()


@given(st.lists(st.sampled_from([*SHAPES, *((one, "") for one in PLAIN)]), max_size=9))
def test_long_texts_are_searched_as_short_ones(shapes):
    text = "\n".join(one for one, _ in shapes).encode()
    both = [secret_forms._one_by_one(text.lower()), secret_forms._in_one_pass(text)]
    assert both[0] == both[1]


# Files of any size ----------------------------------------------------------------------


@given(st.lists(st.sampled_from([*(one for one, _ in SHAPES), *PLAIN, *LINES]), max_size=9))
def test_a_list_of_texts_is_redacted_as_each_of_them(texts):
    assert redaction.value(texts) == [redaction.text(one) for one in texts]


def _one_by_one(value, key=""):
    """What is to be made of a value, text by text."""
    if isinstance(value, dict):
        return {redaction.text(one): _one_by_one(inner, one) for one, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_one_by_one(inner) for inner in value]
    named = key and isinstance(value, str) and redaction._named(key, value)
    return redaction.MARK if named else redaction.text(value) if isinstance(value, str) else value


@given(
    st.recursive(
        st.sampled_from([*(one for one, _ in SHAPES), *PLAIN, *LINES]) | st.integers() | st.none(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(
                st.sampled_from(
                    ["api_key", "name", "password", "rank 3", *(one for one, _ in SHAPES)]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_nested_values_are_redacted_as_each_of_their_texts(value):
    """Also where one search through all of them finds nothing."""
    assert redaction.value(value) == _one_by_one(value)


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(redacted_files, "BLOCK", 4096)
    monkeypatch.setattr(redacted_files, "_AFTER", 2048)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 20_000),
    place=st.sampled_from(PLACES),
    coding=st.sampled_from(["utf-8", "utf-16"]),
)
def test_at_any_place_of_a_file(at, place, coding, small_windows, tmp_path_factory):
    secret = "s3cret-" + "xYz9" * 20
    before = ("an ordinary line of a log\n" * 1000)[:at].rpartition("\n")[0] + "\n"
    text = before + place.format("GITHUB", secret) + "\n" + "after it\n" * 900
    path = tmp_path_factory.mktemp("x") / "x.log"
    path.write_bytes(text.encode(coding))
    assert redacted_files.redact(path, [])
    made = path.read_bytes()
    assert len(made) == len(text.encode(coding))
    assert secret not in made.decode(coding) and made.decode(coding).startswith(before)
    assert made.decode(coding).endswith("\n" + "after it\n" * 900)
    assert not redacted_files.redact(path, [])


@pytest.mark.parametrize("coding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_known_value_at_a_windows_edge_and_beyond_ascii(coding, small_windows, tmp_path):
    secret, path = "öffne-dich-日本", tmp_path / "x.log"
    mark = "\ufeff" if coding != "utf-8" else ""
    for at in (4080, 4090, 4096, 8190):
        text = mark + ("x" * 60 + "\n") * (at // 61) + "y" * (at % 61) + secret + " end\n" * 900
        path.write_bytes(text.encode(coding))
        assert redacted_files.redact(path, [secret])
        made = path.read_bytes().decode(coding)
        assert secret not in made and made.endswith(" end\n" * 900) and secret[3:] not in made


def test_a_value_that_is_longer_than_a_window(small_windows, tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"password=" + b"aB3" * 10_000 + b" after\n")
    assert redacted_files.redact(path, [])
    assert b"aB3" not in path.read_bytes() and path.read_bytes().endswith(b"* after\n")


def test_larger_than_what_was_skipped(tmp_path):
    """65 MiB, most of it a hole."""
    path = tmp_path / "x.log"
    with path.open("wb") as file:
        file.seek(65 << 20)
        file.write(b"\nPGPASSWORD=hunter2\n")
    tracemalloc.start()
    assert known_secrets.file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with path.open("rb") as file:
        file.seek(65 << 20)
        assert file.read() == b"\nPGPASSWORD=*******\n"
    assert peak < 16 << 20


def test_a_packed_log_that_was_cut_off(tmp_path):
    path = tmp_path / "x.log.gz"
    whole = gzip.compress(b"password=hunter2\n" + os.urandom(40_000))
    path.write_bytes(whole[: len(whole) // 2])
    path.chmod(0o640)
    assert redacted_files.redact(path, [])
    assert gzip.decompress(path.read_bytes()).startswith(b"password=*******\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and list(tmp_path.iterdir()) == [path]


HARD = [
    b"-eyJaaaaaaaaa",
    b"password=" + b" " * 50,
    b'password="',
    b"://a:",
    b"-----BEGIN PRIVATE KEY-----",
    b"bearer ",
    b"sk-sk-",
    b"--api-key ",
    b"curl -u ",
    b"cookie: ",
    b"authorization: ",
    b"\\",
    b" ",
    b"token",
    b"key",
    b"a",
    b"password=\x1b[1m",
    b"secret:" + b"\\" * 40,
    b"digest ",
]


@pytest.mark.parametrize("piece", HARD, ids=range(len(HARD)))
def test_the_time_grows_with_the_text_and_no_faster(piece):
    """128 KB take well under a second of the processor; quadratic work would take minutes."""
    begun = time.process_time()
    redaction.data(b"x=" + piece * (65536 // len(piece)))
    redaction.data(b"password=" + piece * (65536 // len(piece)))
    assert time.process_time() - begun < 1.0
