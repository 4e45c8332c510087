"""Define what parameter files may hold: one class for each table, one field for each key.

Nothing here reads a file or knows a path; that is the task of `kimi_nb.params.load`. Every class
rejects unknown keys, so that a typing error is reported instead of being ignored.
"""

# No postponed annotations: pydantic would compile each of them, at every start.

import posixpath
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from kimi_nb.params.fields import (
    LAYOUTS,
    ROLES,
    Address,
    Count,
    DeviceCount,
    Image,
    Interface,
    Layout,
    Least,
    Line,
    Name,
    Path,
    Port,
    Range,
    Registry,
    Role,
    Sysctl,
    Text,
    Url,
    Variable,
    Word,
)
from kimi_nb.params.kubernetes_site import Kubernetes
from kimi_nb.params.table import Table
from kimi_nb.params.vendor import Vendor

# Names of files and folders in a bundle, which no node may have.
RESERVED = ("install", "client", "jobs", "README.md", "plan.json")


class Source(Table):
    """Where a fact comes from.

    Attributes:
        document: A document of ``data/check/documents.yaml``.
        section: A section of that document.
        commands: The names of its commands in the golden list of commands.
        deployment: The id under which `kimi_nb.upstream` reads the same deployment in a checkout,
            such as ``recipes:Kimi-K2.7-Code:h200:pd_cluster``.
    """

    document: str
    section: str = ""
    commands: tuple[str, ...] = ()
    deployment: str = ""

    def __str__(self) -> str:
        return f"{self.document} {self.section}".strip()


class Settings(Table):
    """Engine flags (without leading dashes) and environment variables.

    A value is a scalar, a list, a mapping (for a JSON flag), ``null`` (which removes the setting),
    or ``{value: ..., reason: ...}`` if there is a reason worth recording.
    """

    flags: dict[str, Any] = {}
    env: dict[str, Any] = {}

    def overridden(self, over: "Settings") -> "Settings":
        """Return these settings with those of ``over`` in the place of the same names."""
        return Settings(flags={**self.flags, **over.flags}, env={**self.env, **over.env})


class Ports(Table):
    """First ports; further ranks count up from them.

    With ``http: null`` vLLM uses its default, 8000.
    """

    http: Port | None = None
    rpc: Port | None = None
    kv: Port | None = None
    side_channel: Port | None = None
    master: Port | None = None


# Hardware ----------------------------------------------------------------------------------


class Usable(Table):
    """What torch sees of a device, in GiB, and the nominal size in GB that this was seen with.

    It does not hold for a file that extends this one and names another ``memory_gb``.

    Attributes:
        tool_mib: The memory that the vendor's tool (nvidia-smi, rocm-smi, npu-smi) prints, in MiB.
    """

    gib: Annotated[float, Field(gt=0)]
    tool_mib: Count | None = None
    nominal_gb: Count
    source: Line

    @model_validator(mode="after")
    def _is_not_more(self) -> Self:
        if self.gib > self.nominal_gb:
            raise ValueError(
                f"gib: {self.gib:g} GiB of a device of {self.nominal_gb} GB is more than it has"
            )
        return self


class Devices(Table):
    """The accelerators of one node; ``memory_gb`` is the nominal memory of one device in GB.

    Attributes:
        usable: What an engine can plan with; without it, the usual share of such devices.
        model: The name that the vendor's tool prints, under which vLLM looks up tuned files too.
        target: What the compiler calls the device, such as gfx942.
        per_card: The devices of one card: two where each die of a chip is one.
    """

    count: DeviceCount
    memory_gb: Count
    usable: Usable | None = None
    label: str
    model: Line = ""
    target: Name | None = None
    per_card: Literal[1, 2] = 1
    visible: Variable


class Peak(Table):
    """A figure from a data sheet and its source."""

    value: Annotated[float, Field(gt=0)]
    source: Line


