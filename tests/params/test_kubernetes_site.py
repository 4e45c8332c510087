"""What a site file may say of a cluster: names as Kubernetes takes them, to the last character."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kimi_nb.params.kubernetes_site import Kubernetes, Toleration, Volume

LEAST = {
    "context": "a3-cluster",
    "namespace": "kimi",
    "device": "nvidia.com/gpu",
    "weights": {"claim": "kimi-weights"},
}
LABEL = "a name of Kubernetes is wanted here: small letters, digits and '-', 63 at most"
KEY = "the key of a label is wanted here, such as node.kubernetes.io/pool"
RESOURCE = "a resource of a device plugin is wanted here, such as nvidia.com/gpu"
VALUE = "the value of a label is wanted here: letters, digits, '-', '_' and '.'"
QUANTITY = "an amount of memory is wanted here, such as 1500Gi"
SHORT = "30 characters at most: the names of pods begin with it"


def refused(table, given) -> str:
    with pytest.raises(ValidationError) as caught:
        table.model_validate(given)
    (error,) = caught.value.errors()
    return error["msg"].removeprefix("Value error, ")


def test_the_least_that_is_said():
    made = Kubernetes.model_validate(LEAST)
    assert (made.name, made.weights.kind, made.host_network) == ("kimi", "claim", False)
    assert (made.resources, made.node_selector, made.tolerations) == ({}, {}, ())


@pytest.mark.parametrize(
    ("key", "good", "bad", "said"),
    [
        ("namespace", ["a", "0", "a-b", "a" * 63], ["", "-a", "a-", "A", "a.b", "a" * 64], LABEL),
        ("image_pull_secret", ["a" * 63], ["a" * 64, "a_b", "a\n"], LABEL),
        ("name", ["a" * 30, "a-1"], ["a" * 31], SHORT),
        ("name", [], ["A", "a-", "A" * 31, "a" * 64], LABEL),
        (
            "device",
            ["nvidia.com/gpu", "huawei.com/Ascend910", "a/b", "a" * 253 + "/" + "b" * 63],
            ["gpu", "a" * 63],
            RESOURCE,
        ),
        ("device", [], ["", "/gpu", "a/", "A.com/gpu", "a/b/c", "a" * 254 + "/b", "a/-b"], KEY),
        (
            "memory",
            ["1Mi", "1500Gi", "9999999Ti"],
            ["", "0Gi", "1500", "1.5Gi", "1500G", "10000000Gi", "-1Gi", " 1Gi"],
            QUANTITY,
        ),
    ],
)
def test_names_and_amounts(key, good, bad, said):
    for one in good:
        assert getattr(Kubernetes.model_validate(LEAST | {key: one}), key) == one
    for one in bad:
        assert refused(Kubernetes, LEAST | {key: one}) == said


def test_labels_of_nodes():
    good = {"pool": "a3", "node.example.org/pool": "", "A_b.c": "X" * 63}
    assert Kubernetes.model_validate(LEAST | {"node_selector": good}).node_selector == good
    for value in ("-a", "a b", "a/b", "x" * 64):
        assert refused(Kubernetes, LEAST | {"node_selector": {"pool": value}}) == VALUE
    assert refused(Kubernetes, LEAST | {"node_selector": {"a b": "x"}}) == KEY
    assert refused(Kubernetes, LEAST | {"resources": {"hca": 1}}) == RESOURCE


def test_only_a_taint_that_is_compared_has_a_value():
    assert Toleration(key="a", operator="Equal", value="x").value == "x"
    assert Toleration(key="a", operator="Equal").value == ""
    assert (Toleration(key="a").operator, Toleration(key="a").effect) == ("Exists", None)
    said = "value: operator Equal compares it, Exists has none"
    assert refused(Toleration, {"key": "a", "value": "x"}) == said
    assert refused(Toleration, {"key": "a", "value": "x", "operator": "Exists"}) == said


def test_the_weights_lie_in_one_place():
    places = {"claim": "weights", "storage_class": "fast", "host_path": "/models"}
    for name, value in places.items():
        assert Volume.model_validate({name: value}).kind == name
        two = {key: one for key, one in places.items() if key != name}
        for given in (two, places, {}):
            said = "one of claim, storage_class and host_path is wanted"
            assert refused(Volume, given) == said
    assert refused(Volume, {"claim": "A"}) == LABEL
    assert refused(Volume, {"storage_class": "a" * 64}) == LABEL
