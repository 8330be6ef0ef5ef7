"""
What a scenario finds: figures beside their targets, windows of time under load, anomalies and problems. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace_verify.availability import SECOND
from headrace_verify.checker import Verdict

from .history import History, Thin, back_after, below_minimum, gap, judge
from .release import now_ns

ERRORS_SHOWN = 20
FAR = 3.0
"""A figure beyond its target times this fails the run even on a slow machine."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Something measured. ``target`` is a most; None: nobody set one."""

    name: str
    value: float
    unit: str = "s"
    target: float | None = None

    @property
    def missed(self) -> bool:
        """Above its target."""
        return self.target is not None and self.value > self.target

    def text(self) -> str:
        """For people."""
        beside = "" if self.target is None else f" (target {self.target:g}{', MISSED' if self.missed else ''})"
        return f"{self.name:<58} {self.value:8.2f} {self.unit}{beside}"


@dataclass(slots=True)
class Window:
    """Something was done to the cluster while the load ran."""

    name: str
    planned: bool
    """By our doing: in-sync replicas must never be fewer than min ISR then."""
    gap_target: float | None
    back_target: float | None
    """How long service may be away, for a window whose faults interrupt it."""
    begin_ns: int
    end_ns: int = 0


@dataclass(slots=True)
class Result:
    """One scenario as it went."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong by itself, whatever the checker finds."""
    notes: list[str] = field(default_factory=list)
    anomalies: Counter[str] = field(default_factory=Counter)
    described: list[str] = field(default_factory=list)
    acknowledged: int = 0
    read: int = 0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Nothing was found, and no figure is far from its target."""
        far = any(f.target is not None and f.value > FAR * f.target for f in self.figures)
        return not self.problems and not self.anomalies and not far

    def figure(self, name: str, value: float, unit: str = "s", target: float | None = None) -> None:
        """One more."""
        self.figures.append(Figure(name, value, unit, target))

    @contextmanager
    def window(
        self, name: str, *, planned: bool = True, gap_target: float | None = None, back_target: float | None = None
    ) -> Iterator[Window]:
        """What is done inside of the block is measured by the load's history."""
        window = Window(name, planned, gap_target, back_target, now_ns())
        self.windows.append(window)
        yield window
        window.end_ns = now_ns()

    def judge(self, history: History) -> None:
        """Everything that a load's history tells; windows since the last call are measured by it."""
        verdict = judge(history)
        self.take(verdict)
        for text in history.errors[:ERRORS_SHOWN]:
            self.problems.append(f"a client saw an error: {text}")
        if len(history.errors) > ERRORS_SHOWN:
            self.problems.append(f"and {len(history.errors) - ERRORS_SHOWN} more errors of clients")
        for window in self.windows:
            if window.begin_ns and window.end_ns:
                self._measure(window, history)
        self.windows.clear()

    def take(self, verdict: Verdict) -> None:
        """What the checker says."""
        self.anomalies.update(verdict.counts)
        self.acknowledged += verdict.sends_ok
        self.read += verdict.read
        if verdict.anomalies:
            self.described.append(verdict.describe())

    def _measure(self, window: Window, history: History) -> None:
        begin, end = history.at(window.begin_ns), history.at(window.end_ns)
        key, worst = gap(history, begin, end)
        self.figure(f"{window.name}: longest gap of a partition", worst.seconds, "s", window.gap_target)
        self.notes.append(
            f"{window.name}: the longest gap was that of {key}, {(worst.begin_ns - begin) / SECOND:.1f} s in"
        )
        late = max((seconds for at, seconds in history.late if begin <= at <= end), default=0.0)
        if late:
            self.notes.append(f"{window.name}: the load itself was late by up to {late:.1f} s: the machine is too busy")
        if window.back_target is not None:
            back = back_after(history, begin, end)
            if back is None:
                self.problems.append(f"{window.name}: a partition was silent to the end")
            else:
                self.figure(f"{window.name}: back in service", back, "s", window.back_target)
        thin = below_minimum(history.samples, begin, end)
        if window.planned:
            self.problems += [f"{window.name}: {describe_thin(one, begin)}" for one in thin[:ERRORS_SHOWN]]

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "scenario": self.name,
            "sound": self.sound,
            "seconds": round(self.seconds, 1),
            "acknowledged": self.acknowledged,
            "read": self.read,
            "anomalies": dict(self.anomalies),
            "problems": self.problems,
            "figures": [
                {"name": f.name, "value": round(f.value, 3), "unit": f.unit, "target": f.target} for f in self.figures
            ],
        }

    def text(self) -> str:
        """For people."""
        said = "sound" if self.sound else "NOT SOUND"
        lines = [
            f"{self.name}: {said}, {self.seconds:.0f} s, {self.acknowledged} records acknowledged, {self.read} read"
        ]
        lines += [f"  {figure.text()}" for figure in self.figures]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  PROBLEM: {text}" for text in self.problems]
        return "\n".join([*lines, *self.described])


def describe_thin(thin: Thin, begin_ns: int) -> str:
    """A sentence."""
    when = (thin.begin_ns - begin_ns) / SECOND
    return f"{thin.key} had {thin.in_sync} replicas in sync for {thin.seconds:.2f} s, {when:.1f} s in"


def summary(results: Sequence[Result], **more: Any) -> dict[str, Any]:
    """The line at the end of a run."""
    anomalies = Counter[str]()
    for result in results:
        anomalies.update(result.anomalies)
    figures = [(result.name, figure) for result in results for figure in result.figures]
    return {
        **more,
        "sound": bool(results) and all(result.sound for result in results),
        "scenarios": [result.name for result in results],
        "acknowledged": sum(result.acknowledged for result in results),
        "anomalies": dict(anomalies),
        "problems": [f"{result.name}: {text}" for result in results for text in result.problems],
        "missed": [f"{name}: {figure.text()}" for name, figure in figures if figure.missed],
        "gaps_s": {f"{n}: {f.name}": round(f.value, 3) for n, f in figures if "gap" in f.name},
        "recovery_s": {
            f"{n}: {f.name}": round(f.value, 1) for n, f in figures if "back" in f.name or "in sync" in f.name
        },
    }
