r"""Find in the bytes of a log by which lines an engine shows that it works.

>>> signs(
...     b'"POST /v1/completions HTTP/1.1" 200 OK\n"POST /v1/completions HTTP/1.1" 500\n', 0, 99, 3
... )
1

They are many: only as many are looked for as are wanted.
"""

from __future__ import annotations

_ANSWERED = b'" 200'  # as uvicorn tells of a request
_ASKED = (b'"POST /v1/', b'"POST /generate ')
# How a line begins or goes on that shows work, and what shows that it is none.
_WORK = (
    (b'"POST /', _ANSWERED, b""),  # also SGLang's /generate
    (b"ecode batch", b"", b""),
    (b"eneration throughput: ", b"", b"throughput: 0.0 tok"),
    (b"] iter = ", b"", b""),  # TensorRT-LLM
    (b"] Received KV cache for request ", b"", b""),
)


def reply(block: bytes) -> int:
    """Return the offset of the first line that tells of an answered request, or -1.

    It shows that the engine served where the line of its start is gone, as after a rotation.
    """
    return min((at for at in (_reply(block, one) for one in _ASKED) if at >= 0), default=-1)


def _reply(block: bytes, asked: bytes) -> int:
    at = block.find(asked)
    while at >= 0:
        end = block.find(b"\n", at)
        if _ANSWERED in block[at : end if end >= 0 else len(block)]:
            return block.rfind(b"\n", 0, at) + 1
        at = block.find(asked, end) if end >= 0 else -1
    return -1


def signs(block: bytes, begin: int, end: int, wanted: int) -> int:
    """Return how many lines between two offsets show that an engine works, at most ``wanted``."""
    found = 0
    for begins, needs, but in _WORK:
        at = block.find(begins, begin, end) if found < wanted else -1
        while at >= 0 and found < wanted:
            after = block.find(b"\n", at, end)
            after = after if after >= 0 else end
            rest = block[at:after]
            found += needs in rest and not (but and but in rest)
            at = block.find(begins, after, end)
    return found
