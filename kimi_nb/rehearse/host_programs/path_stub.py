"""Be a stand-in on PATH: pass the call to the rehearsal's spawner, and end as its fork ends.

Sixty engines start within seconds on two cores because this file imports next to nothing, and
because the spawner has imported everything once and forks. ``_socket`` and ``_signal`` are the C
halves of ``socket`` and ``signal``; their Python halves would cost more than the rest of this
program.
"""

import os
import sys
from _signal import SIG_DFL, SIGHUP, SIGINT, SIGTERM, signal
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

FOLDER = "KIMI_NB_REHEARSAL"


def main() -> int:
    """Pass the call to the spawner, and return the exit code or end by the same signal."""
    tool, words = os.path.basename(sys.argv[1]), sys.argv[2:]
    here, folder = os.getcwd(), os.environ.get(FOLDER, "")
    channel = socket(AF_UNIX, SOCK_STREAM)
    try:
        os.chdir(folder)  # the path of a socket is limited to 107 bytes, a run's folder is not
        channel.connect("spawner.sock")
    except OSError as error:
        sys.stderr.write(
            f"REHEARSAL: {tool}: the rehearsal of {folder or '(none)'} has ended "
            f"({error.strerror})\n"
        )
        return 1
    os.chdir(here)
    parts = [tool, here, str(len(words)), *words, *(f"{k}={v}" for k, v in os.environ.items())]
    text = "\0".join(parts).encode("utf-8", "surrogateescape")
    text = len(text).to_bytes(8, "big") + text
    handles = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2))
    sent = channel.sendmsg([text], [(SOL_SOCKET, SCM_RIGHTS, handles)])
    if sent < len(text):  # sending nothing would fail if the other side has ended
        channel.sendall(text[sent:])
    pid = int.from_bytes(channel.recv(8), "big")

    def pass_on(number: int, frame: object) -> None:
        try:  # importing contextlib would cost more than the rest of this program
            os.kill(pid, number)
        except ProcessLookupError:
            return

    for number in (SIGTERM, SIGINT, SIGHUP):
        signal(number, pass_on)
    answer = b""
    while got := channel.recv(65536):
        answer += got
        end = 13 + int.from_bytes(answer[5:13], "big")
        if answer[:5] == b"exec\0" and len(answer) >= max(13, end):
            start, count, *given = answer[13:end].split(b"\0")
            if start:
                os.chdir(start)
            argv, pairs = (
                given[: int(count)],
                (pair.partition(b"=") for pair in given[int(count) :]),
            )
            os.execvpe(argv[0], argv, {name: value for name, _, value in pairs})
    _, _, rest = answer.partition(b"\0")
    code = int(rest or b"1")
    if code < 0:
        if code != -9:  # SIGKILL has no handler
            signal(-code, SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    # Skip the interpreter's shutdown: there is nothing to clean up, and it costs milliseconds.
    result = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(result)
