"""A stand-in for a Kubernetes cluster that the real kubectl talks to.

An API server in memory, with discovery, server-side apply, dry runs, selectors, reviews of rights, logs
and events; objects of the API's own kinds must pass kubernetes-validate's strict schemas. A controller
makes the pods of LeaderWorkerSets and Deployments, and ends them with their owners. Strict where kubectl
could go wrong: an unknown path, parameter or content type is an error that a test sees in ``odd``.

Not there: scheduling, kubelets, admission, watches, port-forwards (`FORWARDER` stands in for these).
"""

from __future__ import annotations

import copy
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import yaml

VERSION = "1.34"
# (group/version) -> {resource: kind}; those with * have no namespace.
RESOURCES = {
    "v1": {
        "namespaces": "*Namespace",
        "nodes": "*Node",
        "pods": "Pod",
        "services": "Service",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "events": "Event",
        "persistentvolumeclaims": "PersistentVolumeClaim",
    },
    "apps/v1": {"deployments": "Deployment"},
    "batch/v1": {"jobs": "Job"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "storage.k8s.io/v1": {"storageclasses": "*StorageClass"},
    "authorization.k8s.io/v1": {"selfsubjectaccessreviews": "*SelfSubjectAccessReview"},
    "leaderworkerset.x-k8s.io/v1": {"leaderworkersets": "LeaderWorkerSet"},
}
CUSTOM = ("LeaderWorkerSet",)
_SHORT = {"persistentvolumeclaims": ["pvc"], "configmaps": ["cm"]}
_PARAMETERS = {
    "fieldManager",
    "fieldValidation",
    "force",
    "dryRun",
    "labelSelector",
    "limit",
    "timeout",
    "pretty",
}
_OF_LOGS = {"container", "timestamps", "tailLines", "sinceTime", "limitBytes", "follow"}

# Stands in for `kubectl port-forward` alone: everything else goes to the real one. The forwarded
# connections go to the addresses of a JSON file, by "pod port".
FORWARDER = """#!{python}
import json, os, re, socket, sys, threading
words = sys.argv[1:]
if "port-forward" not in words:
    os.execv({kubectl!r}, [{kubectl!r}, *words])
at = words.index("port-forward")
assert words[0] == "--context" and words[2] == "--namespace" and at == 4, words
flag, address, target, *pairs = words[at + 1 :]
assert flag == "--address" and re.fullmatch(r"127[.]\\d+[.]\\d+[.]\\d+", address), words
assert re.fullmatch(r"(pod|service)/[a-z0-9-]+", target) and pairs, words

def pump(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    for end in (one, other):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

def serve(listener, port):
    while True:
        client, _ = listener.accept()
        # Asked anew: a pod may have moved.
        there = json.load(open({table!r})).get(f"{{target}} {{port}}")
        try:
            server = socket.create_connection(there, 5)
        except (OSError, TypeError):
            client.close()
            continue
        for pair in ((client, server), (server, client)):
            threading.Thread(target=pump, args=pair, daemon=True).start()

threads = []
for pair in pairs:
    here, port = map(int, pair.split(":"))
    listener = socket.create_server((address, here))
    print(f"Forwarding from {{address}}:{{here}} -> {{port}}", flush=True)
    threads.append(threading.Thread(target=serve, args=(listener, port), daemon=True))
    threads[-1].start()
threads[0].join()
"""


class Refusal(Exception):
    """An answer of the API server that is no success."""

    def __init__(self, code: int, reason: str, text: str) -> None:
        self.code, self.reason, self.text = code, reason, text
        super().__init__(text)


class Cluster:
    """The objects of the cluster by (group/version, resource, namespace, name), and what befalls pods.

    ``pod_of`` returns the status of a new pod; ``logs`` has (timestamp, line) pairs by pod; ``denied``
    the (verb, resource) that the user may not do; ``gone`` the group/versions that are not installed.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self.logs: dict[str, list[tuple[str, str]]] = {}
        self.denied: set[tuple[str, str]] = set()
        self.gone: set[str] = set()
        self.odd: list[str] = []  # what kubectl asked and no API server answers
        self.asked: list[tuple[str, str]] = []
        self.pod_of: Callable[[str], dict[str, Any]] = lambda name: running()
        self.lock = threading.RLock()
        self._number = 0

    def add(self, version: str, resource: str, one: dict[str, Any], namespace: str = "") -> None:
        """Put an object there, as somebody else would."""
        with self.lock:
            self._number += 1
            meta = one.setdefault("metadata", {})
            meta.setdefault("uid", f"uid-{self._number}")
            meta["resourceVersion"] = str(self._number)
            meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
            if namespace:
                meta["namespace"] = namespace
            one.setdefault("apiVersion", version)
            one.setdefault("kind", RESOURCES[version][resource].lstrip("*"))
            self.objects[version, resource, namespace, meta["name"]] = one

    def names(self, resource: str) -> list[str]:
        """Return the names of all objects of a resource."""
        with self.lock:
            return sorted(key[3] for key in self.objects if key[1] == resource)

    def pod(self, name: str, status: dict[str, Any] | None = None, anew: bool = False) -> None:
        """Change the status of a pod; ``anew`` replaces it by another one of its name."""
        with self.lock:
            key = next(one for one in self.objects if one[1] == "pods" and one[3] == name)
            pod = self.objects[key]
            if anew:
                del pod["metadata"]["uid"]
                self.add("v1", "pods", pod, key[2])
            if status is not None:
                pod["status"] = status

    def reconcile(self) -> None:
        """Make the pods that sets and deployments want, and end those whose owners are gone."""
        with self.lock:
            wanted: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
            for (_, resource, namespace, name), one in self.objects.items():
                for pod, template in _pods(resource, name, one):
                    wanted[namespace, pod] = (name, template)
            for key in [key for key in self.objects if key[1] == "pods"]:
                if key[2:] not in wanted:
                    del self.objects[key]
            there = {key[2:] for key in self.objects if key[1] == "pods"}
            for (namespace, pod), (owner, template) in wanted.items():
                if (namespace, pod) not in there:
                    labels = template.get("metadata", {}).get("labels", {})
                    made = {
                        "metadata": {"name": pod, "labels": labels},
                        "spec": {**copy.deepcopy(template["spec"]), "nodeName": f"node-of-{pod}"},
                        "status": self.pod_of(pod),
                    }
                    made["metadata"]["annotations"] = {"owner": owner}
                    self.add("v1", "pods", made, namespace)


def _pods(resource: str, name: str, one: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    spec = one.get("spec", {})
    if resource == "deployments":
        yield f"{name}-7d9f-x2x4z", spec["template"]
    elif resource == "leaderworkersets":
        group = spec["leaderWorkerTemplate"]
        for replica in range(spec["replicas"]):
            yield f"{name}-{replica}", group.get("leaderTemplate", group["workerTemplate"])
            for worker in range(1, group["size"]):
                yield f"{name}-{replica}-{worker}", group["workerTemplate"]
    elif resource == "jobs" and not one.get("status"):
        yield f"{name}-abcde", spec["template"]


def running(ready: bool = True) -> dict[str, Any]:
    """The status of a pod that runs."""
    return {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "containerStatuses": [
            {
                "name": "engine",
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
        ],
    }


def waiting(word: str, message: str = "", restarts: int = 0, **last: Any) -> dict[str, Any]:
    """The status of a pod whose container waits."""
    one: dict[str, Any] = {
        "name": "engine",
        "restartCount": restarts,
        "state": {"waiting": {"reason": word, "message": message}},
    }
    if last:
        one["lastState"] = {"terminated": last}
    return {"phase": "Pending", "containerStatuses": [one]}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    """The status of a pod whose container has ended."""
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {
        "phase": "Running",
        "containerStatuses": [{"name": "engine", "restartCount": 0, "state": state}],
    }


def unschedulable(message: str) -> dict[str, Any]:
    """The status of a pod that no node takes."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    return {"phase": "Pending", "conditions": [condition]}


def node(name: str, resource: str, count: int, **labels: str) -> dict[str, Any]:
    """A node with devices."""
    return {
        "metadata": {
            "name": name,
            "labels": {key.replace("_", "-"): labels[key] for key in labels},
        },
        "spec": {},
        "status": {"allocatable": {resource: str(count), "cpu": "96", "memory": "2000Gi"}},
    }


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"
    # Headers and body are two packets: without it each answer would wait for an acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        pass

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        split = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        self.cluster.asked.append((self.command, self.path))
        try:
            with self.cluster.lock:
                self.cluster.reconcile()
                found = self._answer(split.path.rstrip("/"), query, body)
            code, kind = (201 if self.command == "POST" else 200), "application/json"
        except Refusal as error:
            code, kind = error.code, "application/json"
            found = {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": error.text,
                "reason": error.reason,
                "code": error.code,
            }
        if isinstance(found, str):
            data, kind = found.encode(), "text/plain"
        else:
            data = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _serve

    def _odd(self, why: str) -> Refusal:
        self.cluster.odd.append(f"{self.command} {self.path}: {why}")
        return Refusal(400, "BadRequest", why)

    def _answer(self, path: str, query: dict[str, str], body: bytes) -> Any:
        versions = {key: one for key, one in RESOURCES.items() if key not in self.cluster.gone}
        if path == "/version":
            major, minor = VERSION.split(".")
            return {"major": major, "minor": minor, "gitVersion": f"v{VERSION}.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [self._group(one) for one in versions if "/" in one]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path == "/openapi/v3":
            return {
                "paths": {
                    _place(one).lstrip("/"): {"serverRelativeURL": f"/openapi/v3{_place(one)}"}
                    for one in versions
                }
            }
        for one in versions:
            if path == f"/openapi/v3{_place(one)}":
                return _openapi(one)
            if path == _place(one):
                return _resources(one)
            if path == _place(one).rpartition("/")[0] and "/" in one:
                return self._group(one)
        return self._object(path, query, body, versions)

    def _group(self, version: str) -> dict[str, Any]:
        group, _, number = version.partition("/")
        known = {"groupVersion": version, "version": number}
        return {
            "kind": "APIGroup",
            "apiVersion": "v1",
            "name": group,
            "versions": [known],
            "preferredVersion": known,
        }

    def _object(
        self, path: str, query: dict[str, str], body: bytes, versions: dict[str, dict[str, str]]
    ) -> Any:
        found = re.fullmatch(
            r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))"
            r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[a-z]+)"
            r"(?:/(?P<name>[^/]+))?(?:/(?P<part>log))?",
            path,
        )
        if found is None and re.fullmatch(r"/api/v1/namespaces/[^/]+", path):
            key = ("v1", "namespaces", "", path.rpartition("/")[2])
            return self._one(key)
        version = found and (found["core"] or found["group"])
        if found is None or version not in versions or found["resource"] not in versions[version]:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        resource, name, part = found["resource"], found["name"], found["part"]
        kind = versions[version][resource]
        key = (version, resource, found["namespace"] or "", name or "")
        verb = {"GET": "get" if name else "list", "PATCH": "patch", "POST": "create"}.get(
            self.command, "delete"
        )
        if (verb, resource) in self.cluster.denied:
            group = version.rpartition("/")[0]
            raise Refusal(
                403,
                "Forbidden",
                f'{resource}{f".{group}" if group else ""} is forbidden: User "u" cannot {verb} '
                f'resource "{resource}" in API group "{group}"',
            )
        if unknown := set(query) - _PARAMETERS - (_OF_LOGS if part else set()):
            raise self._odd(f"parameters {unknown}")
        if part:
            return self._log(key, query)
        if self.command == "GET":
            return self._one(key) if name else self._list(key, kind.lstrip("*"), query)
        if self.command == "POST":
            return self._create(key, json.loads(body))
        if self.command == "PATCH":
            return self._apply(key, body, query)
        if self.command == "DELETE":
            self._one(key)
            del self.cluster.objects[key]
            self.cluster.reconcile()
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        raise self._odd("method")

    def _one(self, key: tuple[str, str, str, str]) -> dict[str, Any]:
        if key not in self.cluster.objects:
            raise Refusal(404, "NotFound", f'{key[1]} "{key[3]}" not found')
        return self.cluster.objects[key]

    def _list(
        self, key: tuple[str, str, str, str], kind: str, query: dict[str, str]
    ) -> dict[str, Any]:
        wanted = dict(
            pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair
        )
        items = [
            one
            for at, one in sorted(self.cluster.objects.items())
            if at[:2] == key[:2]
            and key[2] in ("", at[2])
            and wanted.items() <= one["metadata"].get("labels", {}).items()
        ]
        meta = {"resourceVersion": "1"}
        return {"kind": f"{kind}List", "apiVersion": key[0], "metadata": meta, "items": items}

    def _create(self, key: tuple[str, str, str, str], one: dict[str, Any]) -> dict[str, Any]:
        if key[1] == "selfsubjectaccessreviews":
            asked = one["spec"]["resourceAttributes"]
            kind = asked["resource"] + (f"/{asked['subresource']}" if asked["subresource"] else "")
            allowed = (asked["verb"], kind) not in self.cluster.denied
            return {**one, "status": {"allowed": allowed}}
        key = (*key[:3], one["metadata"]["name"])
        if key in self.cluster.objects:
            raise Refusal(409, "AlreadyExists", f'{key[1]} "{key[3]}" already exists')
        self._valid(one)
        self.cluster.add(key[0], key[1], one, key[2])
        return one

    def _apply(self, key: tuple[str, str, str, str], body: bytes, query: dict[str, str]) -> Any:
        if self.headers.get("Content-Type") != "application/apply-patch+yaml":
            raise self._odd(f"content type {self.headers.get('Content-Type')}")
        if not query.get("fieldManager"):
            raise self._odd("apply without a manager")
        one = yaml.safe_load(body)
        if (one["kind"], one["metadata"]["name"]) != (
            RESOURCES[key[0]][key[1]].lstrip("*"),
            key[3],
        ):
            raise self._odd("kind or name is not that of the path")
        self._valid(one)
        before = self.cluster.objects.get(key)
        other = before and before["metadata"].get("annotations", {}).get("manager")
        if other and other != query["fieldManager"] and query.get("force") != "true":
            raise Refusal(
                409, "Conflict", f'Apply failed with 1 conflict: conflict with "{other}": .spec'
            )
        merged = copy.deepcopy(one)
        if before:
            merged["metadata"] = {**before["metadata"], **one["metadata"]}
            if "status" in before:
                merged["status"] = before["status"]
        if query.get("dryRun") == "All":
            merged["metadata"].setdefault("uid", "dry")
            return merged
        self.cluster.add(key[0], key[1], merged, key[2])
        return merged

    def _valid(self, one: dict[str, Any]) -> None:
        if one["kind"] in CUSTOM:
            return
        try:
            kubernetes_validate.validate(one, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise Refusal(422, "Invalid", f"{one['kind']} is invalid: {error.message}") from None

    def _log(self, key: tuple[str, str, str, str], query: dict[str, str]) -> str:
        self._one(key)
        lines = self.cluster.logs.get(key[3], [])
        since = query.get("sinceTime", "")
        return "".join(
            f"{at} {text}\n" if query.get("timestamps") else f"{text}\n"
            for at, text in lines
            if at[:19] >= since[:19]
        )


def _place(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _resources(version: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch"]
    resources = [
        {
            "name": name,
            "singularName": kind.lstrip("*").lower(),
            "namespaced": not kind.startswith("*"),
            "kind": kind.lstrip("*"),
            "verbs": verbs,
            "shortNames": _SHORT.get(name, []),
        }
        for name, kind in RESOURCES[version].items()
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": resources,
    }


def _openapi(version: str) -> dict[str, Any]:
    """What kubectl reads before it leaves validation to the server."""
    group, _, number = version.rpartition("/")
    paths = {}
    for name, kind in RESOURCES[version].items():
        operation = {
            "parameters": [{"name": "fieldValidation", "in": "query"}],
            "x-kubernetes-group-version-kind": {
                "group": group,
                "version": number,
                "kind": kind.lstrip("*"),
            },
            "responses": {},
        }
        paths[f"{_place(version)}/namespaces/{{namespace}}/{name}/{{name}}"] = {"patch": operation}
    return {"openapi": "3.0.0", "info": {"title": "x", "version": "1"}, "paths": paths}


@contextmanager
def cluster(context: str, namespace: str, folder: Path) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """Serve a cluster; yield it and the variables by which kubectl finds it under ``context``."""
    made = Cluster()
    made.add("v1", "namespaces", {"metadata": {"name": namespace}})
    handler = type("Handler", (_Handler,), {"cluster": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "elsewhere",
        "clusters": [
            {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}},
            {"name": "elsewhere", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {"name": context, "context": {"cluster": "here", "user": "u"}},
            {"name": "elsewhere", "context": {"cluster": "elsewhere", "user": "u"}},
        ],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    program = folder / "kubectl-bin" / "kubectl"
    program.parent.mkdir()
    table = folder / "forwards.json"
    table.write_text("{}")
    kubectl = str(Path(sys.executable).with_name("kubectl"))
    program.write_text(FORWARDER.format(python=sys.executable, kubectl=kubectl, table=str(table)))
    program.chmod(0o755)
    try:
        yield made, {"KUBECONFIG": str(path), "KUBECACHEDIR": str(folder / "kubecache")}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def now(seconds: float = 0.0) -> str:
    """A timestamp as the API server has them."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime(time.time() + seconds))