class Peaks(Table):
    """The peak performance of one device.

    Memory and link bandwidths are in GB/s (10^9 bytes; links in one direction), arithmetic is in
    10^12 operations per second, dense. Figures that nobody has published are left out.
    """

    memory_gb_s: Peak | None = None
    bf16_tflops: Peak | None = None
    fp8_tflops: Peak | None = None
    int8_tops: Peak | None = None
    fp4_tflops: Peak | None = None
    node_link_gb_s: Peak | None = None
    network_gb_s: Peak | None = None


class Container(Table):
    """The ``docker run`` command up to the image; ``options`` are (option, value) pairs.

    Attributes:
        image: The name and the tag; ``{cuda}`` in it is the suffix of vLLM's image for CUDA 13.
        shm_size: The size of /dev/shm by layout, for ``{shm_size}`` in the options.
        several_nodes: Options where the engines are on several nodes. The container then has the
            network of the host, so that no port is published.
    """

    image: Word
    options: tuple[tuple[Text, ...], ...] = ()
    shm_size: dict[Layout, Word] = {}
    several_nodes: tuple[tuple[Text, ...], ...] = ()
    mounts: tuple[Text, ...] = ()
    entrypoint: Literal["bash", "vllm serve"]


class DeviceAddress(Table):
    """The command that prints the address of a device between nodes; the pattern's group is it."""

    argv: tuple[str, ...]
    pattern: str


class Check(Table):
    """One check of a node before anything starts (notebook 01).

    Attributes:
        pattern: A regular expression that the output of ``argv`` must match.
        least: The least that each number in the group of ``pattern`` may be; ``driver`` stands for
            the version of NVIDIA's driver that the CUDA of the engine's build needs.
        each: How often the check is made: once on a node, for each device, for each other node, or
            from devices to those of other nodes (link).
        needs: When the check can run at all: where the tool is installed, where the file (the
            last
            word of ``argv``) exists, or only on a node of the site.
        address: Of a link, what prints the ``{device_address}`` at its other end.
        broken: Of a link, a regular expression for output by which it is down; other output that
            does not match ``pattern`` leaves that open.
    """

    title: Line
    argv: tuple[str, ...]
    expect: Line
    pattern: str = ""
    least: Least | None = None
    each: Literal["node", "device", "peer", "link"] = "node"
    needs: Literal["tool", "file", "node"] = "tool"
    layouts: tuple[Layout, ...] = LAYOUTS
    source: str = ""
    address: DeviceAddress | None = None
    broken: str = ""

    @model_validator(mode="after")
    def _the_pattern_can_be_asked(self) -> Self:
        try:
            groups = re.compile(self.pattern).groups
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"pattern: no regular expression: {error}") from None
        if self.least is not None and groups != 1:
            raise ValueError(
                f"least: a pattern with one group is wanted, for the number; it has {groups}"
            )
        return self

    @model_validator(mode="after")
    def _a_link_has_an_address(self) -> Self:
        if (self.each == "link") != (self.address is not None):
            raise ValueError(
                f"each link and an address go together: each is {self.each}, address is "
                f"{'there' if self.address else 'missing'}"
            )
        return self


class Step(Table):
    """One command of an installation, in the ``layouts`` that need it.

    With ``router`` only where vllm-router is the front door, with ``store`` only where the plan has a
    KV store.
    """

    says: Line
    layouts: tuple[Layout, ...] = LAYOUTS
    router: bool = False
    store: bool = False
    argv: tuple[str, ...]
    directory: Text = ""
    env: dict[Variable, Text] = {}


class HostTuning(Table):
    """Settings of the host, outside of the container."""

    governor: Name | None = None
    sysctl: dict[Sysctl, int] = {}


