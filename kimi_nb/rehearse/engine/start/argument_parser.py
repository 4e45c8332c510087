"""Refuse what the argument parser of ``vllm serve`` refuses, in its words and with exit code 2.

Texts and order are those of vLLM 0.20.2 (vllm/utils/argparse_utils.py, vllm/engine/arg_utils.py)
with Python's argparse. Options, choices and keys come from the catalog's row for the version. JSON
flags that vLLM turns into configuration classes are validated by pydantic, as in vLLM.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
from pydantic.dataclasses import dataclass as validating

from kimi_nb import catalog
from kimi_nb.catalog import arguments
from kimi_nb.catalog.config_classes import INNER, STRICT, fields

INVALID = "pydantic_core._pydantic_core.ValidationError"
MEASURED = "0.20.2"  # the version whose messages were recorded
_USAGE = "usage: vllm serve [model_tag] [options]"
_ROLES = ("kv_producer", "kv_both", "kv_consumer")
_MODES = "enum:CUDAGraphMode"
_METHODS = (
    "ngram",
    "medusa",
    "mlp_speculator",
    "draft_model",
    "suffix",
    "eagle",
    "eagle3",
    "extract_hidden_states",
    "deepseek_mtp",
    "mimo_mtp",
    "glm4_moe_mtp",
    "glm4_moe_lite_mtp",
    "glm_ocr_mtp",
    "ernie_mtp",
    "nemotron_h_mtp",
    "exaone_moe_mtp",
    "exaone4_5_mtp",
    "qwen3_next_mtp",
    "qwen3_5_mtp",
    "longcat_flash_mtp",
    "mtp",
    "pangu_ultra_moe_mtp",
    "step3p5_mtp",
    "hy_v3_mtp",
    "dflash",
    "ngram_gpu",
)
_SIZES = re.compile(r'"(?:[^"\\]|\\.)*"|\b(\d+(?:\.\d+)?[kKmMgGtT])\b')
_LOADS = "<function loads>"  # vLLM's message also has the function's address


@dataclass(frozen=True)
class Refusal:
    """An error that ends a start.

    Attributes:
        kind: Whether the parser or a configuration class refuses.
        exception: The name of the exception; "" for the parser.
        text: The message.
        code: The exit code.
    """

    kind: Literal["parser", "configuration"]
    exception: str
    text: str
    code: int

    def lines(self) -> list[str]:
        """Return the printed lines; of the parser's usage only the first line."""
        if self.kind == "parser":
            return [_USAGE, *f"vllm serve: error: {self.text}".split("\n")]
        return [
            "Traceback (most recent call last):",
            '  File "vllm/entrypoints/cli/main.py", in main',
            '  File "vllm/entrypoints/cli/serve.py", in cmd',
            *f"{self.exception}: {self.text}".split("\n"),
        ]


def misused(text: str) -> Refusal:
    """Return a refusal by the parser."""
    return Refusal("parser", "", text, 2)


def raised(exception: str, text: str) -> Refusal:
    """Return a refusal by an exception that is not caught."""
    return Refusal("configuration", exception, text, 1)


def parser_refusal(engine: catalog.Engine, words: Sequence[str]) -> Refusal | None:
    """Return the first thing that the parser refuses in the words after ``vllm serve``, or None.

    Options are checked from left to right. Words that belong to no option are reported together, at
    the end.
    """
    words = processed(engine, words)
    if _nameless(words):
        return raised(
            "ValueError",
            "`model` should be provided as the first positional argument "
            "when using `vllm serve`. i.e. `vllm serve <model> --<arg> <value>`.",
        )
    parsed = arguments.parse(engine, words)
    loose = [*parsed.positional, *parsed.stray]
    unknown: list[tuple[int, str]] = []
    for given in parsed.given:
        if given.fault == arguments.UNKNOWN:
            unknown.append((given.index, _dashed(words[given.index])))
            if given.text is not None and "=" not in words[given.index]:
                loose.append((given.index + 1, given.text))
        elif (refused := _option(engine, words, given)) is not None:
            return refused
    # The first word without an option is the model, unless an unknown option consumed it.
    extra = sorted([*unknown, *sorted(loose)[1:]])
    return (
        misused(f"unrecognized arguments: {' '.join(word for _, word in extra)}") if extra else None
    )


