"""The classes behind JSON flags, and which settings are each node's own."""

from __future__ import annotations

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import config_classes, group_settings


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("compilation-config", "CompilationConfig"),
        ("eplb-config", "EPLBConfig"),
        ("pooler-config", "PoolerConfig"),
        ("watchdog-config", "WatchdogConfig"),
        ("additional-config", None),
        ("max-num-seqs", None),
    ],
)
def test_the_class_of_a_flag(flag, name):
    assert config_classes.of_flag(flag) == name


def test_every_class_that_is_named_is_in_the_catalog():
    known = catalog.tables("vllm")["configs"]
    for table in (config_classes.STRICT, config_classes.OTHERS, config_classes.INNER):
        assert set(table.values()) <= set(known)
    for owner, key in config_classes.INNER:
        assert key in known[owner]
    for owner, key in config_classes.FIELDS.values():
        assert key in known[owner]


@pytest.mark.parametrize(
    ("name", "row", "refuses"),
    [
        # Of the classes that `vllm serve` builds itself, an unknown key was always refused.
        ("KVTransferConfig", "0.11.2", True),
        ("SpeculativeConfig", "0.33.0", True),
        ("PassConfig", "0.12.0", False),
        ("PassConfig", "0.13.0", True),
        ("PassConfig", "0.33.0", True),
        ("PoolerConfig", "0.11.2", False),
        ("PoolerConfig", "0.33.0", True),
        ("NoConfig", "0.33.0", False),
    ],
)
def test_classes_that_refuse_a_key_that_they_do_not_know(name, row, refuses):
    assert config_classes.refuses_unknown(name, row) is refuses


def test_a_class_without_a_row_of_its_own_refuses_none(monkeypatch):
    table = {"configs": {"Own": {"x": [{"first": "0.11.2", "last": "0.33.0"}]}}}
    monkeypatch.setattr(catalog, "tables", lambda package: {"vllm": table}[package])
    assert config_classes.refuses_unknown("Own", "0.12.0") is False
    assert list(config_classes.fields("Own", "0.12.0")) == ["x"]
    assert config_classes.fields("Other", "0.12.0") == {}


def test_the_fields_of_a_class_at_a_version():
    old, new = (config_classes.fields("KVTransferConfig", row) for row in ("0.11.2", "0.33.0"))
    assert set(old) - set(new) == {"kv_buffer_size", "kv_ip", "kv_parallel_size", "kv_rank"}
    assert set(new) - set(old) == {"kv_load_failure_policy"}
    assert "*" not in new
    assert new["kv_role"] == catalog.tables("vllm")["configs"]["KVTransferConfig"]["kv_role"]


# Of a group -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["VLLM_USE_V1", "HCCL_BUFFSIZE", "NCCL_NVLS_ENABLE", "ASCEND_BUFFER_POOL",
     "PYTORCH_CUDA_ALLOC_CONF", "TASK_QUEUE_ENABLE", "OMP_NUM_THREADS", "UCX_TLS", "MOONCAKE_MASTER"],
)  # fmt: skip
def test_variables_of_the_engine_are_alike_in_a_group(name):
    assert group_settings.is_shared(name)


@pytest.mark.parametrize(
    "name",
    ["NCCL_IB_HCA", "NCCL_DEBUG", "VLLM_API_KEY", "UCX_NET_DEVICES", "NCCL_IB_GID_INDEX",
     "ASCEND_HOME_PATH", "VLLM_LOGGING_LEVEL", "VLLM_CACHE_ROOT", "VLLM_TORCH_PROFILER_DIR",
     "VLLM_PROFILE_X", "MOONCAKE_CONFIG_PATH", "UCX_X_DIR", "HCCL_X_ROOT", "HTTPS_PROXY", "MY_VLLM_X",
     "GLOO_SOCKET_IFNAME", "PATH", "OMP"],
)  # fmt: skip
def test_variables_of_a_node_are_its_own(name):
    assert not group_settings.is_shared(name)
