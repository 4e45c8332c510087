"""What a site file says of a Kubernetes cluster.

>>> Volume(claim="kimi-weights").kind
'claim'
"""

# No postponed annotations: pydantic would compile each of them, at every start.

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kimi_nb.params.fields import Checked, Count, Image, Path, Word
from kimi_nb.params.table import Table

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_QUANTITY = re.compile(r"[1-9][0-9]{0,6}(Mi|Gi|Ti)")


def _label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(
            "a name of Kubernetes is wanted here: small letters, digits and '-', 63 at most"
        )
    return text


def _short_label(text: str) -> str:
    if len(_label(text)) > 30:  # what is appended for a pod has to fit into 63
        raise ValueError("30 characters at most: the names of pods begin with it")
    return text


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise ValueError("the key of a label is wanted here, such as node.kubernetes.io/pool")
    return text


def _resource(text: str) -> str:
    if "/" not in _key(text):
        raise ValueError("a resource of a device plugin is wanted here, such as nvidia.com/gpu")
    return text


def _label_value(text: str) -> str:
    if not _VALUE.fullmatch(text):
        raise ValueError("the value of a label is wanted here: letters, digits, '-', '_' and '.'")
    return text


def _quantity(text: str) -> str:
    if not _QUANTITY.fullmatch(text):
        raise ValueError("an amount of memory is wanted here, such as 1500Gi")
    return text


Label = Annotated[str, Checked(_label)]
ShortLabel = Annotated[str, Checked(_short_label)]
LabelKey = Annotated[str, Checked(_key)]
Resource = Annotated[str, Checked(_resource)]
LabelValue = Annotated[str, Checked(_label_value)]
Quantity = Annotated[str, Checked(_quantity)]


class Toleration(Table):
    """A taint of nodes that the pods tolerate."""

    key: LabelKey
    operator: Literal["Exists", "Equal"] = "Exists"
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _only_equal_has_a_value(self) -> Self:
        if self.value and self.operator == "Exists":
            raise ValueError("value: operator Equal compares it, Exists has none")
        return self


class Volume(Table):
    """Where the weights lie: one of claim, storage_class and host_path."""

    claim: Label | None = None
    storage_class: Label | None = None
    host_path: Path | None = None

    @property
    def kind(self) -> str:
        """Which of the three it is."""
        return next(name for name in ("claim", "storage_class", "host_path") if getattr(self, name))

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (
            sum(value is not None for value in (self.claim, self.storage_class, self.host_path))
            != 1
        ):
            raise ValueError("one of claim, storage_class and host_path is wanted")
        return self


class Kubernetes(Table):
    """The cluster as kubectl reaches it, and what its pods ask for."""

    context: Word = Field(
        description="the context of kubectl (kubectl config get-contexts)", examples=["a3-cluster"]
    )
    namespace: Label = Field(
        description="the namespace of every object, which must exist", examples=["kimi"]
    )
    name: ShortLabel = Field(default="kimi", description="what the names of all objects begin with")
    device: Resource = Field(
        description="the resource of the accelerators, as the device plugin names it (kubectl "
        "describe node); a pod takes all of a node",
        examples=["huawei.com/Ascend910", "nvidia.com/gpu", "amd.com/gpu"],
    )
    resources: dict[Resource, Count] = Field(
        default={},
        description="further resources of a pod, such as those of RDMA devices",
        examples=[{"rdma/hca": 1}],
    )
    memory: Quantity | None = Field(
        default=None,
        description="the host memory of a pod, instead of what the memory model estimates",
        examples=["1500Gi"],
    )
    cpus: Count | None = Field(
        default=None, description="the CPUs that a pod requests", examples=[96]
    )
    weights: Volume = Field(
        description="where the weights lie, mounted at paths.models: claim, a PersistentVolumeClaim of "
        "the namespace; storage_class, that of a claim which is made (ReadWriteMany); or host_path, "
        "a folder on every node",
        examples=[{"claim": "kimi-weights"}],
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default={},
        description="labels of the nodes that may be used",
        examples=[{"node.example.org/pool": "a3"}],
    )
    tolerations: tuple[Toleration, ...] = Field(
        default=(),
        description="taints of these nodes",
        examples=[[{"key": "example.org/npu", "effect": "NoSchedule"}]],
    )
    image_pull_secret: Label | None = Field(
        default=None,
        description="the name of the secret with which the images are pulled, never its value",
        examples=["registry-login"],
    )
    api_key_secret: Label | None = Field(
        default=None,
        description="the name of the secret that holds the API key, under the key that api_key_env "
        "names",
        examples=["kimi-api-key"],
    )
    host_network: bool = Field(
        default=False,
        description="whether pods use the network of their node; network policies do not reach them "
        "then",
    )
    router_image: Image = Field(
        default="ghcr.io/astral-sh/uv:python3.12-bookworm-slim",
        description="the image in which vllm-router runs: one that has it, or uv to install it",
    )
    pod_monitor: bool = Field(
        default=False,
        description="whether the cluster has the Prometheus operator, which then reads the metrics",
    )
