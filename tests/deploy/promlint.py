"""
What is wrong with a page of metrics: the rules of ``promtool check metrics``, and that no label is empty.

The rules are those of Prometheus' client_golang/prometheus/testutil/promlint; the page is the text format 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_UNITS: Final = {
    "seconds": {"milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days", "weeks", "months", "years"},
    "bytes": {"bits", "kilobytes", "megabytes", "gigabytes", "terabytes", "kibibytes", "mebibytes", "gibibytes"},
    "celsius": {"fahrenheit", "kelvin"},
    "meters": {"inches", "yards", "miles", "kilometers", "millimeters"},
    "grams": {"kilograms", "pounds", "ounces"},
    "joules": {"calories", "kilojoules"},
    "volts": {"millivolts", "kilovolts"},
    "amperes": {"milliamperes"},
}
_ABBREVIATIONS: Final = {"s", "ms", "us", "ns", "sec", "m", "h", "d", "b", "kb", "mb", "gb", "tb", "pb"}
_TYPES: Final = ("counter", "gauge", "histogram", "summary")
_SUFFIXES: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_SAMPLE: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? \S+")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass
class _Family:
    help: str = ""
    type: str = "untyped"
    samples: list[tuple[str, dict[str, str]]] = field(default_factory=list)


def problems(page: str) -> list[str]:
    """Each as ``metric: what is wrong``; none: promtool has nothing to say either."""
    return [f"{name}: {text}" for name, family in _families(page).items() for text in _wrong(name, family)]


def _families(page: str) -> dict[str, _Family]:
    found: dict[str, _Family] = {}
    for line in page.splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            _, kind, name, *rest = line.split(" ", 3)
            setattr(found.setdefault(name, _Family()), kind.lower(), rest[0] if rest else "")
        elif line and not line.startswith("#"):
            sample = _SAMPLE.fullmatch(line)
            assert sample, line
            labels = dict(_LABEL.findall(sample[2] or ""))
            found.setdefault(_family_of(sample[1], found), _Family()).samples.append((sample[1], labels))
    return found


def _family_of(sample: str, known: dict[str, _Family]) -> str:
    for name, family in known.items():
        if sample in {name, *(name + suffix for suffix in _SUFFIXES.get(family.type, ()))}:
            return name
    return sample


def _wrong(name: str, family: _Family) -> Iterator[str]:
    parts = name.lower().split("_")
    labels = {label for _, pairs in family.samples for label in pairs}
    if not family.help:
        yield "no help text"
    if family.type == "untyped":
        yield "no type"
    for base, others in _UNITS.items():
        yield from (f'use base unit "{base}" instead of "{part}"' for part in parts if part in others)
    if family.type == "counter" and not name.endswith("_total"):
        yield 'counter metrics should have "_total" suffix'
    if family.type != "counter" and name.endswith("_total"):
        yield 'non-counter metrics should not have "_total" suffix'
    yield from _reserved(name, family.type, labels)
    yield from (f"metric name should not include type '{kind}'" for kind in _TYPES if kind in parts)
    if ":" in name:
        yield "metric names should not contain ':'"
    if re.search("[a-z][A-Z]", name):
        yield "metric names should be written in 'snake_case' not 'camelCase'"
    if any(re.search("[a-z][A-Z]", label) for label in labels):
        yield "label names should be written in 'snake_case' not 'camelCase'"
    if _ABBREVIATIONS & {*parts}:
        yield "metric names should not contain abbreviated units"
    yield from _of_samples(family)


def _reserved(name: str, kind: str, labels: set[str]) -> Iterator[str]:
    if kind != "histogram":
        if name.endswith("_bucket"):
            yield 'non-histogram metrics should not have "_bucket" suffix'
        if "le" in labels:
            yield 'non-histogram metrics should not have "le" label'
    if kind not in _SUFFIXES:
        for suffix in ("_count", "_sum"):
            if name.endswith(suffix):
                yield f'non-histogram and non-summary metrics should not have "{suffix}" suffix'
    if kind != "summary" and "quantile" in labels:
        yield 'non-summary metrics should not have "quantile" label'


def _of_samples(family: _Family) -> Iterator[str]:
    if any(not value for _, pairs in family.samples for value in pairs.values()):
        yield "a label is empty"
    keys = [(sample, *sorted(pairs.items())) for sample, pairs in family.samples]
    if len(set(keys)) != len(keys):
        yield "metric not unique"
