"""What a stand-in on PATH is: it hands its words to the rehearsal's spawner and ends as that ends.

Sixty engines start within seconds on two cores because this file imports next to nothing; the
spawner has loaded everything once and forks. ``_socket`` and ``_signal`` are the C halves of
``socket`` and ``signal``, whose Python halves would cost more than the rest of this program.
"""

import os
import sys
from _signal import SIG_DFL, SIGHUP, SIGINT, SIGTERM, signal
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

FOLDER = "KIMI_NB_REHEARSAL"


def main() -> int:
    tool, words = os.path.basename(sys.argv[1]), sys.argv[2:]
    here, folder = os.getcwd(), os.environ.get(FOLDER, "")
    channel = socket(AF_UNIX, SOCK_STREAM)
    try:
        os.chdir(folder)  # a socket's path may have 107 bytes, a run's folder more
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
    if sent < len(text):  # to send nothing fails where the other side is done already
        channel.sendall(text[sent:])
    pid = int.from_bytes(channel.recv(8), "big")

    def pass_on(number: int, frame: object) -> None:
        try:  # contextlib would cost more than the rest of this program
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
            count, *given = answer[13:end].split(b"\0")
            argv, pairs = (
                given[: int(count)],
                (pair.partition(b"=") for pair in given[int(count) :]),
            )
            os.execvpe(argv[0], argv, {name: value for name, _, value in pairs})
    _, _, rest = answer.partition(b"\0")
    code = int(rest or b"1")
    if code < 0:
        if code != -9:  # which has no handler
            signal(-code, SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    # No orderly end of the interpreter: there is nothing to tidy, and it costs milliseconds.
    result = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(result)