def processed(engine: catalog.Engine, words: Sequence[str]) -> list[str]:
    """Return the words as vLLM passes them to argparse.

    The model comes first, also when given with ``--model``. Dotted keys are collected into one JSON
    object for each flag, at the end.
    """
    words = _model_first(words)
    tables: dict[str, dict[str, Any]] = {}
    dropped: set[int] = set()
    for given in arguments.parse(engine, words).given:
        if not given.path or given.text is None:
            continue
        dropped |= {given.index} if "=" in words[given.index] else {given.index, given.index + 1}
        flag, _, path = _dashed(given.spelt).partition(".")
        _put(tables.setdefault(flag, {}), path, given.text)
    return [
        *(word for at, word in enumerate(words) if at not in dropped),
        *(word for flag, table in tables.items() for word in (flag, json.dumps(table))),
    ]


def _model_first(words: Sequence[str]) -> list[str]:
    for at, word in enumerate(words):
        if word == "--model" and at + 1 < len(words):
            return [words[at + 1], *words[:at], *words[at + 2 :]]
        if word.startswith("--model=") and word != "--model=":
            return [word.removeprefix("--model="), *words[:at], *words[at + 1 :]]
    return list(words)


def _nameless(words: Sequence[str]) -> bool:
    """Return whether a served name is given without a model in front (FlexibleArgumentParser)."""

    def has(pattern: str) -> bool:
        return any(re.match(rf"--{pattern}(=.+|$)", word) for word in words)

    return (
        bool(words)
        and words[0].startswith("-")
        and not has("config")
        and has("served[-_]model[-_]name")
    )


def _dashed(word: str) -> str:
    """Return an option with dashes in its name; keys after a dot and the value stay as they are."""
    name, sign, rest = re.findall(r"([^.=]*)([.=]?)(.*)", word, re.DOTALL)[0]
    return f"{name.replace('_', '-') if name.startswith('--') else name}{sign}{rest}"


def _put(table: dict[str, Any], path: str, text: str) -> None:
    *parents, last = path.removesuffix("+").split(".")
    for key in parents:
        inner = table.get(key)
        table[key] = table = inner if isinstance(inner, dict) else {}
    value = text.split(",") if path.endswith("+") else _read(text)
    before = table.get(last)
    table[last] = before + value if isinstance(before, list) and isinstance(value, list) else value


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _option(engine: catalog.Engine, words: Sequence[str], given: arguments.Given) -> Refusal | None:
    """Return what argparse refuses about one known or ambiguous option."""
    if given.fault == arguments.AMBIGUOUS:
        return misused(
            f"ambiguous option: {_dashed(words[given.index])} could match "
            f"{', '.join(given.candidates)}"
        )
    spec = catalog.flag(engine, given.name)
    assert spec is not None, given
    where = f"argument {'/'.join([f'--{given.name}', *spec.get('aliases', ())])}: "
    many = spec.get("nargs") in ("+", "*")
    if given.fault == arguments.MISSING:
        return misused(f"{where}expected {'at least ' if many else ''}one argument")
    if given.fault == arguments.STRAY:
        return misused(f"{where}ignored explicit argument {given.text!r}")
    if given.text is None:
        return None
    for text in _values(words, given) if many else [given.text]:
        if (shape := shape_of(engine, given.name, spec)) is not None:
            if text not in ("", "None") and (refused := _shaped(shape, text, where)):
                return refused
        elif wrong := _wrong(spec, text):
            return misused(where + wrong)
    return None


def _values(words: Sequence[str], given: arguments.Given) -> list[str]:
    """Return the words of an option that takes several."""
    if "=" in words[given.index]:
        return [given.text or ""]
    end = given.index + 2
    while end < len(words) and " ".join(words[given.index + 1 : end]) != given.text:
        end += 1
    return list(words[given.index + 1 : end])


def _wrong(spec: Mapping[str, Any], text: str) -> str:
    """Return what argparse says about a value that the option does not take, or ""."""
    kind = spec.get("type") or "str"
    optional = kind.startswith("optional_type.<locals>._optional_type(")
    if optional:
        if text in ("", "None"):
            return ""
        kind = kind.rpartition("(")[2].rstrip(")")
    if kind == "union_dict_and_str" and not re.match(r"(?s)^\s*{.*}\s*$", text):
        return ""
    value: Any = text.lower().replace("-", "_") if kind.endswith("<lambda>") else text
    converts = _KINDS.get(kind)
    if converts is not None:
        try:
            value = converts(text)
        except argparse.ArgumentTypeError as error:
            return str(error)
        except (ValueError, RecursionError):
            if optional or kind in ("json", "union_dict_and_str"):
                return f"Value {text} cannot be converted to {_NAMES.get(kind, _LOADS)}."
            return f"invalid {kind} value: {text!r}"
    choices = spec.get("choices")
    if choices and value not in choices:
        return f"invalid choice: {value!r} (choose from {', '.join(map(repr, choices))})"
    return ""