class Hardware(Table):
    """One kind of node.

    Attributes:
        dispatch: The form of the operators that dispatch tokens to experts and combine them (MC2),
            whose buffers differ; None where it is not known.
        least_cuda: The major version of CUDA from which on builds have all kernels for the device.
        container: How to start a container; None if no document describes it.
        models: The models served instead, by layout, if the requested one does not fit.
    """

    name: Name
    title: Line
    vendor: Vendor
    engine: Literal["vllm-ascend", "vllm"]
    devices: Devices
    peaks: Peaks = Peaks()
    like: Name | None = None
    host_memory_gb: Count | None = None
    architecture: Literal["aarch64", "x86_64"]
    dispatch: Literal["a2", "a3"] | None = None
    least_cuda: Count | None = None
    container: Container | None = None
    models: dict[Layout, Name] = {}
    installs: dict[Name, tuple[Step, ...]] = {}
    checks: dict[Name, Check] = {}
    host_tuning: HostTuning = HostTuning()
    settings: Settings = Settings()
    network_env: dict[Variable, Text] = {}
    group_env: dict[Variable, Text] = {}
    source: Source
    notes: tuple[Line, ...] = ()

    @property
    def recipes_of(self) -> str:
        """The hardware whose recipes apply: this one, or the one it is like."""
        return self.like or self.name


# Calibration -------------------------------------------------------------------------------


class Measured(Table):
    """Where a calibration is from: the day, and the logs that were read."""

    date: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    logs: tuple[Line, ...] = Field(min_length=1)


_Gib = Annotated[float, Field(ge=0, le=100_000)]


class Calibration(Table):
    """What an engine's own log said about memory, in the place of estimates.

    It holds for one role of one model on one hardware at one version, in any shape. Sizes are in
    GiB of one device; a factor multiplies the estimate. What the log did not say is null.

    Attributes:
        device_gib: The memory that the engine saw.
        weights: The factor of the weights, and ``activations`` that of the profile run.
        graphs_gib: The pool of captured graphs.
        contexts_gib: What lies beside torch and is in no other term.
    """

    kind: Literal["memory-calibration"]
    engine: Literal["vllm-ascend", "vllm"]
    version: Word
    model: Name
    precision: Word
    hardware: Name
    role: Role
    measured: Measured
    device_gib: _Gib | None = None
    weights: Annotated[float, Field(gt=0.5, lt=2)] | None = None
    activations: Annotated[float, Field(ge=0, lt=20)] | None = None
    graphs_gib: _Gib | None = None
    contexts_gib: _Gib | None = None

    @property
    def mark(self) -> str:
        """How figures that it gives are known."""
        return f"measured on your node, {self.measured.date}, {self.engine} {self.version}"


# Model -------------------------------------------------------------------------------------


class Weights(Table):
    """One checkpoint.

    ``size_gb`` is its size on disk in GB, or None if nobody states it. The hub ``none`` means that
    the checkpoint ships with the project.
    """

    id: Word
    precision: str
    directory: Name
    hub: Literal["huggingface", "modelscope", "none"]
    size_gb: Count | None = None
    size_is: Literal["published", "estimated"] | None = None
    files: tuple[str, ...] = ()
    settings: Settings = Settings()
    edit: Literal["", "quantization-target"] = ""
    source: str = ""


class Draft(Table):
    """A draft model for speculative decoding; ``parameters_million`` is an estimate.

    Attributes:
        options: Further keys of ``--speculative-config``, such as ``draft_sample_method``.
        cache_layers: The layers of latent cache that it keeps beside those of the model; None for
            the usual number of its method.
    """

    id: Word
    hub: Literal["huggingface", "modelscope"] = "huggingface"
    method: Literal["eagle3", "dflash", "dspark"]
    tokens: Count
    directory: Name
    vendors: tuple[Vendor, ...]
    options: dict[str, Any] = {}
    parameters_million: Count | None = None
    cache_layers: Count | None = None
    vllm: Range = ""
    source: str = ""


class RoleSpec(Table):
    """How the engines of one role are laid out.

    There are ``groups`` groups of ``nodes`` nodes; each group has ``dp`` ranks of ``pp`` pipeline
    stages on ``tp`` devices each. ``when`` holds what changes with a feature that is switched on.
    """

    groups: Count = 1
    nodes: Count = 1
    dp: Count = 1
    tp: Count = 1
    pp: Count = 1
    ports: Ports = Ports()
    features: tuple[str, ...] = ()
    settings: Settings = Settings()
    when: dict[Name, Settings] = {}

    def changed(self, change: "RoleChange") -> Self:
        """Return this role with what a change names."""
        given = {
            name: value
            for name in change.model_fields_set
            if (value := getattr(change, name)) is not None
        }
        return self.model_copy(
            update=given | {"settings": self.settings.overridden(change.settings)}
        )


