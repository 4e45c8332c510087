"""Files of others are read up to a bound, and what is no file at all is not waited for."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from kimi_nb.core import bounded_files


def test_a_file_of_its_bound_is_read_whole_and_a_larger_one_not_at_all(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345678")
    assert bounded_files.read(path, 8) == b"12345678"
    with pytest.raises(OSError, match="larger than 0 MB") as caught:
        bounded_files.read(path, 7)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    with path.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than 1 MB"):
        bounded_files.read(path, 1 << 20)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="regular") as caught:
            bounded_files.read(path, 8)
        assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(path))
        assert caught.value.strerror == "not a regular file"
    with pytest.raises(IsADirectoryError):
        bounded_files.read(tmp_path, 8)
    with pytest.raises(FileNotFoundError):
        bounded_files.read(tmp_path / "none", 8)


def test_lines_have_a_bound_each_and_together(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\xef\xbb\xbfab\ncd\n\nef")
    assert list(bounded_files.lines(path, 100)) == ["ab\n", "cd\n", "\n", "ef"]
    assert list(bounded_files.lines(path, 12, 6)) == ["ab\n", "cd\n", "\n", "ef"]
    for most, longest, told in (
        (11, 99, "larger than 0 MB"),
        (99, 5, "a line is larger than 0 KB"),
    ):
        with pytest.raises(OSError, match=told) as caught:
            list(bounded_files.lines(path, most, longest))
        assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
        assert caught.value.strerror == told
    with pytest.raises(OSError, match="a line is larger than 1024 KB"):
        list(bounded_files.lines(Path("/dev/zero"), 1 << 30))
    path.write_bytes((b"x" * 1023 + b"\n") * 3073)
    with pytest.raises(OSError, match=" larger than 3 MB"):
        list(bounded_files.lines(path, 3 << 20))
    path.write_bytes(b"ab\n\xff\n")
    with pytest.raises(UnicodeDecodeError):
        list(bounded_files.lines(path, 100))


def test_lines_come_through_a_pipe_too(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\nb",))
    writer.start()
    assert list(bounded_files.lines(tmp_path / "pipe", 100)) == ["a\n", "b"]
    writer.join()
