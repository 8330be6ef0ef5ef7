"""What a benchmark reports, and how two sides are measured fairly: interleaved, medians."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

LESS_IS_BETTER: Final = frozenset({"ms", "µs/record"})


@dataclass(slots=True)
class Row:
    """One figure beside its baseline, both medians of the same number of interleaved runs."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    target: str = ""
    """What the ratio or the value ought to be, for people."""
    runs: list[float] = field(default_factory=list)
    baseline_runs: list[float] = field(default_factory=list)
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    name: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float] = (),
    *,
    target: str = "",
    note: str = "",
) -> Row:
    """A row of medians; the ratio is ours over theirs."""
    value = statistics.median(ours)
    baseline = statistics.median(theirs) if theirs else None
    ratio = value / baseline if baseline else None
    return Row(name, value, unit, baseline, ratio, target, list(ours), list(theirs), note)


def paired(name: str, unit: str, ours: Sequence[float], theirs: Sequence[float], *, target: str = "") -> Row:
    """
    A row of two sides that took turns. The ratio is the median of those of each pair: what else the machine did
    meanwhile is in both of a pair. The note has the ratio to their best run, of whichever is better of the unit.
    """
    best = min(theirs) if unit in LESS_IS_BETTER else max(theirs)
    row = compare(name, unit, ours, theirs, target=target, note=f"to their best {statistics.median(ours) / best:.2f}")
    row.ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    return row


def interleaved(runs: int, *sides: Callable[[], Any]) -> list[list[Any]]:
    """Run every side once, then again, ``runs`` times; the results per side."""
    results: list[list[Any]] = [[] for _ in sides]
    for _ in range(runs):
        for side, into in zip(sides, results, strict=True):
            into.append(side())
    return results


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the sorted values lie."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    head = ["name", "value", "unit", "baseline", "ratio", "target"]
    body = [
        [
            r.name,
            f"{r.value:,.3g}" if r.value < 1000 else f"{r.value:,.0f}",
            r.unit,
            "" if r.baseline is None else (f"{r.baseline:,.3g}" if r.baseline < 1000 else f"{r.baseline:,.0f}"),
            "" if r.ratio is None else f"{r.ratio:.2f}",
            r.target + (f"  ({r.note})" if r.note else ""),
        ]
        for r in rows
    ]
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in [head, *body])


def save(rows: Sequence[Row], path: Path) -> None:
    """Write ``rows`` to a results file; rows in it that were not measured now stay."""
    measured = [row.as_json() for row in rows]
    names = {row["name"] for row in measured}
    earlier = json.loads(path.read_text()) if path.exists() else []
    kept = [row for row in earlier if row["name"] not in names]
    path.write_text(json.dumps(kept + measured, indent=1, ensure_ascii=False) + "\n")


def summary(bench: str, rows: Sequence[Row]) -> str:
    """One line of JSON for programs: how many figures were measured, and each with its ratio to its baseline."""
    figures = {row.name: {"value": row.value, "unit": row.unit, "ratio": row.ratio} for row in rows}
    return json.dumps({"bench": bench, "measured": len(figures), "figures": figures}, ensure_ascii=False)
