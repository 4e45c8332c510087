"""Engines that public sources describe, as deployments that rules and limits can look at.

>>> entry = {"id": "x", "model": "k2-instruct", "precision": "FP8", "hardware": "h200"}
>>> entry |= {"engine": {"package": "vllm", "version": "last"}, "words": ["-tp", "16"]}
>>> of(entry).servers[0].tp
16

Sources write of models for which there is no parameter file: what such a one is like, and what
differs, is in data/check/public_engines.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kimi_nb import catalog
from kimi_nb.check.view import engine_view
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.core import data_files
from kimi_nb.params import load, schema


def of(entry: Mapping[str, Any]) -> Deployment:
    """Return the deployment with one engine that an entry describes.

    The entry has an id, a model, a precision, a hardware, an engine (package, and a version, which
    may be first or last), words, and perhaps env and the draft.
    """
    package, version = entry["engine"]["package"], entry["engine"]["version"]
    listed = catalog.versions(package)
    engine = catalog.engine(package, {"first": listed[0], "last": listed[-1]}.get(version, version))
    model = _model(entry)
    server = engine_view.of(
        engine,
        ["vllm", "serve", model.name, *entry["words"]],
        entry.get("env", {}),
        engine_view.Spot(entry["id"]),
    )
    return Deployment(
        title=entry["id"],
        engine=engine,
        engine_known=True,
        servers=(server,),
        model=model,
        weights=next(iter(model.weights.values())).model_copy(
            update={"precision": entry["precision"]}
        ),
        hardware=load.hardware(entry["hardware"]),
    )


def _model(entry: Mapping[str, Any]) -> schema.Model:
    known = data_files.facts("check/public_engines")["architectures"]
    other = dict(known.get(entry["model"], {}))
    model = load.model(other.pop("like", entry["model"]))
    update: dict[str, Any] = {"architecture": {**model.architecture, **other}}
    if "draft" in entry:
        draft = next(iter(model.drafts.values()))
        update["drafts"] = {"draft": draft.model_copy(update=entry["draft"])}
    return model.model_copy(update=update)
