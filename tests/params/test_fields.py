"""What single fields of the parameter files may hold, at the bounds."""

from __future__ import annotations

from typing import Annotated

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


# Every kind, with what is told ----------------------------------------------------------------

NAME = (
    "a name starts with a letter or digit and holds only letters, digits, '.', '_' and '-', 63 at "
    "most"
)
WORD = "a name or path is wanted here; it cannot be empty or start with '-'"
SYSCTL = "a kernel setting is wanted here, such as vm.swappiness"
PATH = "an absolute path is wanted here, such as /root/.cache"
INTERFACE = "a network interface is wanted here, such as eth0 or enp67s0f5 (15 characters at most)"
VARIABLE = "the NAME of an environment variable is wanted here, never its value"
URL = "a URL is wanted here, such as http://proxy.example.org:3128"
ACCOUNT = (
    "a URL without an account is wanted here: no password stands in a site file. Set the variable "
    "itself where the command runs"
)
REGISTRY = "a registry is wanted here, as in an image's name: mirror.example.org"
IMAGE = (
    "an image is wanted here: its name in a registry (vllm/vllm-openai:v0.19.1), or a file on the "
    "shared file system (/data/vllm.sif, /data/vllm.sqsh)"
)
LINE = "one line of text is wanted here, without control characters"
RANGE = "a range of versions is wanted here, such as >=0.18.0"
ADDRESS_WANTED = "an IP address (192.0.2.11) or a host name (node-1.example.org) is wanted here"
ALLOWED = "(letters, digits, spaces and . _ / : @ % + = , ~ - [ ] { } are)"
DIGEST = "@sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (fields.Name, ["a", "A3", "0", "k2.5_x-y", "a" * 63]),
        (fields.Line, ["A title: 'with' $(id) \u4e2d", "x\u00a0y", " x "]),
        (fields.Text, ["", "a b_c./:@%+=,~-[]{}\"9", "\u4e2d"]),
        (fields.Word, ["a", "X", "/x/y z", ".x", "a-", "{root}"]),
        (fields.Range, [">=0.18.0", ">=0.18,<0.20", "", "==1.*"]),
        (fields.Sysctl, ["vm.swappiness", "net.ipv4.tcp_rmem", "net.ipv4.conf.ethA0.x", "a_1.b"]),
        (fields.Path, ["/", "/root/.cache", "/a b"]),
        (fields.Url, ["http://a", "https://proxy.example.org:3128/x", "http://[::1]:80"]),
        (
            fields.Registry,
            ["a.b", "mirror.example.org", "host:5000", "my-mirror.a-b.org:5000/x_y/z--1/a.b", "0.0",
             "localhost:5000/x__y"],
        ),
        (
            fields.Image,
            ["vllm/vllm-openai:v0.19.1", "a", "quay.io/ascend/vllm-ascend:v0.18.0rc1-a3", "a_b.c-d",
             "host:5000/A_x/b.c-D:V_1.0-x" + DIGEST, "a" + DIGEST, "/data/vllm.sif", "/x.sqsh",
             "0a", "x/y.sif/z"],
        ),
        (fields.Interface, ["eth0", "enp67s0f5", "bond0.100:1", "a" * 15, "0", "X_y-z"]),
        (fields.Variable, ["A", "_", "a_B9", "_9"]),
    ],
)  # fmt: skip
def test_what_is_kept_as_it_is(kind, texts):
    for text in texts:
        assert TypeAdapter(kind).validate_python(text) == text, text


