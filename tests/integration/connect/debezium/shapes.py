"""Records of changes as they are compared: what time, WAL and server make of them is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_OF_A_RUN: Final = ("ts_ms", "ts_us", "ts_ns", "version", "txId", "lsn", "xmin", "sequence")
"""Members of an envelope and of its source whose values are of one run; that they are there counts, and their types."""


class Table:
    """Records of a table, by paths: their types, which all have in common, and their values."""

    def __init__(self) -> None:
        self.types: dict[str, Any] = {}
        self.records: list[dict[str, Any]] = []

    def add(self, key: bytes | None, value: bytes | None, headers: Mapping[str, Any]) -> None:
        """
        Raises:
            AssertionError: its types are others.
        """
        sides = {"key": self._side("key", key), "value": self._side("value", value)}
        text = None if key is None else key.decode()  # its bytes decide the partition, and what compaction removes
        self.records.append({**sides, "key text": text, "headers": dict(headers)})

    def _side(self, side: str, text: bytes | None) -> Any:
        if text is None:
            return None
        read = json.loads(text)
        types = dict(_types(read["schema"], ""))
        assert self.types.setdefault(side, types) == types, f"another {side}"
        return dict(_values(read["payload"], ""))

    @property
    def shown(self) -> dict[str, Any]:
        """As it is kept."""
        return {"types": self.types, "records": self.records}


def _types(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    parameters = {key: one for key, one in schema.get("parameters", {}).items() if not key.startswith("__")}
    type_ = {name: schema.get(name) for name in ("type", "name", "version", "optional")}
    yield path or "/", {**type_, "parameters": parameters}
    for field in schema.get("fields", ()):
        yield from _types(field, f"{path}/{field['field']}")
    if "items" in schema:
        yield from _types(schema["items"], f"{path}[]")


def _values(payload: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(payload, dict):
        for name, one in payload.items():
            yield from _values(one, f"{path}/{name}")
    else:
        of_a_run = path.rpartition("/")[2] in _OF_A_RUN or path == "/transaction/id"
        yield path, "…" if of_a_run and payload is not None else payload


def find_differences(theirs: Any, ours: Any, at: str = "") -> list[str]:
    """Each path that differs."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            line
            for key in sorted(theirs.keys() | ours.keys())
            for line in find_differences(theirs.get(key), ours.get(key), f"{at} {key}")
        ]
    if _are_records(theirs) and _are_records(ours) and len(theirs) == len(ours):
        return [
            line
            for number, (their, our) in enumerate(zip(theirs, ours, strict=True))
            for line in find_differences(their, our, f"{at} {number}")
        ]
    return [] if theirs == ours else [f"{at.strip()}: {theirs!r} there, {ours!r} here"]


def _are_records(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(one, dict) for one in found)
