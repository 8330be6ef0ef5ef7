"""Whether what REST answers is what its OpenAPI document says: the part of JSON Schema that the document uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.routing import compile_path

_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
_KNOWN: Final = {
    *("type", "enum", "const", "anyOf", "$ref", "properties", "required", "additionalProperties", "items", "pattern"),
    *("description", "title", "format", "default", "examples"),
}


class Document:
    """The document of an application."""

    def __init__(self, api: Mapping[str, Any]) -> None:
        self._schemas = api["components"]["schemas"]
        self._operations = [
            (method.upper(), compile_path(re.sub(r"{(\w+)}", r"{\1:path}", path))[0], operation)
            for path, methods in api["paths"].items()
            for method, operation in methods.items()
        ]

    def check_answer(self, method: str, path: str, status: int, body: Any) -> None:
        """An answer of success is one that the operation may give."""
        found = [o for verb, pattern, o in self._operations if verb == method and pattern.match(path)]
        told = [o["responses"][str(s)] for o in found for s in (status, 200, 201) if str(s) in o["responses"]]
        schemas = [
            t["content"]["application/json"]["schema"] for t in told if "application/json" in t.get("content", {})
        ]
        assert schemas, f"{method} {path} is not in the document with an answer of {status}"
        wrong = [self.find_misfit(schema, body) for schema in schemas]
        assert None in wrong, f"{method} {path}: {wrong}"

    def find_misfit(self, schema: Mapping[str, Any], value: Any, at: str = "") -> str | None:
        """Where ``value`` is not what ``schema`` says; None: it is."""
        assert set(schema) <= _KNOWN, f"{set(schema) - _KNOWN} are not looked at"
        if "$ref" in schema:
            return self.find_misfit(self._schemas[schema["$ref"].rsplit("/", 1)[1]], value, at)
        if "anyOf" in schema:
            wrong = [self.find_misfit(one, value, at) for one in schema["anyOf"]]
            return None if None in wrong else " or ".join(map(str, wrong))
        if "enum" in schema and value not in schema["enum"]:
            return f"{at}: {value!r} is none of {schema['enum']}"
        if "const" in schema and value != schema["const"]:
            return f"{at}: {value!r} is not {schema['const']!r}"
        kind = schema.get("type")
        if kind is not None and (
            not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
        ):
            return f"{at}: {value!r} is no {kind}"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            return f"{at}: {value!r} does not match {schema['pattern']}"
        return self._find_inside(schema, value, at)

    def _find_inside(self, schema: Mapping[str, Any], value: Any, at: str) -> str | None:
        if isinstance(value, list):
            inner = [self.find_misfit(schema.get("items", {}), one, f"{at}/{n}") for n, one in enumerate(value)]
            return next((wrong for wrong in inner if wrong is not None), None)
        if not isinstance(value, dict):
            return None
        missing = set(schema.get("required", ())) - set(value)
        if missing:
            return f"{at} lacks {missing}"
        members, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, one in value.items():
            if name not in members and more is False:
                return f"{at} has {name!r}, which is not told"
            wrong = self.find_misfit(members.get(name, more if isinstance(more, dict) else {}), one, f"{at}/{name}")
            if wrong is not None:
                return wrong
        return None
