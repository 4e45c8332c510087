"""One call of a node's script: the text that bash reads there, and the lines it answers.

    text = node_call.text(folder, ["claim", "push"], run="r1", holder="me@laptop")
    lines = node_call.lines(output)         # [Line(kind="changed", thing="claim", text="taken")]

The whole script travels with each call, so that a node needs bash and nothing of ours. Needs
nothing but Python: a bundle carries this file for those who run it with pyinfra by hand.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shlex
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Reads all of its input, then runs it: ``bash -s`` would read a pipe byte by byte.
READ = 'eval "$(cat)"'
READER = ("bash", "-c", READ)
KINDS = ("same", "change", "changed", "warn", "fail", "fact")
# From an empty node to started engines; `open` comes when every engine of the plan is ready.
VERBS = ("claim", "prepare", "engine", "weights", "push", "start")
DRY = "dry"  # the verbs behind it only say what they would change


@dataclass(frozen=True)
class Line:
    """One thing that a node has looked at: ``kind`` is one of `KINDS`."""

    kind: str
    thing: str
    text: str


def text(folder: Path, verbs: Sequence[str], *, run: str, holder: str = "", dry: bool = False,
         secrets: Mapping[str, str] | None = None, checksums: bool = False, seen: str = "",
         download: bool = False, leave_host: bool = False) -> str:
    """What `READER` is to read on the node whose files are in ``folder``.

    ``run`` names the run that the node belongs to, ``holder`` the person; ``secrets`` are
    exported there and written nowhere; ``seen`` is how far each log was read. With ``download``
    the verb weights fetches what is missing; with ``leave_host`` no setting of the host is
    changed.
    """
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    values = {"RUN": run, "HOLDER": holder, "DRY": "1" if dry else "", "SEEN": seen,
              "CHECKSUMS": "1" if checksums else "",
              "LEAVE_HOST": "1" if leave_host else "", "FILES": digest(files)}
    if "push" in verbs:
        values["ARCHIVE"] = base64.b64encode(_archive(files)).decode()
    if "weights" in verbs:
        values["DOWNLOAD"] = "1" if download else ""
        values["EDIT"] = "".join(data.decode() for name, data in files.items()
                                 if name.startswith("edit_"))
        values["CHECK_WEIGHTS"] = files["check_weights.py"].decode()
    head = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    head += [f"export {name}={shlex.quote(value)}" for name, value in (secrets or {}).items()]
    body = _only(files["node.sh"].decode(), verbs)
    # The first line ends what a login shell has printed without an end of line.
    return "\n".join(["echo", *head, files["node.env"].decode(),
                      f"set -- {shlex.join(verbs)}", f"{{\n{body}\n}} < /dev/null", ""])


def _only(script: str, verbs: Sequence[str]) -> str:
    """The script without the functions that these verbs do not need, and without comments: bash
    takes longer to read all of it than to do one of them."""
    functions = {match["name"]: match[0] for match in re.finditer(
        r"^(?P<name>\w+)\(\) \{\n.*?^\}\n", script, re.DOTALL | re.MULTILINE)}
    rest = re.sub(r"^\w+\(\) \{\n.*?^\}\n", "", script, flags=re.DOTALL | re.MULTILINE)
    needed = {"say"}
    waiting = [verb for verb in verbs if verb in functions]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += [word for word in re.findall(r"\w+", functions[name])
                    if word in functions and word not in needed]
    lines = "".join(functions[name] for name in functions if name in needed) + rest
    return "\n".join(line for line in lines.splitlines()
                     if line.strip() and not line.lstrip().startswith("#"))


def digest(files: Mapping[str, bytes]) -> str:
    """What tells these files from others, in 16 hexadecimal digits."""
    out = hashlib.sha256()
    for name, data in sorted(files.items()):
        out.update(f"{name} {len(data)}\n".encode())
        out.update(data)
    return out.hexdigest()[:16]


def _archive(files: Mapping[str, bytes]) -> bytes:
    """The files as a tar; the same bytes for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name.endswith((".sh", ".py")) else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def lines(output: Iterable[str]) -> list[Line]:
    """The lines of an answer; what is none (a banner, a message of bash) is left out."""
    out = []
    for line in output:
        kind, _, rest = line.rstrip("\n").partition("\t")
        thing, tab, words = rest.partition("\t")
        if kind in KINDS and tab:
            out.append(Line(kind, thing, words))
    return out