class RoleChange(Table):
    """What a scenario changes in a role; whatever it does not name stays the same."""

    groups: Count | None = None
    nodes: Count | None = None
    dp: Count | None = None
    tp: Count | None = None
    pp: Count | None = None
    settings: Settings = Settings()


class StorePorts(Table):
    """Where the parts of a store listen; None is the default of `plan.ports`."""

    rpc: Port | None = None
    metrics: Port | None = None
    service: Port | None = None


class Store(Table):
    """A KV store that the groups share, so that what one has computed another one can load.

    Attributes:
        mode: distributed: each device gives a part of its host's memory. centralised: a service on
            each node holds all of it, and outlives the engines.
        segment_gb: The memory that each device (distributed) or node (centralised) gives, in GB of
            2**30 bytes, as Mooncake reads them.
        buffer_gb: The buffer of each of its clients, likewise.
    """

    kind: Literal["mooncake"] = "mooncake"
    mode: Literal["centralised", "distributed"]
    segment_gb: Count
    buffer_gb: Count = 4
    protocol: Literal["rdma", "tcp"] = "rdma"
    ports: StorePorts = StorePorts()
    source: Source | None = None


class Scenario(Table):
    """A named row of a tuning chapter.

    ``concurrency`` is the number of requests of the full length that it is to serve at once,
    ``router`` what it puts in front of several groups, in layouts other than pd, and ``store`` the KV
    store that they share, in the place of the recipe's.
    """

    title: Line
    source: Source
    figures: Literal["published", "estimated", "measured", "rehearsal"] = "published"
    concurrency: Count | None = None
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    settings: Settings = Settings()
    roles: dict[Role, RoleChange] = {}
    router: Literal["vllm-router"] | None = None
    store: Store | None = None


class DerivedValue(Table):
    """One value of a derived recipe that differs from its base, and the rule it comes from."""

    what: Line
    value: Line
    rule: Line


class Derivation(Table):
    """From which documented recipe another one is derived, and by which rules.

    ``base`` names that recipe and its source, ``kept`` is the rule of all that no step names.
    """

    model: Name
    hardware: Name
    layout: Layout
    variant: Name
    base: Line
    kept: Line
    steps: tuple[DerivedValue, ...]

    def __str__(self) -> str:
        return f"derived from {self.base}"

    def rule(self, name: str) -> str:
        """Return the rule of a setting, by its dotted name; that of what is kept without one."""
        found = {step.what: step.rule for step in self.steps}
        return found.get(name) or found.get(name.partition(".")[0]) or self.kept


class Recipe(Table):
    """The settings that serve a model on one hardware in one layout and variant.

    In layouts other than pd its ``router`` stands in front of its groups, where there are several.

    Attributes:
        tried: Whether its publisher says that it was run; a generated page may never have been.
        derivation: None unless `kimi_nb.plan.derivation` made the recipe; files that are written of a
            plan (by a sweep, of a deployment) keep it.
    """

    hardware: Name
    tried: bool = True
    layout: Layout
    variant: Name
    title: Line
    documented: bool = True
    source: Source
    engine_version: str
    weights: Name
    install: str
    bind: Literal["address", "all"] = "address"
    processes: Literal["node", "rank"] = "node"
    router: Literal["upstream", "vllm-router"] | None = None
    router_port: Port | None = None
    store: Store | None = None
    features: tuple[str, ...] = ()
    settings: Settings = Settings()
    roles: dict[Role, RoleSpec]
    scenarios: dict[Name, Scenario] = {}
    clients: tuple[str, ...] = ()
    jobs: bool = False
    derivation: Derivation | None = None

    @property
    def cited(self) -> str:
        """Where its settings come from, in words."""
        return str(self.derivation or self.source)

    @model_validator(mode="after")
    def _roles_fit_the_layout(self) -> Self:
        wanted = {"prefill", "decode"} if self.layout == "pd" else {"mixed"}
        if set(self.roles) != wanted:
            raise ValueError(
                f"layout {self.layout} has the roles {sorted(wanted)}, found {sorted(self.roles)}"
            )
        if self.layout == "pd" and self.router is None:
            raise ValueError("layout pd needs a router: upstream or vllm-router")
        if self.layout != "pd" and self.router == "upstream":
            raise ValueError(
                f"layout {self.layout} has no use for the router upstream, which sends a request to "
                "prefill and then to decode; allowed: vllm-router, in front of several groups"
            )
        for name, scenario in self.scenarios.items():
            if scenario.router and self.layout == "pd":
                raise ValueError(
                    f"scenarios.{name}.router: layout pd has the router of its recipe; a scenario "
                    "names one for the groups of the layouts single and dp"
                )
        if self.jobs and not ("optimised" in self.scenarios and self.clients):
            raise ValueError(
                "a recipe of jobs has a scenario 'optimised' and a client: they are the last jobs"
            )
        return self


