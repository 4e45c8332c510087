"""Rules on Kubernetes objects as they are written, and on names and numbers that must meet in them.

The reader (`kimi_nb.check.reading.manifests`) finds these faults; the rules that report them are
here.
"""

from __future__ import annotations

from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import of_reading, rule

_API = "API reference of Kubernetes 1.34"


for _identity, _says, _fix, _source, _why in (
    (
        "manifests/key-twice",
        "A mapping has each of its keys once.",
        "Join the two, or take one out.",
        "YAML 1.2, chapter 3.2.1.1",
        "kubectl and docker compose refuse the file; helm and other readers take the last one and "
        "leave the first aside without a word.",
    ),
    (
        "manifests/key",
        "A key of a Kubernetes object is one that its place has.",
        "Spell it as the API does, or move it to where it belongs; indentation decides.",
        _API,
        "kubectl refuses the file ('unknown field'), or leaves the setting aside.",
    ),
    (
        "manifests/type",
        "Values in a Kubernetes object have the type of their key.",
        "Put quotes around numbers and true/false in env, args and labels; write command and args as "
        "lists.",
        _API,
        "The whole object is refused: 'cannot unmarshal number into Go struct field ... of type "
        "string'.",
    ),
    (
        "manifests/name",
        "Objects, containers and their ports have names that Kubernetes takes.",
        "Use small letters, digits and hyphens: 63 of them for a container, 15 for a port.",
        "RFC 1123 and RFC 6335, as the API of Kubernetes checks them",
        "The object is refused: 'must consist of lower case alphanumeric characters', or 'must be no "
        "more than 15 characters'.",
    ),
    (
        "manifests/compose-name",
        "A service of docker compose names services, networks and volumes that are there.",
        "Use the name under services, or define the network or volume at the top of the file.",
        "Compose specification: depends_on, networks, volumes",
        "The project is refused: 'service depends on undefined service', or 'refers to undefined "
        "volume'. A second file that is merged with this one may define it.",
    ),
    (
        "manifests/volume",
        "Each mount has a volume of its name in the pod, and each volume a mount.",
        "Use one name in volumes and in volumeMounts.",
        _API,
        "The pod is refused ('volumeMounts[0].name: Not found'), or a volume that is meant for the "
        "weights or for /dev/shm is not there.",
    ),
    (
        "manifests/probe",
        "A probe asks at a port where the container listens.",
        "Give the probe the engine's --port, or a name from the container's ports.",
        _API,
        "The probe fails for ever: the pod never becomes ready, or is killed while it loads.",
    ),
    (
        "manifests/container-port",
        "A container of an engine names the port at which that listens.",
        "Write the engine's --port there.",
        _API,
        "Services and probes that take the port by its name reach a port that is closed.",
    ),
    (
        "manifests/devices",
        "A container gets as many devices as its engine has ranks.",
        "Ask for tensor parallel size x pipeline parallel size devices, the same in limits and "
        "requests.",
        _API,
        "With fewer the engine does not start; with more, devices are reserved that nothing uses.",
    ),
    (
        "manifests/group",
        "The pods of a group have as many devices together as the engine has ranks.",
        "Let size be the number of nodes, and size x devices of a pod the number of ranks.",
        "LeaderWorkerSet v1: leaderWorkerTemplate.size counts the leader",
        "The engine waits for ranks that nobody starts.",
    ),
    (
        "manifests/selector",
        "A selector names the labels that the pods have.",
        "Write the same label in both.",
        _API,
        "A workload is refused ('selector does not match template labels'); a service has no "
        "endpoints, and connections to it are refused.",
    ),
    (
        "manifests/gateway",
        "Pools and endpoint pickers of an inference gateway name what is there.",
        "Use the name of a declared plugin, the key of a file in pluginsCustomConfig, the labels and "
        "the port of the engine's pods.",
        "Gateway API Inference Extension: EndpointPickerConfig v1alpha1, InferencePool v1, its chart",
        "The endpoint picker ends with an error, or has no endpoints: the gateway answers 5xx.",
    ),
    (
        "manifests/secret",
        "A Secret holds its values as they are, under data in base64.",
        "Write the value under stringData, or its base64 under data; kubectl create secret does both.",
        _API,
        "kubectl refuses the object ('illegal base64 data'), or the token is the text $(NAME): "
        "Kubernetes expands references in containers only.",
    ),
    (
        "manifests/target-port",
        "A service asks its pods at a port where they listen.",
        "Let targetPort be the engine's --port, or the name of a port of the container.",
        _API,
        "Connections to the service are refused, although the pod is ready.",
    ),
):
    rule(_identity, WARNING, _says, _fix, _source, needs=("scripts",))(
        of_reading(_identity, _why, __name__)
    )


rule(
    "manifests/template",
    ERROR,
    "A template of a chart can be filled in, and what it fills in stands where it belongs.",
    "Write the dash beside its braces, and a blank beside the dash; end each if, with, range and "
    "define; give nindent two more than the indentation of the key.",
    "Go: text/template; Helm: chart templates, nindent",
    needs=("scripts",),
)(
    of_reading(
        "manifests/template",
        "helm ends with 'parse error' or 'unexpected EOF', or the API server refuses what comes out: "
        "the values stand beside their key instead of below it.",
        __name__,
    )
)
