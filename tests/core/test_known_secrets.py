"""Values of secret variables: which ones are known, and in which part of which file they go."""

from __future__ import annotations

import base64
import gzip

import pytest

from kimi_nb.core import known_secrets, redaction

SECRET = "open-sesame"


@pytest.fixture(autouse=True)
def door(monkeypatch):
    """A secret variable, by the name that a site file gives."""
    monkeypatch.setattr(known_secrets, "_names", set())
    monkeypatch.setenv("KIMI_DOOR", SECRET)
    known_secrets.name(["KIMI_DOOR", ""])


@pytest.mark.parametrize("word", ["token", "api_key", "apikey", "access_key", "accesskey", "secret",
                                  "password", "passwd", "credential", "credentials"])  # fmt: skip
def test_values_of_variables_that_say_so_are_known(monkeypatch, word):
    for name in (f"KIMI_X_{word.upper()}", f"kimi_x_{word}"):
        monkeypatch.setenv(name, f"value of {name}")
        assert f"value of {name}" in known_secrets.values(), name
        assert redaction.MARK in known_secrets.text(f"it is value of {name}.")
        monkeypatch.delenv(name)
    monkeypatch.setenv(f"KIMI_X_{word.upper()}_FILE", "/a/path")
    monkeypatch.setenv(f"KIMI_X{word.upper()}S_", "more")
    monkeypatch.setenv(f"KIMI_Y_{word.upper()}", "  ")
    assert not {"/a/path", "more", "  "} & set(known_secrets.values())


def test_only_secret_variables_are_taken_out(monkeypatch):
    monkeypatch.setenv("KIMI_FOLDER", "ordinary-words")
    monkeypatch.setenv("KIMI_EMPTY_TOKEN", "")
    assert known_secrets.text(f"ordinary-words {SECRET}") == f"ordinary-words {redaction.MARK}"
    assert "ordinary-words" not in known_secrets.values() and "" not in known_secrets.values()
    assert known_secrets.text("ordinary-words") == "ordinary-words"


def test_a_file_is_redacted_from_where_it_is_told(tmp_path):
    path = tmp_path / "x.log"
    path.write_text(f"{SECRET} {SECRET}\n")
    assert known_secrets.file(path, len(SECRET)) is True
    assert path.read_text() == f"{SECRET} [redacted]*\n"
    assert known_secrets.file(path, len(SECRET)) is False
    assert known_secrets.file(tmp_path / "none") is False
    path.chmod(0)
    assert known_secrets.file(tmp_path) is False


def test_a_packed_file_that_gets_shorter_has_no_tail(tmp_path):
    """Bytes of the old one after the new one would be taken for damage."""
    path = tmp_path / "x.gz"
    noise = "".join(f"{SECRET}{number:x} " for number in range(3000))
    before = gzip.compress(noise.encode(), compresslevel=0)
    path.write_bytes(before)
    assert known_secrets.file(path) is True
    assert len(path.read_bytes()) < len(before)
    assert gzip.decompress(path.read_bytes()).count(b"[redacted]*") == 3000


def test_a_folder_counts_its_files_and_leaves_out_what_it_is_told(tmp_path):
    for name in ("a", "b/c", "b/d", ".git/e", "b/.git/f"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
    (tmp_path / "b" / "plain").write_text("nothing of it")
    assert known_secrets.folder(tmp_path, skip=[".git"]) == 3
    left = {
        path.name for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_text()
    }
    assert left == {"e", "f"}
    assert known_secrets.folder(tmp_path) == 2


def test_keys_are_redacted_and_need_not_be_text():
    found = known_secrets.value({f"x {SECRET}": 1, 7: SECRET, None: {"password": "hunter2"}})
    assert found == {
        f"x {redaction.MARK}": 1,
        7: redaction.MARK,
        None: {"password": redaction.MARK},
    }


@pytest.mark.parametrize("offset", range(3))
@pytest.mark.parametrize("secret", [SECRET, "ab~?>c~?", "byt\udcffes-x"])
def test_base64_hides_all_but_the_letters_at_the_ends(secret, offset):
    """Of those the first and the last may depend on the bytes beside the secret."""
    raw = secret.encode("utf-8", "surrogateescape")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(b"\0" * (3 + offset) + raw + b"\0" * 4).decode()
        made = redaction.text(encoded, [secret])
        first, last = -(-(3 + offset) * 8 // 6), (3 + offset + len(raw)) * 8 // 6
        assert made == encoded[:first] + redaction.MARK + encoded[last:]


def test_a_secret_may_have_bytes_that_are_no_text(tmp_path, monkeypatch):
    secret = b"byt\xffes-x /y"
    monkeypatch.setenv("KIMI_DOOR", secret.decode("utf-8", "surrogateescape"))
    path = tmp_path / "x.log"
    path.write_bytes(b"a " + secret + b" byt%FFes-x%20/y byt%FFes-x+%2Fy b\n")
    assert known_secrets.file(path) is True
    assert path.read_bytes().count(b"[redacted]") == 3 and b"es-x" not in path.read_bytes()


def test_lists_are_redacted_and_names_of_variables_stay():
    assert known_secrets.value([SECRET, (SECRET,)]) == [redaction.MARK, [redaction.MARK]]
    assert redaction.value({"password": "MY_KEY"}) == {"password": "MY_KEY"}


def test_a_packed_file_without_secrets_stays_byte_for_byte(tmp_path):
    path = tmp_path / "x.gz"
    plain = gzip.compress(b"nothing of it", compresslevel=1, mtime=12345)
    path.write_bytes(plain)
    assert known_secrets.file(path) is False and path.read_bytes() == plain


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("password=hunter2345", "password=[redacted]"),
        ("password=hunter234", "password=*********"),
        ("password=hunter23456", "password=[redacted]*"),
        ("x://[redacted]:hunter2@y", "x://[redacted]:*******@y"),
    ],
)
def test_a_form_is_filled_to_its_length(given, made):
    assert redaction.data(given.encode()).decode() == made
