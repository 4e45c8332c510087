"""The settings by which an engine is a client of a shared KV store.

>>> from kimi_nb.params import schema
>>> found = layer(schema.Store(mode="distributed", segment_gb=100), "somewhere")
>>> found.settings["env"]["PYTHONHASHSEED"]
'0'
"""

from __future__ import annotations

from kimi_nb.params import schema
from kimi_nb.params.settings import Layer

CONNECTOR = "MooncakeStoreConnector"
CONFIG = "mooncake.json"  # in each node's folder
PATH_VARIABLE, SEED_VARIABLE = "MOONCAKE_CONFIG_PATH", "PYTHONHASHSEED"


def layer(store: schema.Store, source: str) -> Layer:
    """Return the settings by which an engine uses a store, where ``source`` told of it."""
    return Layer(
        {
            "flags": {"kv-transfer-config": {"kv_connector": CONNECTOR}},
            "env": {PATH_VARIABLE: f"{{node_folder}}/{CONFIG}", SEED_VARIABLE: "0"},
        },
        "recipe",
        f"{store.source or source}, KV store",
    )
