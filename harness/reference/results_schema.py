"""The JSON Schema of ``results.json``, from its dataclasses.

A key is required if its field has no default: files of older commits lack what came later, and
are read all the same (`harness.judge.builders`).
"""

from __future__ import annotations

import inspect
import json
import types
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from harness.base.settings import meanings
from harness.judge.results import SCHEMA, Results

__all__ = ["results_schema"]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def results_schema() -> str:
    """The schema as JSON text."""
    definitions: dict[str, Any] = {}
    top = _object(Results, definitions)
    top["properties"]["schema"] = {"const": SCHEMA}
    top["required"].append("schema")
    head = {"$schema": DRAFT, "title": "results.json of a reproduction"}
    return json.dumps({**head, **top, "$defs": definitions}, indent=2) + "\n"


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a dataclass; nested dataclasses are entered in ``definitions``."""
    hints, told = get_type_hints(kind), meanings(kind)
    return {
        "description": (inspect.getdoc(kind) or "").splitlines()[0],
        "type": "object",
        "properties": {
            each.name: {"description": told[each.name], **_kind(hints[each.name], definitions)}
            for each in fields(kind)
        },
        "required": [each.name for each in fields(kind) if _is_required(each)],
        "additionalProperties": False,
    }


def _is_required(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def _kind(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of an annotated type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_kind(part, definitions) for part in arguments]}
    if origin is tuple:
        return _list(arguments, definitions)
    if is_dataclass(hint):
        return _reference(hint, definitions)
    return {"type": "object"}


def _list(arguments: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tuple: ``tuple[X, ...]`` of any length, ``tuple[X, Y]`` of exactly two."""
    if arguments[-1] is Ellipsis:
        return {"type": "array", "items": _kind(arguments[0], definitions)}
    places = [_kind(part, definitions) for part in arguments]
    return {"type": "array", "prefixItems": places, "items": False, "minItems": len(places)}


def _reference(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # entered first, so that a recursive type ends
        definitions[kind.__name__] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}
