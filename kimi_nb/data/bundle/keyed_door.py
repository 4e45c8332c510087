"""Ask for a key in front of a proxy that asks nobody.

    python keyed_door.py --host 10.0.0.1 --port 1999 -- PROXY --host {host} --port {port} ...

The proxies of prefill-decode disaggregation send the engines the value of OPENAI_API_KEY, whoever
calls them, and vllm-router in front of equal engines takes more of them from anybody (/add_worker).
This starts one on a free port of 127.0.0.1, and passes on only what comes with
`Authorization: Bearer` and that value. /health and /healthcheck are open, as vLLM's own are. A
connection carries one request. It ends when the proxy ends, with the same code.
"""

import asyncio
import hmac
import os
import signal
import socket
import sys
import time

OPEN = ("/health", "/healthcheck")
INSIDE = "127.0.0.1"
LONGEST_HEAD = 1 << 16  # bytes
PATIENCE = 30  # seconds for the head of a request
REFUSED = b'{"error":"Unauthorized"}'
AWAY = b'{"error":"The proxy behind this door does not answer."}'


def tell(level, text):
    """Write a line in the form of vLLM's own, beside those of the proxy."""
    place = f"{os.path.basename(__file__)}:{sys._getframe(1).f_lineno}"
    print(f"{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] {text}", file=sys.stderr, flush=True)


def answer(status, body):
    """Return a whole response."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def split(head):
    """Return the path without its query, the header lines, and the values of Authorization.

    Raises ValueError for what is no request.
    """
    first, *lines = head[:-4].split(b"\r\n")
    _, target, _ = first.split(b" ")
    keys = [
        line.partition(b":")[2].strip()
        for line in lines
        if line.partition(b":")[0].strip().lower() == b"authorization"
    ]
    return target.partition(b"?")[0].decode("latin-1"), [first, *lines], keys


def holds(keys, key):
    """Return whether a request brings the key, once."""
    return len(keys) == 1 and hmac.compare_digest(keys[0], b"Bearer " + key)


async def pipe(reader, writer):
    """Copy bytes until the end of one side, and tell the other."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def refuse(reader, writer, text):
    """Answer without the proxy; the rest of the request is read, or the answer would be lost."""
    writer.write(text)
    await writer.drain()
    writer.write_eof()
    left = 1 << 20
    while left > 0 and (data := await asyncio.wait_for(reader.read(1 << 16), PATIENCE)):
        left -= len(data)


async def one(reader, writer, key, port):
    """Serve one connection."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        try:
            path, lines, keys = split(head)
        except ValueError:
            return
        keyed = holds(keys, key)
        if not keyed and path not in OPEN:
            await refuse(reader, writer, answer("401 Unauthorized", REFUSED))
            return
        try:
            inner, out = await asyncio.open_connection(INSIDE, port)
        except OSError:
            await refuse(reader, writer, answer("503 Service Unavailable", AWAY))
            return
        kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:"))]
        out.write(b"\r\n".join([*kept, b"Connection: close", b"", b""]))
        # Without the key the head is all that is passed on: more would be another request.
        asking = asyncio.ensure_future(pipe(reader, out)) if keyed else None
        try:
            await pipe(inner, writer)
        finally:
            if asking:
                asking.cancel()
            out.close()
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()


async def serve(host, port, command, key):
    """Start the proxy and the door, and return the exit code of the proxy."""
    with socket.socket() as free:
        free.bind((INSIDE, 0))
        inside = free.getsockname()[1]
    words = [word.replace("{host}", INSIDE).replace("{port}", str(inside)) for word in command]
    door = await asyncio.start_server(
        lambda reader, writer: one(reader, writer, key, inside), host, port, limit=LONGEST_HEAD
    )
    proxy = await asyncio.create_subprocess_exec(*words)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: proxy.returncode is None and proxy.terminate())
    tell("INFO", f"The door at {host}:{port} asks for the key; behind it: {' '.join(words)}")
    try:
        code = await proxy.wait()
    finally:
        door.close()
    return 128 - code if code < 0 else code


def main(argv):
    """Return the exit code."""
    try:
        at = argv.index("--")
        given, command = argv[:at], argv[at + 1 :]
        options = dict(zip(given[::2], given[1::2], strict=True))
        host, port = options["--host"], int(options["--port"])
    except (ValueError, KeyError):
        print(__doc__, file=sys.stderr)
        return 2
    key = os.environ.get("OPENAI_API_KEY", "")
    if not key or not command:
        tell("ERROR", "OPENAI_API_KEY is not set: there is no key to ask for.")
        return 2
    try:
        return asyncio.run(serve(host, port, command, key.encode()))
    except OSError as error:
        tell("ERROR", f"{host}:{port}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
