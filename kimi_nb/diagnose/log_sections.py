r"""Tell whose the lines of a log are that stand below a command of a shell, or below a heading.

>>> whose("$ kubectl -n llm logs vllm-decode-0 -c vllm --tail=90 | less")
'vllm-decode-0'
>>> whose("root@gpu-07:~# python3 serve.py"), whose("==> logs/node-2.log <=="), whose("$ dmesg")
('gpu-07', 'node-2', '')
>>> whose("INFO 11-22 05:49:28 [a.py:7] up") is None
True

What somebody pastes of a terminal names the pod, the container or the host only there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_PROMPT = r"(?:\([\w.-]+\) ?)?(?:[\[(]?[\w.-]+@[\w.-]+[:~ ][^$#\n]{0,80}[$#] ?|\$ )"
_TOOLS = r"(?:kubectl|oc|k|docker|podman|nerdctl|crictl|ssh)"
# What such lines hold; `prefilter` looks for them, fastest for what few lines hold.
HEADS = (
    r"^\$ \w",
    r"\w@[\w.-]{1,64}[:~ ][^$#\n]{0,80}[$#] ?\w",
    rf"^(?:[#+>] )?(?:sudo )?{_TOOLS} [^\n]{{0,200}}\b(?:logs?|describe|exec|attach|tail|cat)\b",
    r"^==> [^\n]{1,200} <==",
    r"^(?:={3,}|-{3,}|#{3,}|\*{3,}) ?[A-Za-z0-9]",  # a heading; its end would take long to look for
    r"^[\w.-]{1,80} \| (?:FAILED|CHANGED|SUCCESS|UNREACHABLE!) (?:\||=>) ",
)
_HOST = re.compile(r"(?:\([\w.-]+\) ?)?[\[(]?[\w.-]+@(?P<host>[\w.-]+)")
_TITLE = r"(?:={3,}|-{3,}|#{3,}|\*{3,}) ?(?:(?:rank|node|worker|host|pod)[ :]{1,2})?[A-Za-z0-9][\w./-]{0,80} ?[=#*-]{3,}$"
_HEADS = tuple(map(re.compile, (rf"^{_PROMPT}\w", *HEADS[2:4], _TITLE, HEADS[5])))
# A heading, of which only a number tells that it names one of several, and what Ansible puts above.
_HEADING = re.compile(
    r"(?:={3,}|-{3,}|#{3,}|\*{3,}) ?(?:(?:node|worker|host|pod)[ :]{1,2})?(?P<name>\w[^=#*]*?) ?[=#*-]{3,}$"
)
_ANSIBLE = re.compile(r"(?P<name>[\w.-]{1,80}) \| [A-Z]")
_FILE = re.compile(r"^==> (?P<path>[^\n]{1,200}) <==")
_BEFORE = re.compile(rf"{_PROMPT}|[#+>] ")
_ENDS = re.compile(r" *(?:\||;|&&|>|2>|<)")  # what ends a command
_LONGEST = 400  # characters of a command that are read
_LOG = re.compile(r"(?:.*/)?(?P<stem>[\w-][\w.-]*?)\.(?:log|out|err|txt)(?:\.gz)?$")
_OF_HOST = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*): +[\w./-]+\.(?:log|out|err|txt)$")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*$")
# Options behind which their value stands, by the program.
_VALUED = {
    "kube": (
        *("-n", "--namespace", "-c", "--container", "--tail", "--since", "--since-time"),
        *("--context", "--kubeconfig", "--limit-bytes", "--cluster", "--user"),
    ),
    "docker": ("-n", "--tail", "--since", "--until", "-f", "--file", "-p", "-e", "-u", "-w"),
    "ssh": ("-p", "-i", "-o", "-J", "-l", "-F", "-L", "-R", "-D"),
}
_KUBE = ("kubectl", "oc", "k")
_DOCKER = ("docker", "podman", "nerdctl", "crictl")
_READS = ("tail", "cat", "less", "more", "head", "zcat", "grep", "vi", "vim")
_OF_PODS = ("pod", "pods", "po")


def whose(line: str) -> str | None:
    """Return the name of the pod, container, host or file whose lines follow.

    The result is "" where a line is a command that tells none, and None where it is none.
    """
    line = line[:_LONGEST]
    if not any(one.match(line) for one in _HEADS):
        return None
    if named := _FILE.match(line):
        return _stem(named["path"])
    if titled := _HEADING.match(line):
        name = _stem(titled["name"]) or titled["name"]
        return name if any(map(str.isdigit, name)) else None
    if told := _ANSIBLE.match(line):
        return told["name"]
    before = _BEFORE.match(line)
    host = _HOST.match(line)
    words = line[before.end() if before else 0 :]
    words = words[: cut.start()] if (cut := _ENDS.search(words)) else words
    return _of(words.split()) or (host["host"] if before and host else "")


def _of(words: Sequence[str]) -> str:
    """Return of whom a command prints what was logged, or ""."""
    words = [one for one in words if one != "sudo"]
    if not words:
        return ""
    program, rest = words[0].rpartition("/")[2], words[1:]
    if program in _KUBE:
        return _of_pod(rest)
    if program in _DOCKER:
        return _of_container(rest)
    if program == "ssh":
        host = next(_names(rest, _VALUED["ssh"]), "").rpartition("@")[2]
        return host if _NAME.match(host) else ""
    if program in _READS:
        return next(filter(None, map(_stem, rest)), "")
    return ""


def _of_pod(words: Sequence[str]) -> str:
    if "-l" in words or any(one.startswith(("-l=", "--selector")) for one in words):
        return ""  # of several
    verb, *rest = [*_names(words, _VALUED["kube"]), ""]
    if verb == "describe":
        kind, _, name = rest[0].partition("/")
        name = name or next(iter(rest[1:]), "")
        return name if kind in _OF_PODS and _NAME.match(name) else ""
    name = rest[0].rpartition("/")[2] if verb in ("logs", "log", "exec", "attach") and rest else ""
    return name if _NAME.match(name) else ""


def _of_container(words: Sequence[str]) -> str:
    names = list(_names(words, _VALUED["docker"]))
    names = names[1:] if names[:1] in (["compose"], ["container"], ["service"]) else names
    told = len(names) > 1 and names[0] in ("logs", "exec", "attach") and _NAME.match(names[1])
    return names[1] if told else ""


def _names(words: Sequence[str], valued: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command that are no options and no values of any."""
    skips = False
    for word in words:
        if word == "--":
            return
        if not (skips or word.startswith("-")):
            yield word.strip("'\"")
        skips = not skips and word in valued


def _stem(path: str) -> str:
    if told := _OF_HOST.match(path):
        return told["host"]
    found = _LOG.match(path.strip("'\""))
    return found["stem"] if found else ""
