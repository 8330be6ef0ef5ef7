"""
The report of an audit: what was found, in one JSON object, and which of it a scheduler should hear of. No Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

GAPS, DUPLICATES, SKEW = "gaps", "duplicates", "skew"
FINDINGS: Final = (GAPS, DUPLICATES, SKEW)
UNEXPLAINED: Final = "unexplained"


@dataclass(frozen=True, slots=True)
class Found:
    """What the tables of an audit hold, as plain rows."""

    partitions: Sequence[Mapping[str, Any]]
    gaps: Sequence[Mapping[str, Any]]
    """The first ones; ``gap_totals`` counts all."""
    gap_totals: Mapping[str, tuple[int, int]]
    """By cause: how many, and how many offsets."""
    duplicates: Sequence[Mapping[str, Any]]
    duplicate_totals: tuple[int, int]
    """How many identities, and how many records beyond the first of each."""
    keys: Sequence[Mapping[str, Any]]


def report(found: Found, *, audited_at: datetime, skew_max: float) -> dict[str, Any]:
    """All of it, with a list ``findings`` of what is not as it should be."""
    return {
        "audited_at": plain(audited_at),
        "findings": findings(found, skew_max=skew_max),
        "topics": _topics(found.partitions),
        "partitions": [plain(row) for row in found.partitions],
        "gaps": {
            "causes": {cause: {"gaps": count, "offsets": size} for cause, (count, size) in found.gap_totals.items()},
            "first": [plain(row) for row in found.gaps],
        },
        "duplicates": {
            "identities": found.duplicate_totals[0],
            "records_too_many": found.duplicate_totals[1],
            "first": [plain(row) for row in found.duplicates],
        },
        "keys": [plain(row) for row in found.keys],
    }


def findings(found: Found, *, skew_max: float) -> list[dict[str, str]]:
    """What is not as it should be: of which kind, and a sentence."""
    told: list[dict[str, str]] = []
    count, offsets = found.gap_totals.get(UNEXPLAINED, (0, 0))
    if count:
        told.append({"kind": GAPS, "text": f"nothing explains {count} gaps, of {offsets} offsets without a record"})
    identities, more = found.duplicate_totals
    if identities:
        told.append({"kind": DUPLICATES, "text": f"{more} records too many share {identities} identities"})
    told.extend(
        {"kind": SKEW, "text": f"one key has {row['share']:.0%} of the records of topic {row['topic']}"}
        for row in found.keys
        if row["key"] is not None and row["keys"] > 1 and row["share"] > skew_max
    )
    return told


def failed(told: Iterable[Mapping[str, str]], fail_on: Iterable[str]) -> bool:
    """Whether a scheduler is to see a failure."""
    wanted = set(fail_on)
    return any(each["kind"] in wanted for each in told)


def _topics(partitions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for row in partitions:
        by_topic.setdefault(row["topic"], []).append(row)
    return [_topic(name, rows) for name, rows in sorted(by_topic.items())]


def _topic(name: str, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    records = sum(row["records"] for row in rows)
    size = sum(row["bytes"] for row in rows)
    oldest = [row["oldest"] for row in rows if row["oldest"] is not None]
    newest = [row["newest"] for row in rows if row["newest"] is not None]
    return {
        "topic": name,
        "partitions": len(rows),
        "records": records,
        "missing": sum(row["missing"] for row in rows),
        "bytes": size,
        "bytes_avg": size / records if records else None,
        "oldest": plain(min(oldest)) if oldest else None,
        "newest": plain(max(newest)) if newest else None,
        "largest_share": max(row["share"] for row in rows),
    }


def plain(value: Any) -> Any:
    """A value of a row as JSON has it: bytes as text, where they are some."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return value
