"""Read the engines and the router of a bundle from the text of its scripts, and from nothing else.

What bash would do is done by hand for the few forms that our scripts have: continued lines,
quotes, ``export``, the seven arguments of run_dp_template.sh, and the ``case`` of a SLURM job.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

JOBS = {"4": "jobs/4_baseline.sbatch", "6": "jobs/6_optimised.sbatch"}


@dataclass(frozen=True)
class Line:
    """One engine as a script starts it: the words after ``vllm serve``, and what it exports."""

    node: str
    argv: tuple[str, ...]
    env: dict[str, str]
    options: tuple[str, ...] = ()  # of the container that runs it


def lines(text: str, having: str) -> Iterator[list[str]]:
    """Yield the words of each line that has these; a backslash continues a line."""
    for line in text.replace("\\\n", " ").splitlines():
        if having in line and not line.lstrip().startswith("#"):
            yield shlex.split(line)


def engines(files: Mapping[str, str], nodes: list[str]) -> list[Line]:
    """Return the engines of the nodes' scripts, in the order of the nodes."""
    found: list[Line] = []
    for node in nodes:
        if f"{node}/launch.sh" in files:
            found += _ranks(node, files[f"{node}/launch.sh"], files[f"{node}/run_dp_template.sh"])
        elif f"{node}/serve.sh" in files:
            text = files[f"{node}/serve.sh"]
            found.append(Line(node, tuple(_served(text)), exports(text)))
        elif f"{node}/docker_run.sh" in files:
            found.append(_contained(node, files[f"{node}/docker_run.sh"]))
    return found


def job_engines(text: str, nodes: list[str], addresses: list[str]) -> list[Line]:
    """Return the engines of a SLURM job, for a job that got the nodes in this order."""
    common = _served(text)
    own = re.findall(r"^ +([0-9]+)\) own=\((.*?)\) ;;$", text, re.MULTILINE)
    env = exports(text)
    if not own:
        return [Line(nodes[0], tuple(common), env)]
    assert common[-1] == "${own[@]}"
    shared = [addresses[0] if word == "$leader" else word for word in common[:-1]]
    return [Line(nodes[int(number)], (*shared, *shlex.split(words)), env) for number, words in own]


def router(text: str, addresses: list[str]) -> list[str] | None:
    """Return the words of the router that a script starts; None where it starts none."""
    for program in ("vllm-router", "load_balance_proxy_server_example.py"):
        for words in lines(text, f"{program} "):
            told = words[words.index(program) + 1 :] if program in words else []
            if "--port" in told:  # else it is an installation, or a test whether it is there
                return [_replica(word, addresses) for word in told if word != "&"]
    return None


def _replica(word: str, addresses: list[str]) -> str:
    return re.sub(r"\$replica([0-9]+)", lambda found: addresses[int(found[1])], word)


def ports(text: str) -> list[int]:
    """Return the ports that a node.env says its engines and its router will listen at."""
    (found,) = re.findall(r"^PORTS=(\$?'.*?'|)$", text, re.MULTILINE | re.DOTALL)
    return sorted(int(number) for number in re.findall(r"^\W*([0-9]+) ", found, re.MULTILINE))


def exports(text: str) -> dict[str, str]:
    """Return the variables that a script exports, with the last value of each."""
    return {
        name: value
        for words in lines(text, "export ")
        if words[0] == "export"
        for name, sign, value in (word.partition("=") for word in words[1:])
        if sign
    }


def _served(text: str) -> list[str]:
    (found,) = [words for words in lines(text, "vllm serve ") if ["vllm", "serve"] in _pairs(words)]
    return found[_pairs(found).index(["vllm", "serve"]) + 2 :]


def _pairs(words: list[str]) -> list[list[str]]:
    return [words[at : at + 2] for at in range(len(words) - 1)]


def _contained(node: str, text: str) -> Line:
    (words,) = lines(text, "exec docker run ")
    (at,) = [i for i, word in enumerate(words) if re.match(r"vllm/vllm-openai(-rocm)?:v", word)]
    options = words[3:at]
    env = dict(
        value.partition("=")[::2] for word, value in itertools.pairwise(options) if word == "-e"
    )
    return Line(node, tuple(words[at + 1 :]), env, tuple(options))


def _ranks(node: str, launch: str, template: str) -> list[Line]:
    """Return what run_dp_template.sh executes for each local rank that launch.sh asks for."""
    (words,) = lines(launch, "launch_online_dp.py ")
    given = words[words.index("launch_online_dp.py") + 1 :]
    asked = dict(zip(given[::2], given[1::2], strict=True))
    tp, first = int(asked["--tp-size"]), int(asked["--vllm-start-port"])
    assert int(asked["--devices"]) >= int(asked["--dp-size-local"]) * tp
    found = []
    for local in range(int(asked["--dp-size-local"])):
        seven = {
            "$1": ",".join(str(device) for device in range(local * tp, local * tp + tp)),
            "$2": str(first + local),
            "$3": asked["--dp-size"],
            "$4": str(int(asked["--dp-rank-start"]) + local),
            "$5": asked["--dp-address"],
            "$6": asked.get("--dp-rpc-port", "12345"),
            "$7": asked["--tp-size"],
        }
        env = {name: seven.get(value, value) for name, value in exports(template).items()}
        argv = tuple(seven.get(word, word) for word in _served(template))
        found.append(Line(node, argv, env))
    return found
