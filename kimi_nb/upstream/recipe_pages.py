"""The YAML of vllm-project/recipes: pages of models, strategies, hardware.

>>> page = Page.model_validate({"model": {"model_id": "a/b"}, "variants": {"default": {}}})
>>> page.variants["default"].tp is None
True

Only what decides the rendered commands is kept. Keys that are not known are ignored, as the
project's generator does; values of a wrong type are refused, where it would render nonsense.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Scalar = str | int | float | bool | None
Words = Annotated[list[Scalar], Field(max_length=500)]
Env = Annotated[dict[str, Scalar], Field(max_length=500)]
Names = Annotated[list[str], Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=4096)]
Gigabytes = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
# A value, or values by exact hardware, generation, brand or "default".
ByHardware = dict[str, Any]


class Table(BaseModel):
    """A mapping of which only the known keys are kept; an empty value counts as absent."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


class Extra(Table):
    """Arguments and variables that are added on certain hardware."""

    extra_args: Words = []
    extra_env: Env = {}
    docker_image: Any = None


class Arguments(Table):
    """Arguments that replace others on certain hardware; None replaces nothing."""

    args: Words | None = None


class Mode(Arguments):
    """One way of a feature, of which one is chosen."""

    variants: Names = []
    hardware: dict[str, str] = {}
    hardware_overrides: dict[str, Arguments] = {}


class Feature(Arguments):
    """Arguments that the page offers as a switch."""

    modes: Annotated[dict[str, Mode], Field(max_length=50)] | None = None
    default_mode: str = ""
    strategies: Names = []
    hardware_overrides: dict[str, Arguments] = {}
    companion: dict[str, Any] = {}


class Demand(Table):
    """The hardware that a precision needs."""

    brand: str = ""
    generation: str = ""


class Variant(Extra):
    """One form of the weights."""

    precision: str = ""
    vram_minimum_gb: Gigabytes = 0
    model_id: str = ""
    tp: Count | dict[str, Count] | None = None
    hardware_overrides: dict[str, Extra] = {}
    default_modes: dict[str, str] = {}
    supported_hardware: Names = []
    precision_hardware: Demand | None = None


class Pool(Table):
    """Prefill or decode, as a strategy or a page has it."""

    vllm_args: Words = []
    extra_args: Words = []
    env: Env = {}
    parallelism: Literal["", "tp", "tep", "dep"] = ""
    tp: Annotated[Count, Field(ge=1)] | None = None
    parallel_flag: str = ""
    hardware_overrides: dict[str, Extra] = {}


class Override(Extra):
    """What a page changes of a strategy."""

    vllm_args: Words = []
    env: Env = {}
    tp: Count | dict[str, Count] | None = None
    prefill: Pool = Pool()
    decode: Pool = Pool()
    pool_modes: Names = []
    hardware_overrides: dict[str, Extra] = {}


class Model(Table):
    """The checkpoint and what it always needs."""

    model_id: str = ""
    min_vllm_version: str | float = ""
    nightly_required: bool = False
    docker_image: Any = None
    base_args: Words = []
    base_env: Env = {}


class Meta(Table):
    """What the page is about; ``hardware`` maps names to verified or unsupported."""

    tasks: Names = []
    hardware: dict[str, str] = {}
    default_hardware: str = ""


class Page(Table):
    """One file of ``models/``."""

    meta: Meta = Meta()
    model: Model = Model()
    features: Annotated[dict[str, Feature], Field(max_length=100)] = {}
    opt_in_features: Names = []
    hardware_opt_in_features: dict[str, Names] = {}
    variants: Annotated[dict[str, Variant], Field(max_length=50)] = {}
    compatible_strategies: Annotated[list[str], Field(max_length=50)] = []
    strategy_hardware: Annotated[dict[str, dict[str, str]], Field(max_length=50)] = {}
    strategy_min_gpus: Count | dict[str, Count | dict[str, Count]] = 0
    default_strategy: str = ""
    kv_cache_strategy_hardware: dict[str, dict[str, str]] = {}
    hardware_overrides: dict[str, Extra] = {}
    strategy_overrides: dict[str, Override] = {}
    guide: str = ""

    @property
    def strategies(self) -> list[str]:
        """The strategies that it offers anywhere: those listed, then those opted in somewhere."""
        listed = list(self.compatible_strategies)
        return listed + [
            name
            for name, gates in self.strategy_hardware.items()
            if name not in listed and "supported" in gates.values()
        ]


class Instance(Table):
    """What a KV store adds to each engine."""

    vllm_args: Words = []
    env: Env = {}
    install: str | dict[str, str] = ""


class Strategy(Table):
    """One file of ``strategies/`` or ``kv_store/``."""

    name: str
    deploy_type: str = "single_node"
    vllm_args: Words = []
    parallel_flag: str = ""
    parallelism: str = ""
    env: Env = {}
    prefill: Pool = Pool()
    decode: Pool = Pool()
    vllm: Instance = Instance()
    default_instances: Annotated[int, Field(ge=0, le=1000)] = 0
    min_vllm_version: str | float = ""


class Profile(Table):
    """One kind of node in the taxonomy; ``vram_gb`` is that of all its devices, in GB."""

    brand: str = ""
    generation: str | list[str] = ""
    gpu_generation: str | list[str] = ""
    gpu_count: Annotated[int, Field(ge=0, le=1024)] = 1
    vram_gb: Gigabytes = 0
    scalable: bool = True
    restricted: bool = False

    @property
    def generations(self) -> list[str]:
        """The generations of its devices."""
        found = self.generation or self.gpu_generation
        return found if isinstance(found, list) else [found]

    @property
    def own_generation(self) -> str:
        """The generation by which overrides are looked up."""
        return (self.generations or [""])[0]


class Taxonomy(Table):
    """``taxonomy.yaml``."""

    hardware_profiles: Annotated[dict[str, Profile], Field(max_length=200)] = {}
