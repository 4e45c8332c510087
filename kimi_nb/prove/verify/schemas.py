"""Whether a value fits a JSON schema, by jsonschema."""

from __future__ import annotations

from typing import Any

from kimi_nb.core import lean_imports as imports


def fault(value: Any, schema: Any) -> str:
    """What does not fit, in a sentence; "" where all does. The dialect is that of ``$schema``,
    else the newest; a schema that is none is a fault as well."""
    (jsonschema,) = imports.quickly("jsonschema")
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
        found = jsonschema.exceptions.best_match(kind(schema).iter_errors(value))
    except jsonschema.SchemaError as error:
        return f"the schema is none: {error.message}"
    except Exception as error:  # a reference that leads nowhere, a pattern that is none
        return f"the schema cannot be used: {error}"
    return "" if found is None else found.message
