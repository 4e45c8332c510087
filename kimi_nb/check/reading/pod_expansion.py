"""Expand LeaderWorkerSets whose pods run a script of a ConfigMap: a folder of scripts for each pod.

As the controller does: a replica is a group, its leader has the number 0, and every container gets
LWS_LEADER_ADDRESS, LWS_WORKER_INDEX and LWS_GROUP_SIZE. A pod's own IP is written as its name in the
headless service, which is what the others know of it.

Source: pod_utils.go and leaderworkerset_types.go of LeaderWorkerSet v1.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from kimi_nb.check.reading.files import Text
from kimi_nb.core import data_files, strict_yaml

MOST = 64  # pods of all sets together; more are alike
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
_GROUP = "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']"
_WORKER = "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"


@dataclass(frozen=True)
class PodRun:
    """A pod that runs a script: its variables, the script's name, and all files beside it.

    ``files`` are the texts of the ConfigMap by their names there; ``template`` is the pod's spec.
    """

    name: str
    owner: str
    group: int
    worker: int
    env: Mapping[str, str]
    script: str
    files: Mapping[str, str]
    template: Mapping[str, Any]


def pods(objects: Sequence[Any], maps: Mapping[str, Mapping[str, str]]) -> Iterator[PodRun]:
    """Yield the pods of every LeaderWorkerSet among objects, as far as they run scripts of ``maps``.

    ``maps`` has the texts of ConfigMaps by name and key.
    """
    for one in objects:
        if not isinstance(one, dict) or one.get("kind") != "LeaderWorkerSet":
            continue
        spec = _table(one, "spec")
        group = _table(spec, "leaderWorkerTemplate")
        meta = _table(one, "metadata")
        name, space = str(meta.get("name", "")), str(meta.get("namespace", "default"))
        size, replicas = _count(group.get("size")), _count(spec.get("replicas"))
        workers = _table(_table(group, "workerTemplate"), "spec")
        leaders = _table(_table(group, "leaderTemplate"), "spec") or workers
        runs = [_script(template, maps) for template in (leaders, workers)]
        # Numbers of a stranger's file may be anything: nothing is counted that runs no script.
        some = range(0 if runs[0] else 1, size if runs[1] else 1)
        for number, worker in ((n, w) for n in range(replicas if some else 0) for w in some):
            found = runs[min(worker, 1)]
            assert found is not None
            container, script, files = found
            pod = f"{name}-{number}-{worker}" if worker else f"{name}-{number}"
            given = {
                "LWS_LEADER_ADDRESS": f"{name}-{number}.{name}.{space}",
                "LWS_GROUP_SIZE": str(size),
                "LWS_WORKER_INDEX": str(worker),
            }
            facts = {
                "status.podIP": f"{pod}.{name}.{space}",
                "metadata.name": pod,
                "metadata.namespace": space,
                _GROUP: str(number),
                _WORKER: str(worker),
            }
            env = given | _variables(container, facts, given)
            template = workers if worker else leaders
            yield PodRun(pod, name, number, worker, env, script, files, template)


def _table(of: Any, key: str) -> dict[str, Any]:
    value = of.get(key) if isinstance(of, dict) else None
    return value if isinstance(value, dict) else {}


def _items(of: Any, key: str) -> list[dict[str, Any]]:
    value = of.get(key) if isinstance(of, dict) else None
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def _script(
    template: Mapping[str, Any], maps: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], str, Mapping[str, str]] | None:
    """Return the container that runs a script of a ConfigMap, the script's name, and the map."""
    volumes = {
        one.get("name"): str(_table(one, "configMap").get("name", ""))
        for one in _items(template, "volumes")
    }
    for container in _items(template, "containers"):
        command = container.get("command")
        words = [*map(str, command)] if isinstance(command, list) else []
        if len(words) != 2 or words[0] not in _SHELLS:
            continue
        folder, key = posixpath.split(words[1])
        for mount in _items(container, "volumeMounts"):
            files = maps.get(volumes.get(mount.get("name"), ""), {})
            if str(mount.get("mountPath", "")).rstrip("/") == folder and key in files:
                return container, key, files
    return None


