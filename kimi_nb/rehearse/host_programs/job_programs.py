"""Stand in for the programs with which jobs and installations fetch sources and weights.

They write what the next step looks for, almost empty and within the rehearsal's folder, and
download nothing. ``module`` changes nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from kimi_nb.core.marks import MARK
from kimi_nb.rehearse import checkpoint_facts
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.host_programs import path_folder
from kimi_nb.rehearse.host_programs.command_words import first, inside, not_rehearsed, parts
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

TUNER = "benchmark_moe.py"  # the kernel tuner, in the source of vLLM


def write_tuner(path: Path) -> None:
    """Write the kernel tuner, which calls its stand-in (`moe_tuner`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path_folder.caller("the kernel tuner of vLLM"))


def module(call: Call) -> int:
    """Run ``module``, which changes nothing."""
    call.say(f"{shlex.join(call.words)} changes nothing")
    return 0


def git(call: Call) -> int:
    """Run ``git clone``: write the program that a job runs. Commands that only read are real."""
    command = call.words[0] if call.words else ""
    if command in ("--version", "rev-parse", "status", "log", "describe", "diff", "show"):
        real = call.real()
        if real is None:
            raise Refused("bash: line 1: git: command not found", 127)
        raise Replace((real, *call.words), call.env)
    if command != "clone":
        raise not_rehearsed(call)
    operands, options = parts(
        call.words[1:],
        (
            "--depth",
            "--branch",
            "-b",
            "--origin",
            "-o",
            "--filter",
            "-c",
            "--config",
            "-j",
            "--jobs",
        ),
    )
    if not operands:
        raise Refused("fatal: You must specify a repository to clone.", 129)
    url = operands[0]
    told = (
        operands[1]
        if len(operands) > 1
        else url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    )
    folder = inside(call, told)
    if folder is None:
        raise Refused(f"fatal: could not create work tree dir '{told}': Permission denied", 128)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(
            f"fatal: destination path '{told}' already exists and is not an empty directory.", 128
        )
    write_tuner(folder / "benchmarks" / "kernels" / TUNER)
    call.say(f"would clone {url} {first(options, '--branch', '-b')}".rstrip())
    print(f"Cloning into '{told}'...", file=sys.stderr)
    return 0


def hf(call: Call) -> int:
    """Run ``hf download ID --local-dir DIR``: write the two files that identify a checkpoint."""
    if call.words[:1] == ("version",):
        print(f"huggingface_hub version: 1.0.0 ({MARK})")
        return 0
    if call.words[:1] != ("download",):
        raise not_rehearsed(call)
    operands, options = parts(
        call.words[1:],
        (
            "--local-dir",
            "--cache-dir",
            "--revision",
            "--repo-type",
            "--include",
            "--exclude",
            "--token",
            "--max-workers",
        ),
    )
    if not operands:
        raise Refused(
            "Usage: hf download [OPTIONS] REPO_ID [FILENAMES]...\n"
            "Error: Missing argument 'REPO_ID'.",
            2,
        )
    name, told = operands[0], first(options, "--local-dir")
    _check_checkpoint(call, name, told)
    if call.site.fault(FaultName.DISK_FULL, call.node):
        raise Refused("OSError: [Errno 28] No space left on device", 1)
    call.say(f"would download {name}")
    if told:
        folder = inside(call, told)
        if folder is None:
            raise Refused(f"PermissionError: [Errno 13] Permission denied: '{told}'", 1)
        write_checkpoint(call, folder, name)
    print(
        told
        or f"{call.env.get('HF_HOME', '~/.cache/huggingface')}/hub/"
        f"models--{name.replace('/', '--')}/snapshots/{MARK}"
    )
    return 0


def _check_checkpoint(call: Call, name: str, folder: str) -> None:
    """Refuse a checkpoint that the site does not have, by its id or its target folder.

    Raises:
        Refused: As hf does.
    """
    here = os.path.normpath(call.folder / folder) if folder else ""
    if not {name, folder, here} & set(call.site.weights):
        raise Refused(
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.\n\nRepository Not "
            f"Found for url: https://huggingface.co/api/models/{name}/revision/main.\nPlease make "
            "sure you specified the correct `repo_id` and `repo_type`.\nIf you are trying to "
            "access a private or gated repo, make sure you are authenticated.",
            1,
        )


def write_checkpoint(call: Call, folder: Path, name: str) -> None:
    """Write the files by which a checkpoint is known: its configuration, and an empty index."""
    folder.mkdir(parents=True, exist_ok=True)
    says = f"{MARK}: stands for {name}"
    config = {
        **(checkpoint_facts.config(name) or {}),
        "_comment": says,
        "max_position_embeddings": call.site.context_length,
        "num_attention_heads": call.site.heads,
        "num_hidden_layers": call.site.layers,
    }
    index = {"metadata": {"_comment": says, "total_size": 0}, "weight_map": {}}
    for file, table in (("config.json", config), ("model.safetensors.index.json", index)):
        (folder / file).write_text(json.dumps(table, indent=1) + "\n")


TOOLS: dict[str, Callable[[Call], int]] = {
    "module": module,
    "git": git,
    "hf": hf,
}
