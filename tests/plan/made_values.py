"""Hardware, recipes and engines that tests make, with as little in them as they need."""

from __future__ import annotations

from kimi_nb.params import load, schema
from kimi_nb.plan.spec import EngineSpec

SOURCE = schema.Source(document="guide", section="1")


def chip(name: str, count=8, memory=128, vendor="nvidia", like=None, **peaks) -> schema.Hardware:
    """A hardware of 8 devices of 128 GB that compute BF16 alone, but for what is said."""
    h200 = load.hardware("h200")
    figures = {"bf16_tflops": 1000} | peaks
    known = {key: value for key, value in figures.items() if value is not None}
    return h200.model_copy(
        update={
            "name": name,
            "vendor": vendor,
            "like": like,
            "devices": h200.devices.model_copy(update={"count": count, "memory_gb": memory}),
            "peaks": schema.Peaks(
                **{key: {"value": value, "source": "a test"} for key, value in known.items()}
            ),
        }
    )


def recipe(hardware="h200", layout="single", variant="docker", **more) -> schema.Recipe:
    names = ("prefill", "decode") if layout == "pd" else ("mixed",)
    made = schema.Recipe(
        hardware=hardware,
        layout=layout,
        variant=variant,
        title="A recipe of a test",
        source=SOURCE,
        engine_version="0.25.1",
        weights="int4",
        install="docker",
        router="upstream" if layout == "pd" else None,
        roles={name: {} for name in names},
    )
    return made.model_copy(update=more)


def engine(*argv: str, **more) -> EngineSpec:
    """An engine of one rank of 8 devices on one node, but for what is said."""
    given = {
        "name": "mixed0-rank0",
        "node": "n0",
        "address": "192.0.2.1",
        "role": "mixed",
        "group": 0,
        "rank": 0,
        "ranks": 1,
        "dp_size": 1,
        "tp_size": 8,
        "devices": tuple(range(8)),
        "http_port": 8000,
        "kv_port": None,
        "rpc_port": None,
        "side_channel_port": None,
        "headless": False,
        "env": {},
        "argv": ("vllm", "serve", "m", *argv),
    }
    return EngineSpec(**given | more)
