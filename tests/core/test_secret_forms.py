"""Where a form of a secret begins and ends, and how the words that begin one are found."""

from __future__ import annotations

import re

import pytest

from kimi_nb.core import secret_forms

PEM = b"-----BEGIN " + b"PRIVATE KEY-----\nAAAA\n-----END " + b"PRIVATE KEY-----"
HF = b"hf_" + b"aB3d" * 6  # 27 bytes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", []),
        (b"an ordinary line", []),
        (b"password=hunter2", [(9, 16)]),
        (b"PassWord: hunter2 x", [(10, 17)]),
        # The first value goes on over what looks like a second name.
        (b"password=password=abcd", [(9, 22)]),
        (b"password=abcd password=efgh", [(9, 13), (23, 27)]),
        (b"password=password=abcd password=efgh", [(9, 22), (32, 36)]),
        (b"password=x password=None password=efgh", [(34, 38)]),
        (PEM + PEM, [(0, len(PEM)), (len(PEM), 2 * len(PEM))]),
        (HF + b" and " + HF, [(0, 27), (32, 59)]),
        (HF.upper(), []),
        (b"hf_short " + HF, [(9, 36)]),
        (b"passphrase=abcd passcode=efgh", [(11, 15), (25, 29)]),
    ],
)
def test_where_secrets_are(text, found):
    assert sorted(secret_forms.spans(text)) == found


def test_a_long_text_is_searched_like_a_short_one():
    """One search for all words from 256 KB on; before, one for each of them."""
    text = b"PASSWORD=hunter2 " + HF + b" secret: abcd credential=efgh\n"
    wanted = sorted(secret_forms.spans(text))
    assert wanted == [(9, 16), (17, 44), (53, 57), (69, 73)]
    for length in (256 * 1024 - 1, 256 * 1024, 300_000):
        assert sorted(secret_forms.spans(text.ljust(length, b"x"))) == wanted


def test_every_place_of_every_word():
    text = b"Token=token,KEY, secret_key sk-skey"
    wanted = {
        b"token=": [0],
        b"token": [0, 6],
        b"key": [12, 24, 32],
        b"secret": [17],
        b"sk-": [28],
    }
    assert secret_forms._one_by_one(text.lower()) == wanted
    assert secret_forms._in_one_pass(text) == wanted
    # Words that overlap.
    assert secret_forms._one_by_one(b"---") == secret_forms._in_one_pass(b"---") == {b"--": [0, 1]}


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True),
        ("client-secret", True),
        ("db_password", True),
        ("Password", True),
        ("api_key_env", False),
        ("max_tokens", False),
        ("", False),
    ],
)
def test_keys(name, secret):
    assert secret_forms.is_secret_key(name) is secret


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("DB_PWD", True),
        ("PWD", False),
        ("pwd", False),
        ("OLDPWD", False),
        ("oldpwd", False),
        ("PATH", False),
    ],
)
def test_variables(name, secret):
    secret_forms.is_secret_variable.cache_clear()
    assert secret_forms.is_secret_variable(name) is secret


def test_a_form_is_read_in_either_case_unless_it_is_cased():
    either = secret_forms._form("ab cd", r"[ac](?P<v>\w)")
    cased = secret_forms._form("ab", "ab", cased=True)
    assert (either.words, either.text) == ((b"ab", b"cd"), rb"[ac](?P<v>\w)")
    assert (either.flags, cased.flags) == (re.ASCII | re.IGNORECASE, re.ASCII)
    assert either.pattern.match(b"AB") and not cased.pattern.match(b"AB")
    assert cased.pattern.match(b"ab") and cased.pattern is cased.pattern


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("apikey", True),
        ("api_key", True),
        ("my-api-key", True),
        ("api.key", False),
        ("myapikey", False),
        ("huggingfacekey", True),
        ("hugging_face-key", True),
        ("hugging-face_key", False),
        ("key", False),
    ],
)
def test_behind_a_name_with_a_sign_or_none(text, matches):
    behind = secret_forms._behind("api|hugging_?face", "(?<![a-z])")
    assert bool(re.search(rf"(?:{behind})key", text)) == matches
    anywhere = secret_forms._behind("api")
    assert bool(re.search(rf"(?:{anywhere})key", text)) == ("api" in text and "." not in text)
