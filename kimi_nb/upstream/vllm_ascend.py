"""Read every deployment of a checkout of vllm-project/vllm-ascend.

For example::

    for deployment in vllm_ascend.read(checkout, "kimi-k2.6"):
        deployment.id  # va-ci:weekly:Kimi-K2.6-w4a8-A3:..., va-docs:Kimi-K2.6:151

The configurations of the nightly and weekly tests come first, then the commands of the tutorials.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml
from pydantic import ValidationError

from kimi_nb.check.view import commands
from kimi_nb.core import shapes
from kimi_nb.params import load
from kimi_nb.upstream import guides
from kimi_nb.upstream.ascend_cases import Config
from kimi_nb.upstream.checkout import Checkout
from kimi_nb.upstream.published import Deployment, Role, Source, pool_of

_TIMES = ("nightly", "weekly")
_TUTORIALS = "docs/source/tutorials"
_SCHEDULE = ".github/workflows/configs/{}_config.yaml"
_IN_NAME = re.compile(r"[-_](A\d)(?![A-Za-z0-9])")
# What a benchmark is, of the many keys that say how it is called.
_MEASURED = (
    "case_type",
    "dataset_path",
    "num_prompts",
    "max_out_len",
    "batch_size",
    "request_rate",
    "baseline",
    "threshold",
)
_MOST_NOTE = 400
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(checkout: Checkout, model: str = "") -> Iterator[Deployment]:
    """Yield the deployments whose checkpoint or file has ``model`` in its name, in any case.

    What cannot be read is left out and told in ``checkout.unread``.
    """
    wanted = model.lower()
    devices = {
        name: chip.devices.count
        for name in load.names("hardware")
        if (chip := load.hardware(name)).engine == "vllm-ascend"
    }
    for when in _TIMES:
        scheduled = _scheduled(checkout, when)
        for path in checkout.files(f"tests/e2e/{when}", ".yaml"):
            text = checkout.text(path)
            if text is None or wanted not in f"{path} {text}".lower():
                continue
            for one in _tested(checkout, path, text, when, scheduled, devices):
                if wanted in f"{path} {one.model}".lower():
                    yield one
    for path in checkout.files(_TUTORIALS, ".md"):
        text = checkout.text(path)
        if text is None or wanted not in f"{path} {text}".lower():
            continue
        if len(text) > guides.LARGEST:
            checkout.leave_out(path, f"larger than {guides.LARGEST >> 10} KB.")
            continue
        usual = _usual(checkout, path, f"va-docs:{PurePosixPath(path).stem}", "documented")
        for one in guides.deployments(text, 1, usual, devices):
            if wanted in f"{path} {one.model}".lower():
                yield one


def _usual(checkout: Checkout, path: str, name: str, status: str) -> Deployment:
    """Return what is true of all deployments of a file."""
    return Deployment(
        id=name,
        source=Source(checkout.repo, checkout.commit, path, 1),
        model="",
        hardware="",
        strategy="",
        variant="",
        engine="vllm-ascend",
        version="",
        image="",
        status=status,
        nodes=1,
        roles=(),
    )


def _scheduled(checkout: Checkout, when: str) -> dict[str, str]:
    """Return the hardware on which each configuration runs, by the name of its file."""
    path = _SCHEDULE.format(when)
    data = checkout.yaml(path) if (checkout.root / path).is_file() else None
    out: dict[str, str] = {}

    def walk(value: Any, hardware: str) -> None:
        if isinstance(value, dict):
            if isinstance(name := value.get("config_file_path"), str):
                out.setdefault(PurePosixPath(name).name, hardware)
            value = list(value.values())
        for one in value if isinstance(value, list) else ():
            walk(one, hardware)

    for section, value in (data or {}).items():
        walk(value, str(section).lower().partition("-")[0].partition("_")[0])
    return out


def _tested(
    checkout: Checkout,
    path: str,
    text: str,
    when: str,
    scheduled: Mapping[str, str],
    devices: Mapping[str, int],
) -> Iterator[Deployment]:
    """Yield the deployments of one configuration of the tests."""
    data = checkout.yaml(path)
    if data is None or not data.keys() & {"test_cases", "deployment", "templates"}:
        return
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        checkout.leave_out(path, f"{shapes.fault(error)}.")
        return
    name = PurePosixPath(path).name
    hardware = scheduled.get(name, "")
    if not hardware and (match := _IN_NAME.search(name)):
        hardware = match[1].lower()
    if not hardware:
        fits = [chip for chip, count in devices.items() if count == config.npu_per_node]
        hardware = fits[0] if fits else ""
    usual = _usual(checkout, path, f"va-ci:{when}:{PurePosixPath(path).stem}", f"tested {when}")
    lines = _Lines(text)
    for at, case in enumerate(config.test_cases):
        words = [*case.server_cmd, *case.server_cmd_extra]
        line = lines.of("test_cases", at)
        if not words:
            checkout.leave_out(f"{path}:{line}", f"the case {case.name} has no server_cmd.")
            continue
        role = Role.of("mixed", words, _env(case.envs), 1, line)
        made = (case.name, case.model, hardware, 1, (role,), _measured(case.benchmarks))
        yield _made(usual, f":{case.name}", *made)
    if config.deployment or config.templates:
        roles = [*_parts(checkout, path, config, lines), *_templates(config, lines)]
        if roles:
            notes = [*_measured(config.benchmarks), *_started(config)]
            model = config.model
            yield _made(
                usual, "", config.test_name, model, hardware, config.num_nodes, tuple(roles), notes
            )


def _made(
    usual: Deployment,
    suffix: str,
    name: str,
    model: str,
    hardware: str,
    nodes: int,
    roles: tuple[Role, ...],
    notes: Sequence[str],
) -> Deployment:
    """Return a deployment of a file; its line is that of its first command."""
    source = Source(usual.source.repo, usual.source.commit, usual.source.path, roles[0].line)
    return Deployment(
        id=f"{usual.id}{suffix}",
        source=source,
        model=model,
        hardware=hardware,
        strategy=name,
        variant="",
        engine=usual.engine,
        version="",
        image="",
        status=usual.status,
        nodes=nodes,
        roles=roles,
        notes=tuple(notes),
    )


def _env(given: Mapping[str, Any]) -> dict[str, str]:
    """Return variables as the tests export them: by Python's str."""
    return {name: str(value) for name, value in given.items()}