def _variables(
    container: Mapping[str, Any], facts: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return what the container sets, with references to fields and variables filled in."""
    out: dict[str, str] = {}
    for one in _items(container, "env"):
        name, path = str(one.get("name", "")), _table(_table(one, "valueFrom"), "fieldRef")
        if path.get("fieldPath") in facts:
            out[name] = facts[str(path["fieldPath"])]
        elif "value" in one:
            text = str(one["value"])
            for other, value in {**given, **out}.items():
                text = text.replace(f"$({other})", value)
            out[name] = text
    return out


def expand(texts: Sequence[Text]) -> list[Text]:
    """Return the texts with the scripts of LeaderWorkerSets once for each pod, in its own folder.

    Such a script leaves the place where it was written; everything else stays.
    """
    manifests = [text for text in texts if text.kind == "yaml" and _concerns(text.text)]
    if not any("LeaderWorkerSet" in text.text for text in manifests):
        return list(texts)
    objects = [(text, one) for text in manifests for one in _objects(text.text)]
    by_path = {os.path.normpath(text.path or text.name): text for text in texts}
    maps: dict[str, dict[str, str]] = {}
    written: dict[tuple[str, str], Text] = {}
    for text, one in objects:
        folder = os.path.dirname(text.path or text.name)
        if one.get("kind") == "ConfigMap":
            name = str(_table(one, "metadata").get("name", ""))
            maps[name] = {key: str(value) for key, value in _table(one, "data").items()}
        for made in _items(one, "configMapGenerator"):
            name, listed = str(made.get("name", "")), made.get("files")
            for entry in listed if isinstance(listed, list) else []:
                key, _, path = str(entry).rpartition("=")
                file = by_path.get(os.path.normpath(os.path.join(folder, path)))
                if file is not None:
                    key = key or posixpath.basename(path)
                    maps.setdefault(name, {})[key] = file.text
                    written[name, key] = file
    runs = list(itertools.islice(pods([one for _, one in objects], maps), MOST))
    if not runs:
        return list(texts)
    taken = {id(file) for name, file in _of_runs(runs, maps, written)}
    kept = [_without(text, runs) for text in texts if id(text) not in taken]
    begins: dict[int, set[str]] = {}
    for run in runs:
        begins.setdefault(id(run.files), set()).add(run.script)
    return kept + [
        one
        for run in runs
        for one in _texts(run, begins[id(run.files)] - {run.script}, maps, written)
    ]


def _concerns(text: str) -> bool:
    kinds = ("LeaderWorkerSet", "configMapGenerator", "ConfigMap")
    return any(kind in text for kind in kinds) and not data_files.too_deep(text)


def _objects(text: str) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return [one for one in yaml.load_all(text, Loader=loader) if isinstance(one, dict)]
    except strict_yaml.UNREADABLE:
        return []


def _of_runs(
    runs: Sequence[PodRun],
    maps: Mapping[str, Mapping[str, str]],
    written: Mapping[tuple[str, str], Text],
) -> Iterator[tuple[str, Text]]:
    names = {name for name, files in maps.items() if any(run.files is files for run in runs)}
    yield from ((name, file) for (name, _), file in written.items() if name in names)


def _texts(
    run: PodRun,
    others: Collection[str],
    maps: Mapping[str, Mapping[str, str]],
    written: Mapping[tuple[str, str], Text],
) -> Iterator[Text]:
    """Yield the shell scripts of one pod; its variables stand in the place of the first line.

    ``others`` are scripts with which other pods begin.
    """
    name = next(name for name, files in maps.items() if files is run.files)
    head = "export " + " ".join(f"{key}={shlex.quote(value)}" for key, value in run.env.items())
    for key, text in run.files.items():
        first, _, rest = text.partition("\n")
        if key.endswith(".sh") and first.startswith("#!") and key not in others:
            file = written.get((name, key))
            path = file.path if file else ""
            yield Text(f"{run.name}/{key}", run.name, "bash", f"{head}\n{rest}", path)


def _without(text: Text, runs: Sequence[PodRun]) -> Text:
    """Return a manifest without the scripts of its ConfigMaps that pods run; lines stay in place."""
    if text.kind != "yaml" or "ConfigMap" not in text.text:
        return text
    known = {content for run in runs for content in run.files.values()}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    out = text.text
    for root in reversed(list(yaml.compose_all(out, Loader=loader))):
        for value in reversed(list(_data(root))):
            if value.value in known:
                first, last = value.start_mark.index, value.end_mark.index
                out = out[:first] + '""' + "\n" * out.count("\n", first, last) + out[last:]
    return replace(text, text=out)


def _data(root: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield the values of a ConfigMap's data."""
    keys = dict(_pairs(root))
    kind = keys.get("kind")
    if isinstance(kind, yaml.ScalarNode) and kind.value == "ConfigMap":
        yield from (one for _, one in _pairs(keys.get("data")) if isinstance(one, yaml.ScalarNode))


def _pairs(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from ((k.value, v) for k, v in node.value if isinstance(k, yaml.ScalarNode))
