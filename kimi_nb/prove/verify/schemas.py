"""Whether a value fits a JSON schema, by jsonschema."""

from __future__ import annotations

from typing import Any

from kimi_nb.core import lean_imports


def fault(value: Any, schema: Any) -> str:
    """Return a sentence that says what does not fit, or "" if everything does.

    The dialect is that of ``$schema``, else the newest one. A schema that is not valid is a fault
    too.

    >>> fault({"warm": "yes"}, {"properties": {"warm": {"type": "boolean"}}})
    "'yes' is not of type 'boolean'"
    """
    (jsonschema,) = lean_imports.quickly("jsonschema")
    try:
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        found = jsonschema.exceptions.best_match(kind(schema).iter_errors(value))
    except jsonschema.SchemaError as error:
        return f"the schema is none: {error.message}"
    except Exception as error:  # a reference without a target, an invalid pattern
        return f"the schema cannot be used: {error}"
    return "" if found is None else found.message
