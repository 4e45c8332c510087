"""Define the kinds of text and number that a parameter file may hold, each with its own error.

Values are also quoted when they are written into a script. These checks are a second line of
defence: a shell character in a value is a mistake and is reported as one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, GetCoreSchemaHandler, PlainValidator
from pydantic_core import CoreSchema, core_schema

# The characters allowed in a word of a script.
SAFE_TEXT = re.compile(r"[\w ./:@%+=,~{}\[\]\"-]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# RFC 5737 and RFC 3849: the addresses of documents, which lead nowhere.
_EXAMPLE = re.compile(r"(192\.0\.2|198\.51\.100|203\.0\.113)\.[0-9]+|2001:db8:[0-9a-f:]*")
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_HOSTNAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    r"(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


def safe_text(text: str) -> str:
    """Return the text; raise ValueError if it has control or shell characters.

    These are ``;``, ``|``, ``&``, ``$``, backquotes, quotes, newlines and the like.
    """
    if not SAFE_TEXT.fullmatch(text):
        bad = next(character for character in text if not SAFE_TEXT.fullmatch(character))
        raise ValueError(
            f"the character {bad!r} is not allowed (letters, digits, spaces "
            "and . _ / : @ % + = , ~ - [ ] { } are)"
        )
    return text


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text):
        raise ValueError(
            "a name starts with a letter or digit and holds only letters, digits, "
            "'.', '_' and '-', 63 at most"
        )
    return text


def _address(text: str) -> str:
    try:
        # Scoped link-local addresses (fe80::1%eth0) are refused: the scope may be any text and
        # means something different on every node.
        return str(ipaddress.ip_address(text if "%" not in text else ""))
    except ValueError:
        # 141.xx.xx.1 and 300.1.1.1 are valid host names, but surely mistakes.
        if re.fullmatch(r"[0-9x.]+", text) or not _HOSTNAME.fullmatch(text):
            raise ValueError(
                "an IP address (192.0.2.11) or a host name (node-1.example.org) is wanted here"
            ) from None
        return text


def is_example(address: str) -> bool:
    """Return whether an address is one of those that documents use and nobody has.

    >>> is_example("192.0.2.11"), is_example("10.0.0.11")
    (True, False)
    """
    return _EXAMPLE.fullmatch(address) is not None


def _word(text: str) -> str:
    safe_text(text)
    if not text or text[0] in "- ":
        raise ValueError("a name or path is wanted here; it cannot be empty or start with '-'")
    return text


def _sysctl(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]+(\.[a-zA-Z0-9_]+)+", text):
        raise ValueError("a kernel setting is wanted here, such as vm.swappiness")
    return text


def secret(variable: str) -> bool:
    """Return whether a variable, by its name, holds a secret whose value must never be written.

    >>> secret("HF_TOKEN"), secret("HCCL_BUFFSIZE")
    (True, False)
    """
    name = r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY)(_ID)?$"
    return re.search(name, variable) is not None


def _range(text: str) -> str:
    from packaging.specifiers import (  # start-up: only for a range of versions
        InvalidSpecifier,
        SpecifierSet,
    )

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("a range of versions is wanted here, such as >=0.18.0") from None
    return text


def _path(text: str) -> str:
    safe_text(text)
    if not text.startswith("/") or "{" in text or '"' in text:
        raise ValueError("an absolute path is wanted here, such as /root/.cache")
    return text


def _interface(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,14}", text):
        raise ValueError(
            "a network interface is wanted here, such as eth0 or enp67s0f5 (15 characters at most)"
        )
    return text


def _variable(text: str) -> str:
    if not VARIABLE.fullmatch(text):
        raise ValueError("the NAME of an environment variable is wanted here, never its value")
    return text


def _url(text: str) -> str:
    safe_text(text)
    found = urlsplit(text)
    if found.scheme not in ("http", "https") or not found.hostname or " " in text:
        raise ValueError("a URL is wanted here, such as http://proxy.example.org:3128")
    if found.username or found.password:
        raise ValueError(
            "a URL without an account is wanted here: no password stands in a site file. Set the "
            "variable itself where the command runs"
        )
    return text


def _registry(text: str) -> str:
    host, *folders = text.split("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*([.:][a-z0-9-]+)+", host) or not all(
        re.fullmatch(r"[a-z0-9]+([._-]+[a-z0-9]+)*", folder) for folder in folders
    ):
        raise ValueError("a registry is wanted here, as in an image's name: mirror.example.org")
    return text


def _image(text: str) -> str:
    if not re.fullmatch(
        r"/[^\s:,\"'{}]+\.(sif|sqsh)"
        r"|(?!.*\.(sif|sqsh)$)[a-z0-9][A-Za-z0-9._-]*(:[0-9]+(?=/))?(/[A-Za-z0-9._-]+)*"
        r"(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?",
        text,
    ):
        raise ValueError(
            "an image is wanted here: its name in a registry (vllm/vllm-openai:v0.19.1), or a file on "
            "the shared file system (/data/vllm.sif, /data/vllm.sqsh)"
        )
    return text


def _least(value: object) -> int | Literal["driver"]:
    if value == "driver":
        return "driver"
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**9:
        raise ValueError("a whole number from 1 on is wanted here, or driver")
    return value


def _line(text: str) -> str:
    """Return prose for a heading or a comment: any characters, but on one line."""
    if not text.strip() or _CONTROL.search(text):
        raise ValueError("one line of text is wanted here, without control characters")
    return text


class Checked:
    """As pydantic's AfterValidator, which reads a function's signature each time that it stands."""

    def __init__(self, check: Callable[[str], str]) -> None:
        self._check = check

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))


Name = Annotated[str, Checked(_name)]
Line = Annotated[str, Checked(_line)]
Text = Annotated[str, Checked(safe_text)]
Word = Annotated[str, Checked(_word)]
Least = Annotated[int | Literal["driver"], PlainValidator(_least)]
Range = Annotated[str, Checked(_range)]
Sysctl = Annotated[str, Checked(_sysctl)]
Address = Annotated[str, Checked(_address)]
Path = Annotated[str, Checked(_path)]
Url = Annotated[str, Checked(_url)]
Registry = Annotated[str, Checked(_registry)]
Image = Annotated[str, Checked(_image)]
Interface = Annotated[str, Checked(_interface)]
Variable = Annotated[str, Checked(_variable)]
Port = Annotated[int, Field(ge=1, le=65535, strict=True)]
Count = Annotated[int, Field(ge=1, le=10**9, strict=True)]
DeviceCount = Annotated[int, Field(ge=1, le=1024, strict=True)]
Layout = Literal["single", "dp", "pd"]
Role = Literal["mixed", "prefill", "decode"]
LAYOUTS: tuple[Layout, ...] = ("single", "dp", "pd")
ROLES: tuple[Role, ...] = ("mixed", "prefill", "decode")