def _parts(checkout: Checkout, path: str, config: Config, lines: _Lines) -> Iterator[Role]:
    """Yield the nodes of a service whose commands are written out."""
    for at, part in enumerate(config.deployment):
        line = lines.of("deployment", at, "server_cmd")
        try:
            words = shlex.split(part.server_cmd)
        except ValueError as error:
            checkout.leave_out(f"{path}:{line}", f"server_cmd: {error}.")
            continue
        start = commands.serve_at(words)
        if start is None:
            continue
        role = Role.of("", words[start + 1 :], _env(part.envs), 1, line)
        pool = pool_of(role.flags.get("--kv-transfer-config"))
        first = "head" if len(config.deployment) > 1 else "mixed"
        yield Role(pool or ("worker" if at else first), 1, role.argv, role.env, role.layout, line)


def _templates(config: Config, lines: _Lines) -> Iterator[Role]:
    """Yield the nodes of a service of which each rank has its own command."""
    sizes = {one.node_index: one for one in config.config}
    for at, template in enumerate(config.templates):
        node = template.node_index
        words = list(template.server_cmd_template)
        if node in sizes:
            words = [sizes[node].fill(word) for word in words]
        name = config.routing.pool(node) or "mixed"
        yield Role.of(name, words, _env(template.envs), 1, lines.of("templates", at))


def _started(config: Config) -> Iterator[str]:
    """Yield which ranks each node starts."""
    for one in config.config:
        yield (
            f"node {one.node_index}: {one.dp_size_local} ranks from rank {one.dp_rank_start}, "
            f"first port {one.port_start}"
        )


def _measured(benchmarks: Mapping[str, Any]) -> list[str]:
    """Return what the tests measure, and what they expect."""
    out = []
    for name, one in benchmarks.items():
        if isinstance(one, dict):
            kept = {key: one[key] for key in _MEASURED if key in one}
            out.append(f"{name} {json.dumps(kept, default=str)}"[:_MOST_NOTE])
    return out


class _Lines:
    """The lines at which the items of lists stand in a YAML text, which has been read before."""

    def __init__(self, text: str) -> None:
        root = yaml.compose(text, Loader=_LOADER)
        self.lists: dict[str, list[yaml.Node]] = {}
        for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
            if isinstance(value, yaml.SequenceNode):
                self.lists[str(key.value)] = value.value

    def of(self, name: str, index: int, key: str = "") -> int:
        """Return the line of an item, or of one of its keys; 1 if it is not there."""
        items = self.lists.get(name, [])
        if index >= len(items):
            return 1
        node = items[index]
        for inner, _ in node.value if key and isinstance(node, yaml.MappingNode) else ():
            if inner.value == key:
                return int(inner.start_mark.line) + 1
        return int(node.start_mark.line) + 1
