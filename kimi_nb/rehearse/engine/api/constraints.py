"""The form that a request demands of its answer: a text that has it, or vLLM's refusal.

    literal(fields)     # '{"a":1}' for a schema, 'yes' for a choice; None where any text will do

The words of refusals are those of 0.32.0; what the regex engine and the grammar parser add to them
is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kimi_nb.rehearse.engine.api import grammar_samples, stand_in_text
from kimi_nb.rehearse.engine.api.api_errors import ApiError, parameter
from kimi_nb.rehearse.engine.api.json_text import compact, parse
from kimi_nb.rehearse.engine.api.request_fields import (
    Generation,
)
from kimi_nb.rehearse.engine.api.request_parts import (
    StructuredOutputsParams,
)

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_NOT_MADE = ("uniqueItems",)  # keys that the engine's grammars do not have
_NODES = 2000  # of a schema that are looked at


def literal(fields: Generation, changes: frozenset[str]) -> str | None:
    """Return the text that a response format, or vLLM's own structured outputs, demand.

    Raises:
        ApiError: No text can be made of what is demanded.
    """
    form, wish = fields.response_format, fields.structured_outputs
    if wish is not None:
        _one_kind(wish)
    if form is not None and form.type == "json_schema" and form.json_schema is not None:
        if form.json_schema.json_schema is None:
            _one_kind(StructuredOutputsParams())
        return _of_schema(form.json_schema.json_schema)
    if form is not None and form.type == "json_object":
        return compact({stand_in_text.MARK: True})
    if wish is not None:
        return _of_wish(wish)
    if fields.guided_json is not None and "guided_fields_are_ignored" not in changes:
        return _of_schema(_parsed(fields.guided_json))
    return None


def _one_kind(wish: StructuredOutputsParams) -> None:
    kinds = (wish.json_, wish.regex, wish.choice, wish.grammar, wish.json_object)
    given = sum(one is not None for one in (*kinds, wish.structural_tag))
    if given == 1:
        return
    shown = {**wish.model_dump(by_alias=True), "_backend": None, "_backend_was_auto": False}
    raise ApiError(
        400,
        "You can only use one kind of structured outputs constraint but multiple are specified: "
        f"{shown}"
        if given
        else "You must use one kind of structured outputs constraint but none are specified: "
        f"{shown}",
    )


def _of_wish(wish: StructuredOutputsParams) -> str | None:
    if wish.json_ is not None:
        return _of_schema(_parsed(wish.json_))
    if wish.choice is not None:
        if not wish.choice:
            raise ApiError(400, "Choice '[]' cannot be an empty list")
        return wish.choice[0]
    if wish.regex is not None:
        return _of_regex(wish.regex, f'at 1(8): invalid regex "{wish.regex}" (in regex): ')
    if wish.grammar is not None:
        try:
            return grammar_samples.of_grammar(wish.grammar)
        except ValueError as error:
            raise ApiError(
                400,
                "Invalid grammar specification: Failed to convert the grammar from GBNF to "
                f"Lark: {error}",
            ) from None
    if wish.structural_tag is not None:
        _structural(wish.structural_tag)
    return compact({stand_in_text.MARK: True}) if wish.json_object else None


def _structural(text: str) -> None:
    """Refuse what is no structural tag; the answer does not follow one."""
    try:
        found = parse(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"structures", "format"} & found.keys():
        words = "Invalid structured_outputs structural_tag specification."
        raise parameter(words, "structured_outputs")


def _parsed(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return parse(schema)
    except ValueError:
        raise ApiError(400, "Invalid JSON grammar specification.") from None


def _of_regex(pattern: str, prefix: str) -> str:
    try:
        return grammar_samples.of_regex(pattern)
    except ValueError as error:
        raise ApiError(400, f"Grammar error: {prefix}regex parse error: {error}") from None


def _of_schema(schema: Any) -> str:
    for one in _parts(schema):
        _check(one, schema)
    return compact(stand_in_text.example(schema))


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and the schemas in it."""
    waiting, left = [schema], _NODES
    while waiting and left:
        one, left = waiting.pop(), left - 1
        if not isinstance(one, dict):
            continue
        yield one
        for key in ("properties", "$defs", "definitions"):
            waiting += one[key].values() if isinstance(one.get(key), dict) else ()
        for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            waiting += one[key] if isinstance(one.get(key), list) else ()
        waiting += [one[key] for key in ("items", "additionalProperties") if key in one]


def _check(one: dict[str, Any], root: Any) -> None:
    kind, ref = one.get("type"), one.get("$ref")
    for word in kind if isinstance(kind, list) else [kind]:
        if isinstance(word, str) and word not in _TYPES:
            raise ApiError(400, f"Grammar error: Invalid type: {word}")
    if isinstance(ref, str) and ref.startswith("#/"):
        found = root
        for key in ref.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            raise ApiError(400, f"Grammar error: Pointer '{ref[1:]}' does not exist")
    unknown = [key for key in _NOT_MADE if one.get(key)]
    if unknown:
        raise ApiError(400, f"Grammar error: Unimplemented keys: {compact(unknown)}")
    if isinstance(one.get("pattern"), str):
        _of_regex(one["pattern"], "")
    low, high = one.get("minimum"), one.get("maximum")
    numbers = isinstance(low, (int, float)) and isinstance(high, (int, float))
    if numbers and low > high:  # type: ignore[operator]
        raise ApiError(400, f"Grammar error: Unsatisfiable schema: minimum {low} > maximum {high}")