@pytest.mark.parametrize(
    ("kind", "told", "texts"),
    [
        (fields.Name, NAME, ["", "-a", ".a", "_a", "a b", "a/b", "a" * 64, "a\n", "\u4e2d"]),
        (fields.Line, LINE, ["", "  ", "a\nb", "a\x00", "\x1f", "\x7f", "\x85", "\u2028", "\u2029"]),
        (fields.Word, WORD, ["", "-x", " x", "-"]),
        (fields.Range, RANGE, ["banana", "0.18", ">=", ">=0.18;"]),
        (fields.Sysctl, SYSCTL, ["vm", "VM.x", "vm.", ".x", "vm..x", "vm.x;", "vm.x=1", ""]),
        (fields.Path, PATH, ["", "x", "~/x", "/{root}", '/a"b', "./x"]),
        (
            fields.Url,
            URL,
            ["", "proxy", "ftp://a", "http://", "http:///x", "http://a b", "//a", "http:a"],
        ),
        (fields.Url, ACCOUNT, ["http://me@a", "http://me:x@a", "http://:x@a"]),
        (
            fields.Registry,
            REGISTRY,
            ["", "a", "A.b", "a.b/", "a.b//x", "a.b/-x", "a.b/X", "-a.b", "a..b", "a.b/x-", "a.b:",
             "http://a.b", "a.b/x/Y"],
        ),
        (
            fields.Image,
            IMAGE,
            ["", "A", "-a", "a b", "a:", "a:b:c", "a:b:c/", "a::b", "host:x/a", "a@sha256:12",
             "a" + DIGEST + "0", "x.sif", "a/b.sqsh", "/x.img", "/a:b.sif", "/a,b.sif", "/a b.sif", "/a'.sif", '/a".sqsh', "/{a}.sif", "/.sif",
             "a//b", "./a.sif", "a" + DIGEST.upper()],
        ),
        (fields.Interface, INTERFACE, ["", "-x", ".x", "a" * 16, "a b", "eth0;", "a/b"]),
        (fields.Variable, VARIABLE, ["", "9A", "A-B", "A B", "sk-1", "A=1", "A.B"]),
        (fields.Address, ADDRESS_WANTED, ["a_b", "1.2.3", "0x7", "x.x", "xx", "::1%a", ""]),
    ],
)  # fmt: skip
def test_what_is_refused_and_in_which_words(kind, told, texts):
    for text in texts:
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(kind).validate_python(text)
        assert caught.value.errors()[0]["msg"] == f"Value error, {told}", text


@pytest.mark.parametrize("kind", [fields.Text, fields.Word, fields.Path, fields.Url])
@pytest.mark.parametrize(
    "bad", [";", "|", "&", "$", "`", "'", "\n", "\t", "\\", "<", "(", "*", "\x00"]
)
def test_no_text_of_a_script_has_shell_characters(kind, bad):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(f"/a{bad}b;")
    told = f"Value error, the character {bad!r} is not allowed {ALLOWED}"
    assert caught.value.errors()[0]["msg"] == told


@pytest.mark.parametrize(
    ("text", "address"),
    [("192.0.2.11", "192.0.2.11"), ("FD00:0::1", "fd00::1"), ("Node-X", "Node-X"),
     ("a.x.1", "a.x.1"), ("1.2.3.4a", "1.2.3.4a")],
)  # fmt: skip
def test_an_address_has_one_form(text, address):
    assert ADDRESS.validate_python(text) == address


@pytest.mark.parametrize(
    "address", ["192.0.2.1", "198.51.100.255", "203.0.113.9", "2001:db8::1", "2001:db8:0:f::"]
)
def test_addresses_of_documents(address):
    assert fields.is_example(address)


@pytest.mark.parametrize(
    "address", ["192.0.3.1", "10.192.0.2.1", "192.0.2.1.example.org", "2001:db9::1", "node-1", ""]
)
def test_addresses_that_somebody_may_have(address):
    assert not fields.is_example(address)


def test_a_check_s_own_value_is_taken():
    assert TypeAdapter(Annotated[str, fields.Checked(str.upper)]).validate_python("a") == "A"


@pytest.mark.parametrize("value", ["driver", 1, 7, 10**9])
def test_a_least_value(value):
    assert TypeAdapter(fields.Least).validate_python(value) == value


@pytest.mark.parametrize("value", ["", "Driver", "7", 0, -1, 10**9 + 1, True, 1.0, None])
def test_what_is_no_least_value(value):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(fields.Least).validate_python(value)
    told = "Value error, a whole number from 1 on is wanted here, or driver"
    assert caught.value.errors()[0]["msg"] == told


@pytest.mark.parametrize(
    ("kind", "most"), [(fields.Port, 65535), (fields.Count, 10**9), (fields.DeviceCount, 1024)]
)
def test_numbers_have_bounds_and_are_whole(kind, most):
    for value in (1, most):
        assert TypeAdapter(kind).validate_python(value) == value
    for value in (0, most + 1, "1", 1.0, True):
        with pytest.raises(ValidationError):
            TypeAdapter(kind).validate_python(value)
