"""What two answers have to have in common: status, keys, types."""

from __future__ import annotations

from typing import Any, Final

_OPTIONAL: Final = frozenset({"version", "trace"})
"""Kafka leaves these out too where there is nothing to say."""
_OPEN: Final = ("config", "levels", "partition", "offset")
"""Members whose keys are data: of these only the types of keys and values count."""


def find_differences(kafka: Any, ours: Any, at: str = "") -> list[str]:
    """Where bodies differ in keys or types."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        if at.rpartition("/")[2] in _OPEN:
            known = {str, int} | {type(v) for v in kafka.values()}
            return [] if {type(v) for v in ours.values()} <= known else [f"{at}: values of other types"]
        missing = [f"{at}/{key} is missing" for key in kafka.keys() - ours.keys() - _OPTIONAL]
        more = [f"{at}/{key} is not Kafka's" for key in ours.keys() - kafka.keys() - _OPTIONAL]
        both = kafka.keys() & ours.keys()
        return sorted([*missing, *more]) + [
            line for key in sorted(both) for line in find_differences(kafka[key], ours[key], f"{at}/{key}")
        ]
    if isinstance(kafka, list) and isinstance(ours, list):
        if not kafka or not ours:
            return [] if bool(kafka) == bool(ours) else [f"{at}: {len(kafka)} elements with Kafka, {len(ours)} here"]
        return find_differences(kafka[0], ours[0], f"{at}/0")
    if kafka is None or ours is None:
        return []
    return [] if type(kafka) is type(ours) else [f"{at}: {type(kafka).__name__} and {type(ours).__name__}"]
