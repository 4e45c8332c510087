"""Stand in for vLLM's tuner of the MoE kernels, benchmarks/kernels/benchmark_moe.py.

It measures nothing, and writes the file of the shape that the real one would tune: the sizes come
from the checkpoint's config.json, as far as the tuner knows its architecture. How it reads
Kimi-K2.5's was tried with the real functions (vLLM 0.11.2 to 0.32.0 with transformers 5.17).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kimi_nb import catalog
from kimi_nb.core import data_files
from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.host_programs import installed_packages
from kimi_nb.rehearse.host_programs.command_words import inside
from kimi_nb.rehearse.host_programs.docker_run import visible_here
from kimi_nb.rehearse.stand_in_call import Call, Refused

# Of the architectures that have a branch of their own, the one that Kimi's checkpoints have inside.
_KNOWN = ("DeepseekV3ForCausalLM",)
_BATCHES = 18  # sizes that it tunes where none is named


def benchmark_moe(call: Call) -> int:
    """Run ``python benchmark_moe.py --model FOLDER --tune --save-dir FOLDER ...``."""
    packages = installed_packages.importable(call)
    for module in ("ray", "torch", "transformers", "vllm"):
        if packages is not None and module not in packages and not _with_vllm(module, packages):
            raise _traceback("<module>", f"ModuleNotFoundError: No module named '{module}'")
    given = _options(call.words)
    print(f"{MARK}: {given}")
    config = _config(call, given.model)
    if given.model_prefix:
        if given.model_prefix not in config:
            raise _attribute(_class(config), given.model_prefix)
        config = config[given.model_prefix]
    experts, size = _shape(config, _transformers(call, packages or {}))
    if given.enable_expert_parallel:
        if experts % given.tp_size:
            raise _traceback(
                "ensure_divisibility",
                f"AssertionError: Number of experts {experts} is not divisible by tp {given.tp_size}.",
            )
        experts //= given.tp_size
    else:
        size //= given.tp_size
    if not visible_here(call.env, call.site):
        raise _traceback("main", "KeyError: 'GPU'")
    if not given.tune:
        print(f"{MARK}: would measure the kernels of E={experts}, N={size}")
        return 0
    _save(call, given, file_name(call, experts, size, given.dtype))
    return 0


def file_name(call: Call, experts: int, size: int, dtype: str) -> str:
    """Return the name of the file for these sizes, as the engine looks for it."""
    device = call.site.device.replace(" ", "_")
    kind = "" if dtype == "auto" else f",dtype={dtype}"
    return f"E={experts},N={size},device_name={device}{kind}.json"


def _options(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line.

    Raises:
        Refused: The real program would not take them.
    """

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise Refused(f"{self.format_usage()}{self.prog}: error: {message}", 2)

    parser = Parser("benchmark_moe.py")
    parser.add_argument("--model", default="mistralai/Mixtral-8x7B-Instruct-v0.1")
    parser.add_argument("--tp-size", "-tp", "--tensor-parallel-size", type=int, default=2)
    parser.add_argument("--enable-expert-parallel", "-enable-ep", action="store_true")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--use-deep-gemm", action="store_true")
    parser.add_argument("--save-dir", default="./")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, nargs="+")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--model-prefix", default="")
    return parser.parse_args(list(words))


def _config(call: Call, model: str) -> dict[str, Any]:
    """Return the configuration in the folder of a checkpoint.

    Raises:
        Refused: There is none.
    """
    path = call.folder / model / "config.json"
    if not path.is_file():
        raise _traceback(
            "main",
            f"OSError: Can't load the configuration of '{model}'. If you were trying to load it from "
            "'https://huggingface.co/models', make sure you don't have a local directory with the "
            f"same name. Otherwise, make sure '{model}' is the correct path to a directory "
            "containing a config.json file",
        )
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _shape(config: Mapping[str, Any], transformers: str) -> tuple[int, int]:
    """Return the number of experts and the size of each, as the tuner takes them.

    An architecture that it does not know is taken for Mixtral, whose experts are as large as its
    other layers. transformers has Mixtral's name for the number of experts from version 5 on.

    Raises:
        Refused: The configuration does not have the attribute.
    """
    text = config.get("text_config", config)
    if config.get("architectures", ["?"])[0] in _KNOWN:
        return text["n_routed_experts"], text["moe_intermediate_size"]
    if "n_routed_experts" not in text:
        raise _attribute("KimiLinearConfig", "num_local_experts")
    if transformers.partition(".")[0] == "4":
        raise _attribute("DeepseekV3Config", "num_local_experts")
    return text["n_routed_experts"], text["intermediate_size"]


def _transformers(call: Call, packages: Mapping[str, str]) -> str:
    """Return the version of transformers, or the newest that the engine's version allows; or ""."""
    told = packages.get("transformers", "")
    engine = catalog.engine(call.site.engine, call.site.engine_version)
    for row in data_files.facts("rehearse/packages")["limits"]:
        if not told and "transformers" in row["names"] and catalog.satisfies(engine, row["vllm"]):
            return f"{int(row['below']) - 1}"
    return told


def _with_vllm(module: str, packages: Mapping[str, str]) -> bool:
    """Return whether vLLM, which is there, has brought a module."""
    return module in ("torch", "transformers") and "vllm" in packages


def _save(call: Call, given: argparse.Namespace, name: str) -> None:
    folder = inside(call, given.save_dir)
    if folder is None:
        raise _traceback("save_configs", f"PermissionError: [Errno 13]: '{given.save_dir}/{name}'")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"Start tuning over {len(given.batch_size or range(_BATCHES))} batch sizes ({MARK})...")
    print(f"Writing best config to {Path(given.save_dir, name)}...")
    says = {"_comment": f"{MARK}: nothing was measured"}
    (folder / name).write_text(json.dumps(says, indent=4) + "\n")
    print("Tuning took 0.00 seconds")


def _class(config: Mapping[str, Any]) -> str:
    return str(config.get("architectures", ["?"])[0]).partition("For")[0] + "Config"


def _attribute(owner: str, name: str) -> Refused:
    return _traceback(
        "get_model_params", f"AttributeError: '{owner}' object has no attribute '{name}'"
    )


def _traceback(where: str, text: str) -> Refused:
    return Refused(
        "Traceback (most recent call last):\n"
        f'  File "benchmarks/kernels/benchmark_moe.py", in {where}\n{text}'
    )
