"""Check the options of ``docker run`` and their values, with docker's error messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kimi_nb.check.view.deployment import Box
from kimi_nb.rehearse.stand_in_call import Refused


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# From docker run --help of docker 28.2.2, with its undocumented spellings.
_SWITCHES = _set("""
    -d --detach --disable-content-trust --help --init -i --interactive --no-healthcheck
    --oom-kill-disable --privileged -P --publish-all -q --quiet --read-only --rm --sig-proxy
    -t --tty --use-api-socket""")
_VALUED = _set("""
    --add-host --annotation -a --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop
    --cgroup-parent --cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota
    --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus --cpuset-cpus --cpuset-mems
    --detach-keys --device --device-cgroup-rule --device-read-bps --device-read-iops
    --device-write-bps --device-write-iops --dns --dns-opt --dns-option --dns-search --domainname
    --entrypoint -e --env --env-file --expose --gpus --group-add --health-cmd --health-interval
    --health-retries --health-start-interval --health-start-period --health-timeout -h --hostname
    --io-maxbandwidth --io-maxiops --ip --ip6 --ipc --isolation --kernel-memory -l --label
    --label-file --link --link-local-ip --log-driver --log-opt --mac-address -m --memory
    --memory-reservation --memory-swap --memory-swappiness --mount --name --net --net-alias
    --network --network-alias --oom-score-adj --pid --pids-limit --platform -p --publish --pull
    --restart --runtime --security-opt --shm-size --stop-signal --stop-timeout --storage-opt
    --sysctl --tmpfs --ulimit -u --user --userns --uts -v --volume --volume-driver --volumes-from
    -w --workdir""")
_YES, _NO = _set("1 t T TRUE true True"), _set("0 f F FALSE false False")
_SIZES = ("--shm-size", "-m", "--memory", "--memory-swap", "--memory-reservation")
_SIZE = re.compile(r"-1|[0-9]+(\.[0-9]+)? ?([kmgtp]i?)?b?", re.IGNORECASE)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
USAGE = "Usage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]"
_HELP = "Run 'docker run --help' for more information"
OCI = (
    "failed to create task for container: failed to create shim task: OCI runtime create "
    "failed: runc create failed: unable to start container process: error during container "
    "init: "
)


def _usage(text: str) -> Refused:
    return Refused(f"{text}\n\n{USAGE}\n\n{_HELP}", 125)


def daemon(text: str, code: int = 125) -> Refused:
    """Return what the daemon says when it refuses a ``docker run``."""
    return Refused(f"docker: Error response from daemon: {text}\n\n{_HELP}", code)


def too_few(command: str, usage: str) -> Refused:
    """Return what docker says about a command without its arguments."""
    return Refused(
        f"docker: 'docker {command}' requires at least 1 argument\n\n{usage}\n\n"
        f"See 'docker {command} --help' for more information",
        1,
    )


def is_on(box: Box, *names: str) -> bool:
    """Return whether a switch is on, under any of its names."""
    return any(box.options.get(name, ("0",))[-1] in _YES for name in names)


def last(box: Box, *names: str) -> str:
    """Return the last value of an option, under any of its names, or ""."""
    return next((box.options[name][-1] for name in names if name in box.options), "")


def check_words(box: Box, words: Sequence[str]) -> None:
    """Refuse unknown options, options without a value, and switches with a wrong one.

    Raises:
        Refused: As docker does.
    """
    for name, values in box.options.items():
        if name not in _SWITCHES and name not in _VALUED:
            if name.startswith("--"):
                raise _usage(f"unknown flag: {name}")
            word = next((word for word in words if re.match(rf"-[a-zA-Z]*{name[1:]}", word)), name)
            raise _usage(f"unknown shorthand flag: '{name[1:]}' in {word}")
        if name in _SWITCHES and values[-1] not in _YES | _NO:
            raise _usage(
                f'invalid argument "{values[-1]}" for "{name}" flag: strconv.ParseBool: '
                f'parsing "{values[-1]}": invalid syntax'
            )
        if name in _VALUED and values[-1] == "" and not box.image and "=" not in words[-1]:
            short = "" if name.startswith("--") else f"'{name[1:]}' in "
            raise _usage(f"flag needs an argument: {short}{name}")


def check_values(box: Box) -> None:
    """Refuse sizes, mounts and names that are not valid.

    Raises:
        Refused: As docker does.
    """
    for name in _SIZES:
        for value in box.options.get(name, ()):
            if not _SIZE.fullmatch(value):
                raise _usage(
                    f'invalid argument "{value}" for "{name}" flag: invalid size: \'{value}\''
                )
    for mount in (*box.options.get("-v", ()), *box.options.get("--volume", ())):
        source, colon, rest = mount.partition(":")
        inside = rest.partition(":")[0] if colon else source
        if not inside.startswith("/"):
            raise daemon(
                f"invalid volume specification: '{mount}': invalid mount config for "
                f"type \"volume\": invalid mount path: '{inside}' mount path must be "
                "absolute"
            )
    if box.name and not _NAME.fullmatch(box.name):
        raise daemon(
            f"Invalid container name ({box.name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed"
        )
