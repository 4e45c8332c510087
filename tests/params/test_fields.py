"""What single fields of the parameter files may hold, at the bounds."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from kimi_nb.check.view import container_start
from kimi_nb.params import fields

ADDRESS = TypeAdapter(fields.Address)


@pytest.mark.parametrize(
    "text",
    ["n", "node-1", "a--b", "node-1.my-site.example.org", "1a", "a" * 63, "10.1.2.3", "fd00::1",
     ".".join(["a" * 63] * 3 + ["b" * 61])],
)  # fmt: skip
def test_a_host_may_have_a_dash_inside(text):
    assert ADDRESS.validate_python(text) == text


@pytest.mark.parametrize(
    "text",
    ["-oProxyCommand=x", "-node", "node-", "a.-b", "a-.b", "a..b", ".a", "a.", "a_b", "a b", "",
     "a" * 64, ".".join(["a" * 63] * 4), "fe80::1%eth0", "300.1.1.1", "141.xx.xx.1", "root@a"],
)  # fmt: skip
def test_a_host_that_a_program_would_take_for_an_option_is_none(text):
    with pytest.raises(ValidationError, match="an IP address"):
        ADDRESS.validate_python(text)


SECRETS = ["TOKEN", "HF_TOKEN", "MY_SECRET", "DB_PASSWORD", "PASSWORD", "MY_PASSWD", "X_API_KEY",
           "VLLM_API_KEY", "S3_ACCESS_KEY", "S3_ACCESS_KEY_ID"]  # fmt: skip
PLAIN = ["MAX_TOKENS", "TOKENIZER", "PASSWORDLESS", "HCCL_BUFFSIZE", "TOKEN_FILE", "API_KEYS"]


def test_variables_that_hold_secrets_by_their_names():
    for name in SECRETS:
        assert fields.secret(name), name
    for name in PLAIN:
        assert not fields.secret(name), name


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["gpu0"], (0,)),
        (["gpu3", "gpu1", "gpu3"], (1, 3)),
        (["/dev/davinci0", "/dev/davinci15"], (0, 15)),
        (["/dev/nvidia7"], (7,)),
        (["gpu1", "all"], None),
        (["gpu1000"], None),
        (["/dev/davinci_manager"], None),
        ([], None),
    ],
)
def test_numbers_of_devices(names, numbers):
    assert container_start.device_numbers(names) == numbers


@pytest.mark.parametrize(
    ("told", "devices"),
    [
        (["all"], ("all",)),
        (["2"], ("gpu0", "gpu1")),
        (["count=3"], ("gpu0", "gpu1", "gpu2")),
        (['"device=0,3"'], ("gpu0", "gpu3")),
        (["device=0,GPU-1b2c"], ("gpu0", "GPU-1b2c")),
        (["capabilities=compute"], ()),
        (["1000"], ("1000",)),
        ([""], ()),
    ],
)
def test_devices_of_a_container(told, devices):
    assert container_start.gpus(told) == devices
