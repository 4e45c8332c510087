"""Secrets out of texts, and nothing else out of them."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import html
import json
import os
import stat
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_nb.bundle import scripts
from kimi_nb.core import evidence, known_secrets, redaction

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