class Client(Table):
    """A command of the documents that talks to the service: a benchmark or an evaluation."""

    title: Line
    argv: tuple[str, ...]
    env: dict[Variable, Text] = {}
    sweep: tuple[Count, ...] = ()
    source: Source

    @model_validator(mode="after")
    def _a_sweep_has_its_flags(self) -> Self:
        for flag in ("--num-prompts", "--max-concurrency") if self.sweep else ():
            if flag not in self.argv[:-1]:
                raise ValueError(f"a sweep sets {flag}: put it into argv, with its value")
        return self


class Parsers(Table):
    """What --tool-call-parser and --reasoning-parser are for a model."""

    tool: Word = "kimi_k2"
    reasoning: Word = "kimi_k2"


class Sampling(Table):
    """The sampling that the publisher of a model recommends."""

    temperature: Annotated[float, Field(ge=0, le=2)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    source: Line


# Sizes of an architecture that only hybrid attention has: layers of Kimi delta attention (KDA),
# which keep a state for each sequence, between those of latent attention (MLA), which keep a cache
# for each token.
HYBRID = ("mla_layers", "kda_layers", "kda_heads", "kda_head_dim", "kda_conv_kernel")


class Model(Table):
    """A model to serve.

    Attributes:
        parameters_billion: None if it is far less than one.
        engines: The range of versions of each engine that serve it; any where one is not named.
        thinking: Whether a request may turn thinking off, or the model always or never thinks.
        no_stand_in: Why no tiny model stands for it on hardware that has no room for it; "" where
            one does.
        language_config: The key of the checkpoint's config.json below which the sizes of the
            language model stand; None if they stand at its top.
    """

    name: Name
    title: Line
    context_length: Count
    parameters_billion: Count | None = None
    architecture: dict[str, Count]
    language_config: Line | None = None
    parsers: Parsers = Parsers()
    thinking: Literal["optional", "always", "never"] = "optional"
    sampling: Sampling | None = None
    no_stand_in: Line = ""
    engines: dict[Literal["vllm", "vllm-ascend"], Range] = {}
    weights: dict[Name, Weights]
    drafts: dict[Name, Draft] = {}
    settings: Settings = Settings()
    container_versions: dict[Name, str] = {}
    clients: dict[Name, Client] = {}
    recipes: tuple[Recipe, ...] = ()
    source: Source
    notes: tuple[Line, ...] = ()

    @model_validator(mode="after")
    def _names_are_defined(self) -> Self:
        if "heads" not in self.architecture:
            raise ValueError("architecture.heads: is missing; tp must divide it")
        self._hybrid_is_whole()
        for index, recipe in enumerate(self.recipes):
            if recipe.weights not in self.weights:
                raise ValueError(
                    f"recipes.{index}.weights: '{recipe.weights}' is not one of "
                    f"{', '.join(self.weights)}"
                )
            for name in recipe.clients:
                if name not in self.clients:
                    raise ValueError(
                        f"recipes.{index}.clients: '{name}' is not one of "
                        f"{', '.join(self.clients) or 'none'}"
                    )
        return self

    def _hybrid_is_whole(self) -> None:
        """Raise ValueError where sizes of hybrid attention are missing, or do not add up."""
        arch = self.architecture
        missing = [name for name in HYBRID if name not in arch]
        if missing == list(HYBRID):
            return
        if missing:
            raise ValueError(
                f"architecture.{missing[0]}: is missing; hybrid attention has {', '.join(HYBRID)}"
            )
        if arch["mla_layers"] + arch["kda_layers"] != arch.get("layers"):
            raise ValueError(
                f"architecture.layers: {arch['mla_layers']} mla_layers and {arch['kda_layers']} "
                f"kda_layers are {arch['mla_layers'] + arch['kda_layers']} layers, "
                f"not {arch.get('layers')}"
            )


# Features ----------------------------------------------------------------------------------


class Feature(Table):
    """An option that the user can switch on and off."""

    title: Line
    reason: Line
    price: Line
    excludes: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    vendors: tuple[Vendor, ...] = ("ascend", "nvidia", "amd")
    layouts: tuple[Layout, ...] = LAYOUTS
    roles: tuple[Role, ...] = ROLES
    vllm: Range = ""
    models: tuple[str, ...] = ()
    draft: str = ""
    host: bool = False
    on: Settings = Settings()
    off: Settings = Settings()
    source: str = ""


# Site --------------------------------------------------------------------------------------


# What each key means stands in its field; `kimi-nb site new` and docs/deploy.md print it.


class Node(Table):
    """One machine of the site."""

    name: Name = Field(description="the name of the node; folders and messages have it")
    address: Address = Field(
        description="the address by which this machine and the other nodes reach it"
    )
    nic: Interface | None = Field(
        default=None,
        description="the network interface of this node, where it is not that of the site",
    )


class Ssh(Table):
    """How the nodes are reached."""

    user: Name = Field(default="root", description="the account on the nodes")
    port: Port = Field(default=22, description="the port of sshd")
    key_file: Path | None = Field(
        default=None,
        description="the path of a private key; without it the agent and the keys in ~/.ssh are "
        "tried. Keys only, no passwords",
        examples=["/home/me/.ssh/id_ed25519"],
    )
    jump_host: Address | None = Field(
        default=None,
        description="the host through which the nodes are reached",
        examples=["gate.example.org"],
    )
    host_keys: Literal["known", "accept-new"] = Field(
        default="known",
        description="which host keys are accepted: known ones only, or new ones too (accept-new); "
        "changed ones never",
    )
    known_hosts: Path | None = Field(
        default=None,
        description="a file of known hosts other than that of ssh",
        examples=["/home/me/.ssh/known_hosts.cluster"],
    )


class JobContainer(Table):
    """The image in which the jobs of a cluster run."""

    runtime: Literal["apptainer", "pyxis"] = Field(
        description="what runs a job's programs in the image: apptainer, or pyxis (srun "
        "--container-image)",
        examples=["apptainer"],
    )
    image: Image | None = Field(
        default=None,
        description="another image than that of the hardware: its name in a registry, or a .sif or "
        ".sqsh file on the shared file system",
        examples=["/data/images/vllm-openai_v0.19.1.sif"],
    )


class Slurm(Table):
    """The options for sbatch; the cluster's own names (sacctmgr show assoc, sinfo)."""

    account: Name = Field(description="the account that sbatch charges", examples=["kimi"])
    partition: Name = Field(
        default="gpu", description="the partition of the jobs with accelerators"
    )
    qos: Name | None = Field(
        default=None,
        description="the quality of service of the jobs with accelerators",
        examples=["normal"],
    )
    cpu_partition: Name = Field(default="common", description="the partition of the other jobs")
    cpu_qos: Name | None = Field(
        default=None, description="the quality of service of the other jobs", examples=["normal"]
    )
    memory: Name | None = Field(
        default=None,
        description="the host memory that a job with accelerators requests, instead of the "
        "documented value",
        examples=["1500G"],
    )
    cpus: Count | None = Field(
        default=None,
        description="the CPUs of each node that such a job requests, instead of the documented value",
        examples=[96],
    )
    time: Annotated[str, Field(pattern=r"^[0-9:-]+$")] | None = Field(
        default=None,
        description="the time limit that such a job requests, instead of the documented value",
        examples=["12:00:00"],
    )
    modules: tuple[Text, ...] = Field(
        default=("anaconda3",),
        description="the environment modules that the jobs load; none with container",
    )
    container: JobContainer | None = Field(
        default=None,
        description="the image in which the jobs run, instead of an environment made by conda",
    )

    @model_validator(mode="before")
    @classmethod
    def _an_image_needs_no_conda(cls, keys: Any) -> Any:
        """Load no module that only conda needs; one that the site names is loaded all the same."""
        if isinstance(keys, dict) and keys.get("container") and "modules" not in keys:
            return {**keys, "modules": ()}
        return keys


_MOST_PODS = 4096
# The folders that may not lie in these others, or be the same.
_APART = {
    "work": ("models", "cache", "engine"),
    "models": ("engine",),
    "engine": ("models", "cache"),
}


def _inside(path: str, folder: str) -> bool:
    inner, outer = posixpath.normpath(path), posixpath.normpath(folder)
    return inner == outer or inner.startswith(f"{outer.rstrip('/')}/")


class Paths(Table):
    """Folders on the nodes; ``{root}`` at the start of a path is the folder with ``params/``."""

    cache: Path = Field(
        description="the cache folder on the nodes, mounted into the containers",
        examples=["/root/.cache"],
    )
    models: Path | None = Field(
        default=None,
        description="the folder from which weights are read; without it they are named by their hub "
        "id, and those that Hugging Face does not have are read from models in work",
        examples=["/data/models"],
    )
    project: Path | None = Field(
        default=None,
        description="the project folder that the nodes of a SLURM site share",
        examples=["/projects/kimi"],
    )
    engine: Path | None = Field(
        default=None,
        description="the virtual environment with vllm: install/pip.sh makes it, and the scripts enter "
        "it; without it engine in work, where the engine is installed by pip",
        examples=["/opt/vllm"],
    )
    work: Path = Field(
        default="/root/kimi", description="where the bundle and the logs go on the nodes"
    )

    @model_validator(mode="after")
    def _nothing_lies_where_it_would_be_replaced(self) -> Self:
        """Refuse scripts among weights, and weights among programs; both are removed as a whole."""
        for key, others in _APART.items():
            for other in others:
                mine, theirs = getattr(self, key), getattr(self, other)
                if mine and theirs and _inside(mine, theirs):
                    raise ValueError(
                        f"{key}: {mine} lies in {theirs}, which is paths.{other}: what is replaced "
                        f"or removed in one is lost in the other. Give {key} a folder of its own"
                    )
        return self


class Network(Table):
    """The way out of the nodes, for downloads and installations; engines are not told of it."""

    https_proxy: Url | None = Field(
        default=None,
        description="the proxy for https; one with a password is set on the nodes instead",
        examples=["http://proxy.example.org:3128"],
    )
    http_proxy: Url | None = Field(
        default=None,
        description="the proxy for http",
        examples=["http://proxy.example.org:3128"],
    )
    no_proxy: tuple[Text, ...] = Field(
        default=(),
        description="hosts and domains that are reached without the proxy",
        examples=[["localhost", ".example.org"]],
    )
    huggingface: Url | None = Field(
        default=None,
        description="a mirror of Hugging Face (HF_ENDPOINT)",
        examples=["https://hf-mirror.example.org"],
    )
    modelscope: Url | None = Field(
        default=None,
        description="a mirror of ModelScope (MODELSCOPE_ENDPOINT)",
        examples=["https://modelscope.example.org"],
    )
    registry: Registry | None = Field(
        default=None,
        description="a mirror of the registry of the engine's image, in the place of quay.io or "
        "docker.io",
        examples=["mirror.example.org/quay.io"],
    )
    pip_index: Url | None = Field(
        default=None,
        description="the package index for pip (PIP_INDEX_URL)",
        examples=["https://pypi.example.org/simple"],
    )


class Site(Table):
    """The user's own cluster."""

    name: Name = Field(description="the name of the site; confirm and --confirm repeat it")
    hardware: Name = Field(
        description="the hardware of its nodes: a3, or the name of your own file"
    )
    transport: Literal["local", "ssh", "slurm", "kubernetes"] = Field(
        description="how the nodes are reached: ssh, local (this machine), slurm (run on a "
        "login node), or kubernetes (by kubectl)"
    )
    nodes: tuple[Node, ...] = Field(
        min_length=1,
        description="the nodes, in the order in which plans use them: name and address of each, and "
        "nic where it differs; with transport kubernetes only how many there are",
    )
    nic: Interface = Field(
        default="eth0", description="the network interface that connects the nodes (ip -br addr)"
    )
    ssh: Ssh = Field(default=Ssh(), description="how the nodes are reached over SSH")
    slurm: Slurm | None = Field(default=None, description="what sbatch is told")
    kubernetes: Kubernetes | None = Field(
        default=None, description="the cluster, and what its pods ask for"
    )
    paths: Paths = Field(description="folders on the nodes")
    network: Network = Field(
        default=Network(), description="the way out of the nodes: proxies and mirrors"
    )
    container_name: Name = Field(
        default="vllm-ascend", description="the name of the container on each node"
    )
    api_key_env: Variable | None = Field(
        default=None,
        description="the name of the environment variable that holds the API key, never its value",
        examples=["KIMI_API_KEY"],
    )
    settings: Settings = Field(
        default=Settings(),
        description="flags and environment variables of this site, for every engine",
        examples=[{"flags": {"max-num-seqs": 32}, "env": {"HF_HUB_OFFLINE": 1}}],
    )
    calibration: tuple[Line, ...] = Field(
        default=(),
        description="files of kimi-nb calibrate --out, beside this one: what engines here said of "
        "their memory; those of other models are left out",
        examples=[["k2.5-decode.yaml"]],
    )

    @model_validator(mode="before")
    @classmethod
    def _pods_are_counted(cls, keys: Any) -> Any:
        """Take a number of nodes where the scheduler chooses them; plans name the pods."""
        count = keys.get("nodes") if isinstance(keys, dict) else None
        if not isinstance(count, int) or isinstance(count, bool):
            return keys
        if keys.get("transport") != "kubernetes" or not 1 <= count <= _MOST_PODS:
            raise ValueError(
                f"nodes: found {count}: a list of nodes is wanted, name and address of each; a "
                f"number (1 to {_MOST_PODS}) says how many there are with transport kubernetes"
            )
        nodes = [{"name": f"node-{at}", "address": f"node-{at}"} for at in range(count)]
        return {**keys, "nodes": nodes}

    @model_validator(mode="after")
    def _nodes_are_distinct(self) -> Self:
        for key in ("name", "address"):
            seen: dict[str, int] = {}
            for index, node in enumerate(self.nodes):
                value = getattr(node, key)
                if value in seen:
                    raise ValueError(
                        f"nodes.{index}.{key}: '{value}' is already the {key} of "
                        f"nodes.{seen[value]}; every node has its own"
                    )
                seen[value] = index
        for index, node in enumerate(self.nodes):
            if node.name in RESERVED:
                raise ValueError(
                    f"nodes.{index}.name: '{node.name}' is the name of a part of "
                    "every bundle; call the node something else"
                )
        for kind in ("slurm", "kubernetes"):
            table = getattr(self, kind)
            if (self.transport == kind) != (table is not None):
                raise ValueError(
                    f"transport {kind} and the table '{kind}' go together: "
                    f"transport is {self.transport}, "
                    f"{kind} is {'given' if table else 'missing'}"
                )
        if self.kubernetes and self.paths.models is None:
            raise ValueError(
                "paths.models: wanted with transport kubernetes: weights are mounted there"
            )
        if self.kubernetes and (self.api_key_env is None) != (
            self.kubernetes.api_key_secret is None
        ):
            raise ValueError(
                "api_key_env and kubernetes.api_key_secret go together: the secret has the key under "
                "the name of the variable"
            )
        return self
