"""Rules on the words of tools that prepare a deployment: git, pip, docker, kubectl, curl."""

from __future__ import annotations

import difflib
import itertools
import os.path
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment, Program
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files


def _words(one: Program) -> list[str]:
    return [word for word in one.argv if word != "sudo"]


def _alike(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()


@rule(
    "programs/clone-folder",
    WARNING,
    "The folder that is entered after git clone is the one that it makes.",
    "Write the name as git writes it: the last part of the address, without .git.",
    "git clone: a repository's folder has the name of its address, letter for letter",
)
def clone_folder(d: Deployment) -> Iterator[Problem]:
    """'cd: no such file or directory', and what follows runs in the folder above."""
    made: dict[str, set[str]] = {}
    for one in d.programs:
        words = _words(one)
        if words[:2] == ["git", "clone"]:
            made.setdefault(one.spot.file, set()).update(_cloned(words[2:]))
        elif words[:1] == ["cd"] and len(words) == 2:
            known = made.get(one.spot.file, set())
            folder = words[1].removeprefix("./").partition("/")[0]
            near = [name for name in known if _alike(name) == _alike(folder)]
            if near and folder not in known:
                yield Problem(
                    one.spot,
                    f"cd {words[1][:60]}: git clone has made {near[0]}",
                    f"Write cd {words[1].replace(folder, near[0], 1)[:60]}.",
                )


def _cloned(words: Sequence[str]) -> Iterator[str]:
    """Yield the folder that a call of git clone makes, and the one that it is told to make."""
    for address, after in itertools.pairwise([*words, ""]):
        if re.match(r"(https?|ssh|git)://|git@", address):
            yield os.path.basename(address.rstrip("/")).removesuffix(".git")
            if after and not after.startswith("-"):
                yield after.removeprefix("./").partition("/")[0]


@rule(
    "programs/option-form",
    WARNING,
    "An option is written in one of its forms: -p or --port.",
    "Write two dashes before a long name, and one of the two forms of an option.",
    "pflag of docker, kubectl and helm, argparse, curl: one dash begins short options",
)
def option_form(d: Deployment) -> Iterator[Problem]:
    """'unknown shorthand flag', or the rest of the word becomes the value of a short option."""
    long = data_files.facts("catalog/versions")["long_options"]
    for spot, argv in d.commands():
        words = [word for word in argv if word != "sudo"]
        tool = os.path.basename(words[0]) if words else ""
        for word, after in itertools.pairwise(words[1:]):
            if word == after and re.fullmatch(r"--[a-z][\w-]+", word) and word not in _COUNTED:
                yield Problem(spot, f"{word} stands twice, and is the first one's value")
        for word in itertools.takewhile(lambda word: word != "--", words[1:]):
            if re.fullmatch(r"-[A-Za-z],\s*--[a-z][\w-]+", word):
                yield Problem(spot, f"{word[:40]} is copied from a help text: both forms")
            if re.match(r"-{3,}[a-z]", word):
                yield Problem(spot, f"{word[:40]} has more than two dashes")
            name = word.partition("=")[0]
            if name[:1] == "-" != name[1:2] and name[1:] in long.get(tool, ()):
                yield Problem(spot, f"{name} has one dash", f"Write -{name}.")


_COUNTED = ("--verbose", "--quiet", "--debug")
_PIP = ("pip", "pip3")
# What pip reads as a requirement; a range without quotes is a redirection, and gone by then.
_SPLIT = re.compile(r"[A-Za-z][\w.-]*\[[\w-]+(,[\w-]+)*,?")


@rule(
    "programs/pip-words",
    WARNING,
    "A package is installed by pip install, and each package is one word.",
    "Write pip install 'NAME[EXTRA,EXTRA]'.",
    "pip install --help; coreutils: install copies files",
)
def pip_words(d: Deployment) -> Iterator[Problem]:
    """'missing destination file operand', or 'Invalid requirement': nothing is installed."""
    for one in d.programs:
        words = _words(one)
        name = os.path.basename(words[0]) if words else ""
        if name == "install" and len(words) == 2 and re.fullmatch(r"[a-z][\w-]*", words[1]):
            yield Problem(one.spot, f"install {words[1]} copies files, and has no place for them")
        if "install" not in words[:5] or not {*_PIP, "uv"} & set(words[:4]):
            continue
        for word, after in itertools.pairwise([*words, ""]):
            if _SPLIT.fullmatch(word):
                yield Problem(one.spot, f"a blank parts {word} from {after or 'its extras'}")


_KINDS = "service|svc|pod|po|deployment|deploy|statefulset|sts|job|configmap|cm|secret"


@rule(
    "programs/kubectl-name",
    WARNING,
    "Names in Kubernetes have small letters, digits and dashes.",
    "Write the name in small letters, with dashes.",
    "RFC 1123 labels, as Kubernetes asks them of names and namespaces",
)
def kubectl_name(d: Deployment) -> Iterator[Problem]:
    """'Invalid value', or 'not found': no object can have such a name."""
    for one in d.programs:
        words = _words(one)
        if os.path.basename(words[0]) != "kubectl" if words else True:
            continue
        for before, word in itertools.pairwise(words):
            match = re.fullmatch(rf"(?:{_KINDS})/([\w.-]+)", word)
            name = match[1] if match else word if before in ("-n", "--namespace") else ""
            # All in capitals it stands for a name.
            if re.search(r"[A-Z_]", name) and re.search(r"[a-z]", name) and not _open(name):
                yield Problem(one.spot, f"no object of Kubernetes can be called {name[:60]}")


def _open(name: str) -> bool:
    """Return whether a reader is to put a name in."""
    return fill_ins.holds(name) or re.search(r"(?i)^your|<|>|\$", name) is not None


@rule(
    "programs/module-name",
    WARNING,
    "A module has one name in all commands of a file.",
    "Spell it as the other commands do.",
    "python -m: 'No module named'",
)
def module_name(d: Deployment) -> Iterator[Problem]:
    """'No module named ...': two letters have changed places."""
    named: dict[str, Counter[str]] = {}
    spots: dict[tuple[str, str], Spot] = {}
    for one in d.programs:
        for before, word in itertools.pairwise(one.argv):
            if before == "-m" and "." in word:
                named.setdefault(one.spot.file, Counter())[word] += 1
                spots.setdefault((one.spot.file, word), one.spot)
    for file, count in named.items():
        parts = Counter(part for word in count for part in word.split("."))
        for word in count:
            for part in word.split("."):
                same = [other for other in parts if _swapped(part, other)]
                if same and parts[part] < max(parts[other] for other in same):
                    right = max(same, key=parts.__getitem__)
                    yield Problem(spots[file, word], f"{part} in {word}; elsewhere it is {right}")


def _swapped(one: str, other: str) -> bool:
    """Return whether two names differ by letters that have changed places."""
    return (
        one != other
        and len(one) > 4
        and sorted(one) == sorted(other)
        and difflib.SequenceMatcher(None, one, other).ratio() > 0.8
    )


@rule(
    "programs/script-folder",
    WARNING,
    "The folder of scripts has one name in all commands of a file.",
    "Spell it as the other commands do.",
    "one letter more or less in a path that occurs once",
)
def script_folder(d: Deployment) -> Iterator[Problem]:
    """'can't open file': the folder of that name is not there."""
    by_file: dict[str, list[tuple[Spot, str]]] = {}
    for spot, argv in d.commands():
        for word in argv[:4]:
            if re.fullmatch(r"/[\w.-]+/[\w./-]+\.(py|sh)", word):
                by_file.setdefault(spot.file, []).append((spot, word.split("/")[1]))
    for named in by_file.values():
        count = Counter(first for _, first in named)
        for spot, first in named:
            near = [one for one in count if count[one] > 1 and _one_more(first, one)]
            if count[first] == 1 and near:
                yield Problem(spot, f"/{first} in a path; elsewhere it is /{near[0]}")


def _one_more(one: str, other: str) -> bool:
    """Return whether a name is another with one letter more, and no digit."""
    return len(one) == len(other) + 1 and any(
        one[:at] + one[at + 1 :] == other and one[at].isalpha() for at in range(len(one))
    )


_LAUNCH = re.compile(
    r"--(nnodes|nproc[-_]per[-_]node|node[-_]rank|master[-_]addr|master[-_]port|rdzv[-_]\w+)(=|$)"
)


@rule(
    "programs/torchrun-option",
    WARNING,
    "The options of torchrun stand before the script that it starts.",
    "Move them in front of the script.",
    "torchrun --help: what follows the script is handed to it",
)
def torchrun_option(d: Deployment) -> Iterator[Problem]:
    """The script refuses them, or every node believes that it is the first, and waits."""
    for one in d.programs:
        words = _words(one)
        if os.path.basename(words[0] if words else "") != "torchrun":
            continue
        script = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
        if not any(map(_LAUNCH.match, words[:script])):
            continue
        late = [word for word in words[script:] if _LAUNCH.match(word)]
        if late:
            yield Problem(one.spot, f"{late[0]} stands behind {words[script][:60]}")
