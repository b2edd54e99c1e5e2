"""The schema of a report's JSON, docs/report.schema.json: `make schema`, or `python -m tests.docs.schema`.

It is made from the fields of the records and their types. A tuple is a list; every field is there in each report.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from onepass.report.records import RegionReport, Report
from onepass.wording.answers import Answer

PAGE = Path(__file__).parents[2] / "docs" / "report.schema.json"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object"}
ADDED = {  # what Report.json adds to the fields
    Report: {
        "passes": {"type": ["array", "null"], "items": {"type": "integer"}},
        "bytes": {"type": ["array", "null"], "items": {"type": ["integer", "null"]}},
        "assumptions": {"type": "array", "items": {"type": "string"}},
        "trusted": {"type": "array", "items": {"type": "string"}},
        "laws": {"type": "array", "items": {"type": "string"}},
        "answers": {"type": "array", "items": {"$ref": "#/$defs/Answer"}},
    },
    RegionReport: {"proof": {"type": "string"}, "data": {"type": "null"}},
}


def schema() -> dict[str, Any]:
    """The schema, with one definition for each record."""
    definitions: dict[str, Any] = {}
    root = _of(Report, definitions)
    _of(Answer, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A report of onepass",
        "description": "What report.json() and `python -m onepass explain --json` write.",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one type."""
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if is_dataclass(kind):
        return _record(kind, definitions)
    origin, inner = get_origin(kind), [k for k in get_args(kind) if k is not Ellipsis]
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(k, definitions) for k in inner]}
    if origin is tuple and Ellipsis in get_args(kind):
        return {"type": "array", "items": _of(inner[0], definitions)}
    if origin is tuple:
        items = [_of(k, definitions) for k in inner]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of(inner[1], definitions)}
    return {}


def _record(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}
        hints, added = get_type_hints(kind), ADDED.get(kind, {})
        known = {f.name: _of(hints[f.name], definitions) for f in fields(kind) if f.name not in added} | added
        first = (kind.__doc__ or "").strip().splitlines()[0]
        definitions[name] = {
            "description": first,
            "type": "object",
            "properties": known,
            "required": list(known),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    print(f"written: docs/{PAGE.name}")
