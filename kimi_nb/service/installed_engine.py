"""Read the flags and variables of an installed vLLM, and compare them with the shipped catalog.

Example::

    dumped = installed_engine.dump("/opt/vllm/bin/python")  # {'version': '0.20.2', 'serve': ...}
    installed_engine.compare(dumped)  # [] where the catalog agrees

The other interpreter runs data/service/dump_vllm.py, which needs no accelerator, no network and no
kimi_nb.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version
from pydantic import ConfigDict, TypeAdapter

from kimi_nb import catalog
from kimi_nb.catalog import differences
from kimi_nb.core import paths
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load

# Importing vLLM from a slow disk takes minutes.
SECONDS = 300
NO_VLLM = 3
_SCRIPT = paths.DATA / "service" / "dump_vllm.py"
# Use no accelerator, no plugin (vllm-ascend changes the parser) and no network.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "ASCEND_RT_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

_STRICT = ConfigDict(strict=True)
_FOUND = TypeAdapter(dict[str, Any], config=_STRICT)
_ROWS = TypeAdapter(dict[str, dict[str, Any]], config=_STRICT)
_TABLES = TypeAdapter(dict[str, dict[str, dict[str, Any]]], config=_STRICT)
_NAMES = TypeAdapter(list[str], config=_STRICT)


def dump(python: str = sys.executable) -> dict[str, Any]:
    """Return what the vLLM of another interpreter accepts, in the shape of the catalog.

    Raises ParameterError where the path is no interpreter, has no vLLM, or cannot import it.
    """
    named = load.user_path(str(python), "--python")
    # A path must stay a path: which() would look a bare name up in PATH.
    path = shutil.which(os.path.abspath(named) if os.sep in str(python) else named)
    if path is None:
        raise ParameterError(
            f"--python {str(python)[:80]!r} is not a program on this machine. "
            "Give the Python of a vLLM environment, such as "
            "/opt/vllm/bin/python."
        )
    code, out, errors = _run([str(path), str(_SCRIPT)])
    if code == NO_VLLM:
        raise ParameterError(
            f"vLLM is not installed in {path}. --python PATH chooses another interpreter."
        )
    with contextlib.suppress(ValueError, KeyError, RecursionError):
        if code == 0:
            return _shaped(_FOUND.validate_python(json.loads(out)))
    listed = catalog.versions("vllm")
    last = (errors.strip().splitlines() or ["it said nothing"])[-1][:300]
    raise ParameterError(
        f"{path} did not tell what its vLLM knows (exit code {code}): {last}\n"
        f"vLLM {listed[0]} to {listed[-1]} can be read; --python PATH chooses "
        f"another interpreter. To see it all: {path} {_SCRIPT}"
    )


def compare(dumped: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference between `dump`'s result and the catalog.

    The catalog's row is that of the version, or the row that stands for it.
    """
    version = dumped["version"]
    row = catalog.engine("vllm", _release(version))
    shipped = differences.at(row)
    found = differences.entries(dumped, (version,), version)
    out = []
    for place in sorted(shipped.keys() | found.keys(), key=lambda place: (place[1:], place[0])):
        kind, where, name = place
        title = f"{where}: {'--' if kind == 'flag' else ''}{name}"
        ours, theirs = shipped.get(place), found.get(place)
        if ours is None:
            out.append(f"{title} is installed and not in the catalog")
        elif theirs is None:
            out.append(f"{title} is in the catalog and not installed")
        else:
            out += [
                f"{title}: {key} {json.dumps(ours.get(key))} in the catalog, "
                f"{json.dumps(theirs.get(key))} installed"
                for key in sorted(ours.keys() | theirs.keys())
                if ours.get(key) != theirs.get(key)
            ]
    return out


def _run(argv: list[str]) -> tuple[int, str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("VLLM_")}
    try:
        process = subprocess.Popen(
            argv,
            env={**env, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return 126, "", str(error)
    with process:
        try:
            out, errors = process.communicate(timeout=SECONDS)
        except BaseException as error:
            # End everything that vLLM has started, on Ctrl-C as well.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise ParameterError(
                f"{argv[0]} was still loading its vLLM after {SECONDS} s, and "
                "was ended. --python PATH chooses another interpreter."
            ) from None
    return process.returncode, out.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


def _shaped(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the script's output in the catalog's shape; its version ranges are this version.

    Raises KeyError or ValueError if it is not what the script prints.
    """
    version = _public(TypeAdapter(str, config=_STRICT).validate_python(found["version"]))
    run = {"first": version, "last": version}

    def names(given: Iterable[str]) -> dict[str, Any]:
        return {name: [dict(run)] for name in sorted(given)}

    commands = {
        command: {
            name: [{**row, **run}]
            for name, row in sorted(_ROWS.validate_python(found[command]).items())
        }
        for command in differences.COMMANDS
    }
    configs = {
        name: {field: [{**row, **run}] for field, row in sorted(fields.items())}
        for name, fields in sorted(_TABLES.validate_python(found["configs"]).items())
    }
    return {
        "version": version,
        **commands,
        "configs": configs,
        "env": names(_NAMES.validate_python(found["env"])),
    }


def _public(version: str) -> str:
    """Return a version without its local label.

    >>> _public("0.20.2+cpu")
    '0.20.2'
    """
    return version.partition("+")[0]


def _release(version: str) -> str:
    """Return the release that a development version leads to.

    >>> _release("0.20.3.dev4")
    '0.20.3'
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        return version
    return parsed.base_version if parsed.is_devrelease else version
