"""The report of a run: one shape for programs, and Markdown for people. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace_verify.availability import strip
from headrace_verify.judging import Findings
from headrace_verify.plan import Plan

EXAMPLES_MAX: Final = 10
OUTAGES_MAX: Final = 500
STRIP_COLUMNS: Final = 60


@dataclass(slots=True)
class Report:
    """All rounds of a run, added up. Grows by two numbers a second, and nothing else."""

    plan: Plan
    began: str
    """UTC, ISO 8601."""
    rounds: int = 0
    load_seconds: float = 0.0
    anomalies: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    allowed: Counter[str] = field(default_factory=Counter)
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unknown: int = 0
    read: int = 0
    copied: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: list[tuple[int, int]] = field(default_factory=list)
    outages: list[dict[str, Any]] = field(default_factory=list)
    outages_more: int = 0
    interrupted: bool = False
    not_judged: str | None = None
    """Why the last round could not be; what came before it was."""
    kept_topics: list[str] = field(default_factory=list)
    history: str | None = None
    """Where the history of the first round with an anomaly is."""

    @property
    def sound(self) -> bool:
        """All was judged, and nothing was found."""
        return not self.anomalies and self.not_judged is None

    @property
    def verdict(self) -> str:
        """``sound``, ``anomaly`` or ``not judged``."""
        return "anomaly" if self.anomalies else "sound" if self.sound else "not judged"

    def find(self, name: str, texts: Sequence[str]) -> None:
        """Add anomalies of one name; some are shown."""
        if texts:
            self.anomalies[name] += len(texts)
            room = EXAMPLES_MAX - len(self.examples[name])
            self.examples[name] += [f"round {self.rounds}: {text}" for text in texts[:room]]

    def add(self, found: Findings, load_began_ns: int) -> None:
        for name, texts in found.anomalies.items():
            self.find(name, texts)
        for mine, more in (
            (self.allowed, found.allowed),
            (self.transactions, found.transactions),
        ):
            mine.update(more)
        self.operations.update(found.operations)
        self.acknowledged += found.acknowledged
        self.unknown += found.unknown
        self.read += found.read
        self.copied += found.copied
        for one in found.outages:
            if len(self.outages) == OUTAGES_MAX:
                self.outages_more += 1
                continue
            at = len(self.seconds) + (one.begin_ns - load_began_ns) / 1e9
            self.outages.append({"at_s": round(at, 1), "seconds": round(one.seconds, 2), "partitions": one.partitions})
        self.seconds += found.seconds

    def as_json(self) -> dict[str, Any]:
        full = sum(served == self.plan.keys for served, _ in self.seconds)
        none = sum(served == 0 for served, _ in self.seconds)
        return {
            "verdict": self.verdict,
            "not_judged": self.not_judged,
            "id": self.plan.id,
            "began": self.began,
            "seed": self.plan.seed,
            "rounds": self.rounds,
            "load_seconds": round(self.load_seconds, 1),
            "interrupted": self.interrupted,
            "records": {
                "acknowledged": self.acknowledged,
                "unknown": self.unknown,
                "read": self.read,
                "copied": self.copied,
            },
            "operations": {
                f: {end: self.operations[f, end] for end in ("ok", "fail", "info")}
                for f in sorted({f for f, _ in self.operations})
            },
            "transactions": dict(self.transactions),
            "anomalies": {
                name: {"count": count, "examples": self.examples[name]} for name, count in self.anomalies.items()
            },
            "allowed": dict(self.allowed),
            "errors_seen_by_clients": dict(self.errors.most_common()),
            "availability": {
                "seconds": len(self.seconds),
                "seconds_all_partitions_written": full,
                "seconds_none_written": none,
                "outages": self.outages,
                "outages_not_listed": self.outages_more,
                "longest_outage_s": max((one["seconds"] for one in self.outages), default=0.0),
                "per_second": [list(row) for row in self.seconds],
            },
            "kept_topics": self.kept_topics,
            "history": self.history,
        }

    def as_markdown(self) -> str:
        told = self.as_json()
        records, available = told["records"], told["availability"]
        lines = [
            f"# headrace verify: {told['verdict']}",
            "",
            f"Run {self.plan.id}, began {self.began}, {told['load_seconds']:,} s of load in {self.rounds} round(s), "
            f"seed {self.plan.seed}{', ended early' if self.interrupted else ''}.",
            "",
            f"{records['acknowledged']:,} records acknowledged, {records['unknown']:,} without an answer, "
            f"{records['read']:,} read, {records['copied']:,} copied; transactions: {_list_counts(self.transactions)}.",
            "",
            "## Anomalies",
            "",
        ]
        for name, count in self.anomalies.items():
            lines += [f"- **{name}** × {count:,}", *(f"  - {text}" for text in self.examples[name])]
        if not self.anomalies:
            lines.append("None.")
        if self.not_judged is not None:
            lines += ["", f"The last round could not be judged: {self.not_judged}."]
        lines += ["", f"Allowed, and found: {_list_counts(self.allowed)}.", "", "## Operations", ""]
        lines += ["| operation | ok | failed | unknown |", "|---|---|---|---|"]
        lines += [
            f"| {f} | {row['ok']:,} | {row['fail']:,} | {row['info']:,} |" for f, row in told["operations"].items()
        ]
        lines += ["", f"Errors that clients saw: {_list_counts(self.errors)}.", "", "## Availability", ""]
        lines += [
            f"{available['seconds_all_partitions_written']:,} of {available['seconds']:,} seconds had an acknowledged "
            f"write on every partition, {available['seconds_none_written']:,} on none.",
            "",
        ]
        if self.outages:
            lines += ["| outage at, s | time to recover, s | partitions |", "|---|---|---|"]
            lines += [f"| {one['at_s']:,} | {one['seconds']:,} | {one['partitions']} |" for one in self.outages]
            lines += [f"| {self.outages_more:,} more | | |"] if self.outages_more else []
        else:
            lines.append("No outage.")
        lines += ["", "One sign a second: `#` all partitions written, `.` none, a digit: tenths of them.", "", "```"]
        signs = strip(self.seconds, self.plan.keys)
        lines += [f"{at:>7} {signs[at : at + STRIP_COLUMNS]}" for at in range(0, len(signs), STRIP_COLUMNS)]
        lines.append("```")
        if self.kept_topics:
            lines += ["", f"Topics that are still there: {', '.join(self.kept_topics)}."]
        if self.history:
            lines += ["", f"The history of the first round with an anomaly: {self.history}."]
        return "\n".join(lines) + "\n"


def _list_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common() if count) or "none"
