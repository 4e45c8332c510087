"""Look for the tuned MoE kernels of a device and its sizes, as the engine does while it loads."""

from __future__ import annotations

import os
from pathlib import Path

from kimi_nb.rehearse import checkpoint_facts
from kimi_nb.rehearse.engine.engine_log import Log
from kimi_nb.rehearse.engine.start.start_settings import Settings
from kimi_nb.rehearse.host_programs import moe_tuner
from kimi_nb.rehearse.stand_in_call import Call

FOLDER = "VLLM_TUNED_CONFIG_FOLDER"
_KIND = "int4_w4a16"  # how the published INT4 weights compute


def choose(call: Call, mine: Settings, log: Log) -> None:
    """Log which file of tuned kernels is used, if a folder of them is named."""
    told, config = call.env.get(FOLDER), checkpoint_facts.sizes(mine.model)
    if not told or config is None:
        return
    file = Path(told, moe_tuner.file_name(call, *_sizes(config, mine), _KIND))
    if (call.folder / file).is_file():
        log.info("fused_moe.py:1151", f"Using configuration from {file} for MoE layer.")
    else:
        log.warning(
            "fused_moe.py:1163",
            "Using default MoE config. Performance might be sub-optimal! Config file not found at "
            f"{os.fspath(file)}",
        )


def _sizes(config: dict[str, int], mine: Settings) -> tuple[int, int]:
    """Return the experts of a device and the size of each.

    All ranks of tensor and data parallelism share the experts, as wholes or each a slice of all.
    """
    experts, size, ranks = (
        config["experts"],
        config["moe_intermediate_size"],
        mine.tp * mine.dp,
    )
    return (experts // ranks, size) if mine.expert_parallel else (experts, size // ranks)
