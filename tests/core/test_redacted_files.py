"""Files are redacted in place, window by window: what changes, to the byte, and what never does."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tempfile

import pytest

from kimi_nb.core import redacted_files

AT_RISK = b"password=hunter2"
STARS = b"password=*******"


@pytest.fixture
def windows(monkeypatch):
    """Windows of 64 characters, with 32 behind and 16 before."""
    monkeypatch.setattr(redacted_files, "BLOCK", 64)
    monkeypatch.setattr(redacted_files, "_AFTER", 32)
    monkeypatch.setattr(redacted_files, "_BEFORE", 16)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.log"


def redacted(path, content: bytes, values=(), begin: int = 0) -> tuple[bool, bytes]:
    path.write_bytes(content)
    return redacted_files.redact(path, values, begin), path.read_bytes()


# One window -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "made"),
    [
        (AT_RISK, STARS),
        (b"a " + AT_RISK + b" b " + AT_RISK, b"a " + STARS + b" b " + STARS),
        (b"password=a-long-one-indeed", b"password=[redacted]*******"),
        (b"\xff\xfe " + AT_RISK, b"\xff\xfe " + STARS),  # no zeros: not UTF-16
    ],
)
def test_secrets_become_as_many_stars(path, content, made):
    assert redacted(path, content) == (True, made)
    assert not redacted_files.redact(path, ())


@pytest.mark.parametrize("content", [b"", b"an ordinary line\n", b"\x1f", b"\x1f\x8c " + b"x" * 50])
def test_what_holds_none_stays(path, content):
    assert redacted(path, content) == (False, content)


def test_known_values(path):
    assert redacted(path, b"an open-sesame here", ["open-sesame"]) == (True, b"an [redacted]* here")
    assert redacted(path, "ein ö-sésame\n".encode(), ["ö-sésame"])[1] == b"ein [redacted]\n"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_value_at_the_very_beginning(path, pack):
    path.write_bytes(pack(b"open-sesame here"))
    assert redacted_files.redact(path, ["open-sesame"])
    made = path.read_bytes()
    assert (made if pack is bytes else gzip.decompress(made)) == b"[redacted]* here"


def test_from_a_byte_on(path):
    content = AT_RISK + b" " + AT_RISK
    assert redacted(path, content, begin=17) == (True, AT_RISK + b" " + STARS)
    # The name stands before the byte, the value behind it.
    assert redacted(path, content, begin=26) == (True, AT_RISK + b" " + STARS)
    assert redacted(path, content, begin=27) == (False, content)
    assert redacted(path, content, begin=33) == (False, content)


# UTF-16 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_known_by_its_mark_and_zeros(path, coding):
    text = "\ufeffa 日本 password=hunter2 é end\n"
    made = text.replace("hunter2", "*" * 7).encode(coding)
    assert redacted(path, text.encode(coding)) == (True, made)
    assert redacted(path, text.encode(coding), begin=2 * text.index("=") + 2) == (True, made)
    assert redacted(path, text.encode(coding), begin=2 * text.index("é")) == (
        False,
        text.encode(coding),
    )


@pytest.mark.parametrize("coding", ["utf-16-le", "utf-16-be"])
def test_known_values_in_utf_16(path, coding):
    for value in ("open-sesame", "öffne-dich", "a日本本本本b"):
        text = f"\ufeffan {value} here"
        kept = "[redacted]"[: len(value)] if len(value) >= 10 else "*" * len(value)
        made = text.replace(value, kept.ljust(len(value), "*")).encode(coding)
        assert redacted(path, text.encode(coding), [value]) == (True, made)


def test_a_value_that_is_no_utf_8_stops_nothing(path):
    text = "\ufeffan open-\udcff-sesame, an open-house\n"
    made = text.replace("open-\udcff-sesame", "[redacted]***").replace("open-house", "[redacted]")
    raw, wanted = (one.encode("utf-16-le", "surrogatepass") for one in (text, made))
    assert redacted(path, raw, ["open-\udcff-sesame", "open-house"]) == (True, wanted)


def test_other_letters_with_the_same_low_bytes_are_no_secret(path):
    other = "".join(chr(0x4E00 + ord(one)) for one in "password=hunter2")
    text = f"\ufeffa line of letters {other}\n".encode("utf-16-le")
    assert redacted(path, text) == (False, text)


def test_half_a_character_at_the_end(path):
    text = "\ufeffa 日本 password=hunter2\n"
    made = text.replace("hunter2", "*" * 7)
    raw, wanted = (one.encode("utf-16-le") + b"x" for one in (text, made))
    assert redacted(path, raw) == (True, wanted)


ENGLISH_THEN_NOT = "\ufeff" + "a line " * 40 + "password=hunter2 " + "日本" * 2000


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "coding"),
    [
        (ENGLISH_THEN_NOT.encode("utf-16-le"), "utf-16-le"),
        # 128 zeros of 1024 bytes are an eighth; the next one does not count.
        (b"\xff\xfe" + bytes(128) + b"x" * 894 + b"\0 password=hunter2", "ascii"),
    ],
)
def test_the_first_kibibyte_tells_what_a_file_is(path, pack, content, coding):
    path.write_bytes(pack(content))
    assert redacted_files.redact(path, [])
    made = path.read_bytes() if pack is bytes else gzip.decompress(path.read_bytes())
    assert made == content.replace("hunter2".encode(coding), ("*" * 7).encode(coding))


def test_the_order_of_bytes():
    little, big = b"\xff\xfea\0", b"\xfe\xff\0a"
    assert [redacted_files._order(one) for one in (little, big)] == ["little", "big"]
    assert [redacted_files._order(one) for one in (b"a\0b\0", b"", b"\xff\xfe")] == ["", "", ""]
    # More than an eighth are zeros.
    assert redacted_files._order(b"\xff\xfe\0\0" + b"x" * 12) == ""
    assert redacted_files._order(b"\xff\xfe\0\0" + b"x" * 11) == "little"


# Several windows --------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["latin-1", "utf-16"])
@pytest.mark.parametrize(
    "at", [0, 40, 47, 48, 49, 54, 55, 56, 63, 64, 65, 80, 96, 112, 128, 176, 190]
)
def test_at_any_place_of_a_file(windows, path, coding, at):
    text = ("x y " * 50)[:at] + " password=hunter2 " + "z w " * 30
    made = text.replace("hunter2", "*" * 7)
    assert redacted(path, text.encode(coding)) == (True, made.encode(coding))


@pytest.mark.parametrize("end", ["", " end", " end" * 60])
@pytest.mark.parametrize("coding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("length", [20, 86, 87, 88, 151, 200, 215, 216, 500])
def test_a_value_that_is_longer_than_a_window(windows, path, length, coding, end):
    text = "password=" + "aB3" * 200
    text = text[: 9 + length] + end
    changed, made = redacted(path, text.encode(coding))
    assert changed and len(made) == len(text.encode(coding))
    said = made.decode(coding)
    assert said[:19] == "password=[redacted]" and said[19:] == "*" * (length - 10) + end


@pytest.mark.parametrize("lead", [60, 128, 150])
def test_a_long_value_in_a_later_window(windows, path, lead):
    text = b"x y " * 50
    text = text[: lead - 9] + b"password=" + b"aB3" * 100
    made = text[:lead] + b"[redacted]" + b"*" * 290
    assert redacted(path, text + b" end") == (True, made + b" end")


def test_what_goes_on_behind_a_known_value_stays(windows, path):
    text = b"open-sesame-and-more " + b"x y " * 50
    assert redacted(path, text, ["open-sesame"]) == (True, b"[redacted]*" + text[11:])


def test_no_more_than_a_window_is_read_at_once(windows):
    class Noted(io.BytesIO):
        most = 0

        def read(self, size=-1):
            found = super().read(size)
            self.most = max(self.most, len(found))
            return found

    file = Noted(b"x y " * 100 + AT_RISK + b"x" * 500)
    assert redacted_files._Windows(file, (), "").redact(0)
    assert file.most == 16 + 64 + 32


def test_what_is_written_into_a_window_that_ends_with_the_file(windows, path):
    for length in range(90, 102):
        text = b"x " * 60
        text = text[: length - 16] + AT_RISK
        assert redacted(path, text) == (True, text[:-7] + b"*" * 7)


# Files that are packed, and no files --------------------------------------------------------------


def test_a_packed_file_is_packed_again(path):
    log = b"password=hunter2\n" + b"line\n" * 500
    assert redacted(path, gzip.compress(log))[0]
    raw = path.read_bytes()
    assert gzip.decompress(raw) == log.replace(b"hunter2", b"*" * 7)
    # Neither the name of the file nor the time is in its head.
    assert raw[:8] == b"\x1f\x8b\x08\0\0\0\0\0"
    assert list(path.parent.iterdir()) == [path]


def test_a_packed_file_keeps_its_mode_and_stays_without_a_secret(path):
    path.write_bytes(gzip.compress(b"an open-sesame here"))
    path.chmod(0o640)
    before = path.stat().st_ino
    assert not redacted_files.redact(path, [])
    assert path.stat().st_ino == before
    assert redacted_files.redact(path, ["open-sesame"])
    assert gzip.decompress(path.read_bytes()) == b"an [redacted]* here"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_packed_file_of_utf_16(path):
    text = "\ufeff" + "x\n" * 600 + "password=hunter2\n"
    assert redacted(path, gzip.compress(text.encode("utf-16-le")))[0]
    made = text.replace("hunter2", "*" * 7).encode("utf-16-le")
    assert gzip.decompress(path.read_bytes()) == made


def test_a_packed_file_is_unpacked_beside_it(path, monkeypatch, tmp_path):
    """Secrets are in no other folder, and the one for temporary files may be a small one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert redacted(path, gzip.compress(AT_RISK))[0]
    assert gzip.decompress(path.read_bytes()) == STARS


def test_of_a_packed_file_that_was_cut_off_the_beginning_is_kept(path):
    whole = gzip.compress(b"password=hunter2\n" + os.urandom(3000))
    assert redacted(path, whole[:2000])[0]
    assert gzip.decompress(path.read_bytes()).startswith(STARS + b"\n")


def test_what_is_no_regular_file_is_left(path, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_bytes(AT_RISK)
    path.symlink_to(theirs)
    assert not redacted_files.redact(path, []) and theirs.read_bytes() == AT_RISK
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "."):
        assert redacted_files.redact(tmp_path / name, []) is False
