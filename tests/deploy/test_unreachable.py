"""Why a node cannot be reached is said in words, and what to do fits it."""

from __future__ import annotations

import socket

import paramiko
import pytest

from kimi_nb.deploy import unreachable
from kimi_nb.diagnose import remedies


def _refused() -> str:
    """What pyinfra says where nothing listens: paramiko's error in its parentheses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(OSError, match="Unable to connect") as found:
        paramiko.SSHClient().connect("127.0.0.1", port, allow_agent=False, look_for_keys=False)
    return f"Could not connect ({found.value})"


def test_a_refused_connection_has_no_number_of_python() -> None:
    said = _refused()
    assert "[Errno None]" in said
    told = unreachable.why(said)
    assert "Errno" not in told and "127.0.0.1" in told
    assert told.startswith("nothing takes connections at port ")
    assert "other nodes answered" in unreachable.way_out(said, others=True)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Could not connect ([Errno 113] No route to host)", "No route to host"),
        ("Could not connect (timed out)", "timed out"),
        (
            "Could not resolve hostname ([Errno -2] Name or service not known)",
            "Name or service not known",
        ),
        ("EOF error ()", "EOF error ()"),
    ],
)
def test_the_reason_is_what_the_system_says(said: str, told: str) -> None:
    assert unreachable.why(said) == told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Could not connect (a (b) reason)", "b) reason"),
        ("Could not connect (the other side sent RST_X)", "the other side sent RST_X"),
        ("Authentication failed", "Authentication failed"),
        ("Could not connect ([Errno -2] x [Errno None] y)", "x y"),
        (
            "Could not connect (Unable to connect to port 22 on 192.0.2.1 or ::1)",
            "nothing takes connections at port 22 of 192.0.2.1 or ::1, or there is no way to it",
        ),
        ("", ""),
    ],
)
def test_the_reason_stands_in_the_last_parentheses(said: str, told: str) -> None:
    assert unreachable.why(said) == told


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Host key for server '192.0.2.1' does not match", "host-key-changed"),
        ("Server '192.0.2.1' not found in known_hosts", "host-key-unknown"),
        ("Authentication error (Authentication failed.)", "key-refused"),
        ("Authentication error: no key worked", "key-refused"),
        ("Invalid private key file: /root/.ssh/id", "key-file"),
        ("not a valid OPENSSH private key file", "key-file"),
        ("Private key file is encrypted", "key-file"),
        ("Could not connect (timed out)", ""),
        ("Could not resolve hostname turkey-01", ""),
        ("Unable to connect to port 22 on key-01", ""),
        ("", ""),
    ],
)
def test_what_to_do_fits_the_reason(said: str, cause: str) -> None:
    for others, otherwise in ((True, "one-node"), (False, "every-node")):
        told = remedies.of(f"reach/{cause or otherwise}")
        assert unreachable.way_out(said, others) == told and told
