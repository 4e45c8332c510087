"""Context parallelism beside drafts and data parallelism on Ascend: what a version of it refuses.

>>> from kimi_nb import catalog
>>> fault(catalog.engine("vllm", "0.19.1"), "mixed", dcp=2, method="eagle3", draft="a/eagle3")
>>> engine = catalog.engine("vllm-ascend", "0.17.0rc1")
>>> fault(engine, "mixed", dcp=2, method="eagle3", draft="a/eagle3").certain
True
"""

from __future__ import annotations

from typing import NamedTuple

from kimi_nb import catalog
from kimi_nb.core import data_files


class Fault(NamedTuple):
    """What does not go together: what happens, where that is known from, whether it is certain."""

    says: str
    source: str
    certain: bool


def fault(
    engine: catalog.Engine,
    role: str,
    *,
    dcp: int = 1,
    pcp: int = 1,
    dp: int = 1,
    method: str = "",
    draft: str = "",
) -> Fault | None:
    """Return what a version of vllm-ascend says to sizes of context parallelism, None if nothing.

    ``method`` and ``draft`` are those of --speculative-config; a draft with MLA has it in its name.
    """
    if engine.package != "vllm-ascend":
        return None
    holds = {
        "draft": max(dcp, pcp) > 1 and bool(method) and not method.endswith("mtp"),
        "headed draft": dcp > 1 and method in ("eagle", "eagle3") and "mla" not in draft.lower(),
        "mixed draft": max(dcp, pcp) > 1 and bool(method) and role == "mixed",
        "data parallel prefill": pcp > 1 and dp > 1,
        "prefill": pcp > 1,
    }
    rows = data_files.facts("catalog/versions")["context_parallel"]
    found = [
        Fault(row["says"], row["source"], row["certain"])
        for row in rows
        if holds[row["when"]] and catalog.active([row], engine.version)
    ]
    return max(found, key=lambda one: one.certain, default=None)
