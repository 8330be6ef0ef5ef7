"""
Parses the part of PromQL that our rules and dashboards use: selectors, ranges, calls, aggregations, operators. It says
which metrics an expression reads and by which labels, and refuses what Prometheus would refuse of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"\s*(?:(?P<range>\[(?:\d+(?:ms|[smhdwy])|\$__rate_interval)\])|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    r"|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<text>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<sign>=~|!~|==|!=|>=|<=|[-+*/(){},<>=]))"
)
_LEVELS = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/"))
_AGGREGATIONS = frozenset({"sum", "max", "min", "avg", "count"})
_RANKINGS = frozenset({"topk", "bottomk"})
_OF_RANGES = {"rate": 1, "increase": 1, "delta": 1, "deriv": 1, "predict_linear": 2, "max_over_time": 1, "changes": 1}
_OF_VECTORS = {"absent": 1, "histogram_quantile": 2, "abs": 1, "time": 0}


@dataclass(slots=True)
class Expression:
    """What was read."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    """Names, each with the labels it is matched by."""
    grouped: set[str] = field(default_factory=set)
    """Labels that aggregations keep."""


class _Parser:
    def __init__(self, text: str) -> None:
        self.found = Expression()
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise ValueError(f"cannot be read from here on: {text[at:]}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()

    def whole(self) -> Expression:
        self._operation(0)
        if self._tokens:
            raise ValueError(f"left over: {self._tokens}")
        return self.found

    def _next(self) -> str:
        return self._tokens[0][1] if self._tokens else ""

    def _take(self, wanted: str | None = None) -> tuple[str, str]:
        if not self._tokens or (wanted is not None and self._next() != wanted):
            raise ValueError(f"{wanted or 'something'} is missing at {self._next() or 'the end'}")
        return self._tokens.pop(0)

    def _operation(self, level: int) -> None:
        if level == len(_LEVELS):
            return self._operand()
        self._operation(level + 1)
        while self._next() in _LEVELS[level]:
            self._take()
            self._operation(level + 1)
        return None

    def _operand(self) -> None:
        kind, text = self._take()
        if kind == "number":
            return
        if text == "(":
            self._operation(0)
            self._take(")")
        elif kind == "name" and text in _AGGREGATIONS | _RANKINGS:
            self._aggregation(ranks=text in _RANKINGS)
        elif kind == "name" and self._next() == "(":
            self._call(text)
        elif kind == "name":
            self._selector(text, ranged=False)
        else:
            raise ValueError(f"no operand: {text}")

    def _aggregation(self, *, ranks: bool) -> None:
        if self._next() in {"by", "without"}:
            self._take()
            self._take("(")
            self._listed(lambda: self.found.grouped.add(self._take_kind("name")))
        self._take("(")
        if ranks:
            self._take_kind("number")
            self._take(",")
        self._operation(0)
        self._take(")")

    def _call(self, name: str) -> None:
        self._take("(")
        if name in _OF_RANGES:
            self._selector(self._take_kind("name"), ranged=True)
            rest = _OF_RANGES[name] - 1
        elif name in _OF_VECTORS:
            rest = _OF_VECTORS[name] - 1
            if rest >= 0:
                self._operation(0)
        else:
            raise ValueError(f"no function of ours: {name}")
        for _ in range(max(rest, 0)):
            self._take(",")
            self._operation(0)
        self._take(")")

    def _selector(self, name: str, *, ranged: bool) -> None:
        labels = self.found.metrics.setdefault(name, set())
        if self._next() == "{":
            self._take()
            self._listed(lambda: labels.add(self._matcher()), end="}")
        if ranged and self._take()[0] != "range":
            raise ValueError(f"{name} needs a range, as in [5m]")

    def _matcher(self) -> str:
        label = self._take_kind("name")
        if self._take()[1] not in {"=", "!=", "=~", "!~"}:
            raise ValueError(f"no comparison after {label}")
        self._take_kind("text")
        return label

    def _listed(self, one: object, end: str = ")") -> None:
        assert callable(one), "it reads one element"
        one()
        while self._next() == ",":
            self._take()
            one()
        self._take(end)

    def _take_kind(self, kind: str) -> str:
        found, text = self._take()
        if found != kind:
            raise ValueError(f"{text} is no {kind}")
        return text


def parse(text: str) -> Expression:
    """Raises: ValueError, with what is wrong."""
    return _Parser(text).whole()
