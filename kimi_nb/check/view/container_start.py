"""Recognise the command that starts a container: docker run, podman run, nerdctl run.

>>> from kimi_nb.check.view import container_start
>>> from kimi_nb.check.view.engine_view import Spot
>>> words = "docker run --gpus all vllm/vllm-openai:v0.19.1 m".split()
>>> container_start.box(words, {}, Spot("run.sh:3")).image
'vllm/vllm-openai:v0.19.1'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kimi_nb.check.view.commands import base, serve_at, word_at
from kimi_nb.check.view.deployment import Box
from kimi_nb.check.view.engine_view import Spot

# The name under which a box has options that cannot be known.
UNKNOWN = "[@]"
# Options of docker itself, and of docker run, that take no value; every other one does.
_DOCKER_SWITCHES = frozenset(["-D", "--debug", "--tls", "--tlsverify", "--remote", "-r"])
_SWITCHES = frozenset(
    [
        "-d",
        "--detach",
        "-i",
        "--interactive",
        "-t",
        "--tty",
        "--rm",
        "--rmi",
        "--privileged",
        "--init",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--read-only",
        "-P",
        "--publish-all",
        "--sig-proxy",
        "-q",
        "--quiet",
        "--disable-content-trust",
        "--replace",
        "--tls-verify",
        "--env-host",
        "--http-proxy",
        "--no-hosts",
        "--no-hostname",
        "--use-api-socket",
        "--help",
    ]
)
_SHELLS = frozenset(["bash", "sh", "dash", "env", "tini", "dumb-init"])
_ACCELERATORS = re.compile(r"/dev/(davinci[0-9]+|kfd|dri|nvidia[0-9]+)$")


def container_at(words: Sequence[str]) -> int | None:
    """Return the index after ``docker run`` (or podman, nerdctl), None for another command."""
    for name in ("docker", "podman", "nerdctl"):
        at = word_at(words, name)
        if at is None:
            continue
        while at < len(words) and words[at].startswith("-"):  # docker's own options
            at += 1 if "=" in words[at] or words[at] in _DOCKER_SWITCHES else 2
        rest = list(words[at : at + 2])
        if rest[:1] == ["run"]:
            return at + 1
        if rest == ["container", "run"]:
            return at + 2
    return None


_IMAGES = ("apptainer", "singularity", "enroot")
_WITH_VALUE = frozenset(
    [
        "--bind",
        "-B",
        "--env",
        "-e",
        "--env-file",
        "--home",
        "-H",
        "--pwd",
        "--workdir",
        "-W",
        "--overlay",
        "-o",
        "--mount",
        "-m",
        "--conf",
        "-c",
        "--nvccli",
        "--network",
        "--root",
    ]
)


def image_run(words: Sequence[str]) -> tuple[int, str, dict[str, str], bool] | None:
    """Read ``apptainer run|exec``, ``singularity run|exec`` and ``enroot start``.

    Return the index at which the words inside begin, the image, the variables that it is given, and
    whether its own entry point runs; None for another command.

    >>> image_run(
    ...     "apptainer run --nv --env A=1 docker://vllm/vllm-openai:v0.19.1 --model m".split()
    ... )
    (6, 'docker://vllm/vllm-openai:v0.19.1', {'A': '1'}, True)
    """
    for name in _IMAGES:
        at = word_at(words, name)
        if at is None:
            continue
        while at < len(words) and words[at].startswith("-"):
            at += 1
        verb = words[at] if at < len(words) else ""
        if verb not in ("run", "exec", "start"):
            return None
        at += 1
        env: dict[str, str] = {}
        while at < len(words) and words[at].startswith("-"):
            option, equals, text = words[at].partition("=")
            if option in _WITH_VALUE and not equals:
                at += 1
                text = words[at] if at < len(words) else ""
            if option in ("--env", "-e"):
                for pair in text.split(","):
                    key, has, value = pair.partition("=")
                    if has:
                        env[key] = value
            at += 1
        if at >= len(words):
            return None
        return at + 1, words[at], env, verb != "exec"
    return None


def runs_a_tool(box: Box) -> bool:
    """Return whether a container runs a program in place of its own that is no shell and no vLLM.

    It ends with that program, such as a download, and serves nothing.
    """
    entry = " ".join(box.options.get("--entrypoint", ())[-1:])
    return (
        bool(entry)
        and base(entry) not in _SHELLS
        and not any("vllm" in word for word in (entry, *box.argv))
    )


def box(
    words: Sequence[str], env: Mapping[str, str], spot: Spot, node: str = "", at: int | None = None
) -> Box:
    """Read a ``docker run`` command: its options, the image, and what runs inside.

    ``at`` is the index after ``run``; if it is left out, `container_at` finds it.
    """
    at = (container_at(words) or 0) if at is None else at
    options: dict[str, list[str]] = {}
    while at < len(words) and (words[at].startswith("-") or words[at].endswith("[@]}")):
        if words[at].endswith("[@]}"):  # an array of options that cannot be known
            options.setdefault(UNKNOWN, []).append(words[at])
            at += 1
            continue
        name, equals, text = words[at].partition("=")
        if not name.startswith("--"):
            name, equals, text = _glued(words[at], options)
        at += 1
        if not equals and name in _SWITCHES:
            text = "true"
        elif not equals:
            text = words[at] if at < len(words) else ""
            at += 1
        options.setdefault(name, []).append(text)
    image = words[at] if at < len(words) else ""
    if image.strip("${}") in env and image.startswith("$"):
        image = env[image.strip("${}")]
    inside = tuple(words[at + 1 :])

    def all_of(*names: str) -> tuple[str, ...]:
        return tuple(value for name in names for value in options.get(name, ()))

    inner = {
        name: value
        for pair in all_of("-e", "--env")
        for name, equals, value in [pair.partition("=")]
        if equals
    }
    passes = tuple(name for name in all_of("-e", "--env") if "=" not in name)
    for name in passes:  # the container sees what the caller has
        if "$" not in env.get(name, "$"):
            inner.setdefault(name, env[name])
    entry = all_of("--entrypoint")
    runs = serves((*entry, *inside)) or (
        not entry and bool(inside) and (serves_by_itself(image) or serves_by_words(inside, image))
    )
    mounts = (*all_of("-v", "--volume"), *filter(None, map(_mount, all_of("--mount"))))
    devices = (*accelerators(all_of("--device")), *gpus(all_of("--gpus")))
    return Box(
        spot,
        node,
        image,
        (all_of("--name") or ("",))[-1],
        inside,
        mounts,
        devices,
        all_of("-p", "--publish"),
        inner,
        {name: tuple(values) for name, values in options.items()},
        runs,
        passes,
    )


def _glued(word: str, options: dict[str, list[str]]) -> tuple[str, str, str]:
    """Split short options in one word, such as -p8000:8000, -p=8000:8000 or -itd.

    Return the last option, "=" if its value is in the same word, and that value. The options before
    it are switches, and are added to ``options``.
    """
    for place in range(1, len(word)):
        name, rest = f"-{word[place]}", word[place + 1 :]
        if name not in _SWITCHES:
            return name, "=" if rest else "", rest.removeprefix("=")
        if not rest or rest.startswith("="):
            return name, rest[:1], rest[1:]
        options.setdefault(name, []).append("true")
    return word, "", ""


def _mount(text: str) -> str:
    """Convert the value of a ``--mount`` to that of a ``-v``; return "" for a mount in memory."""
    told = dict(pair.partition("=")[::2] for pair in text.strip("\"'").split(","))
    if told.get("type") == "tmpfs":
        return ""
    parts = [
        next((told[name] for name in names if told.get(name)), "")
        for names in (("source", "src"), ("target", "dst", "destination"))
    ]
    only = any(told.get(name, "no") in ("", "true", "1") for name in ("readonly", "ro"))
    return ":".join(filter(None, (*parts, "ro" if only else "")))


def accelerators(devices: Sequence[str]) -> tuple[str, ...]:
    """Return the accelerators among the values of ``--device``, by their names on the host."""
    return tuple(
        name
        for device in devices
        for name in [device.partition(":")[0]]
        if _ACCELERATORS.search(name)
    )


def gpus(told: Sequence[str]) -> tuple[str, ...]:
    """Return the devices of ``--gpus`` as gpu0, gpu1, ...

    A value that cannot be counted (``all``) is returned as written.
    """
    out: list[str] = []
    for text in told:
        listed = False
        for part in text.replace('"', "").replace("'", "").split(","):
            name, equals, value = part.partition("=")
            listed = name == "device" if equals else listed
            if listed:
                value = value if equals else part
                out.append(f"gpu{value}" if value.isdecimal() else value)
            elif name in ("count", "") or not equals:
                value = value if equals else part
                # docker takes the first ones.
                out += (
                    [f"gpu{number}" for number in range(int(value))]
                    if value.isdecimal() and len(value) < 4
                    else [value] * bool(value)
                )
    return tuple(out)


def device_numbers(devices: Sequence[str]) -> tuple[int, ...] | None:
    """Return the numbers of devices on their node, None if any of them is not known."""
    found = [
        re.fullmatch(r"(?:gpu|/dev/davinci|/dev/nvidia)([0-9]{1,3})", name) for name in devices
    ]
    if not found or None in found:
        return None
    return tuple(sorted({int(match[1]) for match in found if match}))


def serves(words: Sequence[str]) -> bool:
    """Return whether words start the engine, directly or in the script of a ``bash -c``."""
    return serve_at(words) is not None or any(
        base(word) in ("bash", "sh")
        and re.fullmatch(r"-[a-z]*c", option)
        and re.search(r"\bvllm\s+serve\b|-m\s+vllm\.entrypoints\.", script)
        for word, option, script in zip(words, words[1:], words[2:], strict=False)
    )


def serves_by_itself(image: str) -> bool:
    """Return whether an image's entry point is the engine.

    The arguments of the container are then those of ``vllm serve``.
    """
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return name.startswith("vllm-openai") or name == "vllm-tpu"


_OF_VLLM = frozenset(
    {
        "--tensor-parallel-size",
        "--gpu-memory-utilization",
        "--max-model-len",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--kv-transfer-config",
        "--enforce-eager",
    }
)


def serves_by_words(words: Sequence[str], image: str = "") -> bool:
    """Return whether the arguments of a container are those of ``vllm serve``.

    Other people's images have it as their entry point too; three of its flags tell, or an image that
    is called vllm and given options with a model among them.

    >>> serves_by_words(["--model", "org/model", "--port", "80"], "registry/org/vllm:1")
    True
    """
    flags = {word.partition("=")[0] for word in words}
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    called = name == "vllm" and "--model" in flags and words[0].startswith("--")
    return called or len(_OF_VLLM & flags) >= 3


def image_engine(image: str) -> tuple[str, str] | None:
    """Return the package and the version that an image's tag names.

    The version is "" for a floating tag. None is returned for the image of another program.
    """
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    package = {"vllm-ascend": "vllm-ascend"}.get(name)
    if package is None and (name.startswith("vllm-openai") or name in ("vllm", "vllm-dev")):
        package = "vllm"
    if package is None:
        return None
    match = re.match(r"v?([0-9]+\.[0-9]+\.[0-9]+(?:\.?(?:rc|post|dev)[0-9]+)*)", tag)
    return package, match[1] if match else ""