def _size(text: str) -> int:
    """Return the number for a text such as 32k, 1K or 25.6k, as vLLM's human_readable_int does.

    Raises:
        argparse.ArgumentTypeError: A fraction is given with a binary suffix.
        ValueError: The text is not a number.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if match is None:
        return int(text)
    number, unit = match.groups()
    power = "kmgt".index(unit.lower()) + 1
    if unit.islower():
        return int(float(number) * 1000**power)
    if "." in number:
        raise argparse.ArgumentTypeError(
            f"Decimals are not allowed with binary suffixes like {unit}. Did you mean to use "
            f"{number}{unit.lower()} instead?"
        )
    return int(number) * 1024**power


def _size_or_auto(text: str) -> int:
    return -1 if text.strip().lower() in ("-1", "auto") else _size(text)


_KINDS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "human_readable_int": _size,
    "human_readable_int_or_auto": _size_or_auto,
    "loads": json.loads,
    "json": json.loads,
    "union_dict_and_str": json.loads,
}
_NAMES = {
    "int": "<class 'int'>",
    "float": "<class 'float'>",
    "human_readable_int": "<function human_readable_int>",
}


# Configuration classes --------------------------------------------------------------------------


def shape_of(engine: catalog.Engine, flag: str, spec: Mapping[str, Any]) -> type | None:
    """Return the class into which the parser itself converts a JSON flag; None if there is none.

    From the measured version on, all of them refuse unknown keys; before it, only those of `STRICT`
    did.
    """
    if spec.get("type") != "json":
        return None
    name = STRICT.get(flag)
    if name is None and not catalog.earlier(engine.known, MEASURED):
        classes = {one.lower(): one for one in catalog.tables("vllm")["configs"]}
        name = classes.get(flag.replace("-", ""))
    return shape(name, engine.known) if name else None


@functools.lru_cache(maxsize=64)
def shape(name: str, row: str) -> type | None:
    """Return a configuration class with the keys of a catalog row, or None if the row has none.

    The values of some keys are limited; see `_limits`.
    """
    known = fields(name, row)
    if not known:
        return None
    kinds = {
        **_limits(row).get(name, {}),
        **{
            key: inner_class
            for (outer, key), inner in INNER.items()
            if outer == name and (inner_class := shape(inner, row)) is not None
        },
    }
    made = dataclasses.make_dataclass(
        name,
        [(key, kinds.get(key, Any), dataclasses.field(default=None)) for key in known],
        namespace={"__post_init__": _role_given} if name == "KVTransferConfig" else {},
    )
    return validating(made, config=pydantic.ConfigDict(extra="forbid"))


def _limits(row: str) -> dict[str, dict[str, Any]]:
    """Return the types of the keys whose values are checked (vllm/config/*.py)."""

    def mode(value: Any) -> Any:
        if isinstance(value, str) and value.upper() not in fields(_MODES, row):
            raise KeyError(value.upper())
        return value

    at_least_0 = Annotated[int, pydantic.Field(ge=0)]
    at_least_1 = Annotated[int, pydantic.Field(ge=1)]
    positive = Annotated[int, pydantic.Field(gt=0)]
    return {
        "KVTransferConfig": {
            "kv_role": Literal[_ROLES] | None,
            "kv_port": int,
            "kv_connector": str | None,
            "kv_connector_extra_config": dict,
        },
        "EPLBConfig": {
            "window_size": positive,
            "step_interval": positive,
            "num_redundant_experts": at_least_0,
        },
        "CompilationConfig": {
            "cudagraph_capture_sizes": list[int],
            "cudagraph_mode": Annotated[Any, pydantic.BeforeValidator(mode)]
            if fields(_MODES, row)
            else Any,
        },
        "SpeculativeConfig": {
            "num_speculative_tokens": positive,
            "draft_tensor_parallel_size": at_least_1 | None,
            # The methods are known for one version only.
            "method": Literal[_METHODS] | None if row == MEASURED else Any,
        },
    }


def _role_given(self: Any) -> None:
    if self.kv_connector is not None and self.kv_role is None:
        raise ValueError(
            f"Please specify kv_role when kv_connector is set, supported roles are {_ROLES}"
        )


def _expanded(match: re.Match[str]) -> str:
    """Return a bare size within JSON, as in {"kv_buffer_size": 1k}, as a number; keep strings."""
    if match[1] is None:
        return match[0]
    try:
        return str(_size(match[1]))
    except argparse.ArgumentTypeError:
        return match[0]


def _shaped(made: type, text: str, where: str) -> Refusal | None:
    try:
        pydantic.TypeAdapter(made).validate_json(_SIZES.sub(_expanded, text))
    except pydantic.ValidationError as error:
        return misused(f"{where}{error}")
    except KeyError as error:  # from an unknown graph mode; argparse does not catch it
        return raised("KeyError", str(error))
    return None
