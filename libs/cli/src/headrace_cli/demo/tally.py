"""
What the demo's consumer has seen: figures per carrier, and whether each carrier's records are those of the source.

Every record carries its carrier's running number, so a record that is lost, doubled or out of order shows at once:
the next number is not the one expected. Pure; one reader feeds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

PROBLEMS_KEPT: Final = 5


@dataclass(slots=True)
class Carrier:
    """Sums over one carrier's departures; delays only where they are known (minutes)."""

    departures: int = 0
    departure_delays: int = 0
    departure_delay_sum: int = 0
    arrival_delays: int = 0
    arrival_delay_sum: int = 0

    @property
    def mean_departure_delay(self) -> float | None:
        """Minutes; None while none is known."""
        return self.departure_delay_sum / self.departure_delays if self.departure_delays else None

    @property
    def mean_arrival_delay(self) -> float | None:
        """Minutes; None while none is known."""
        return self.arrival_delay_sum / self.arrival_delays if self.arrival_delays else None


@dataclass(slots=True)
class Tally:
    """All carriers."""

    carriers: dict[str, Carrier] = field(default_factory=dict)
    records: int = 0
    problems: list[str] = field(default_factory=list)
    """The first few; ``wrong`` counts all."""
    wrong: int = 0

    def add(self, key: bytes | None, row: Mapping[str, Any] | None, where: str) -> None:
        """One record; ``row`` is None when its value is no JSON object."""
        self.records += 1
        code = row.get("carrier") if row is not None else None
        if row is None or not isinstance(code, str) or key != code.encode() or not isinstance(row.get("n"), int):
            self._problem(f"{where} is no departure of the demo")
            return
        carrier = self.carriers.setdefault(code, Carrier())
        if row["n"] != carrier.departures:
            self._problem(f"{where}: departure {row['n']} of {code} came where {carrier.departures} was due")
        carrier.departures += 1
        if isinstance(delay := row.get("dep_delay"), int):
            carrier.departure_delays += 1
            carrier.departure_delay_sum += delay
        if isinstance(delay := row.get("arr_delay"), int):
            carrier.arrival_delays += 1
            carrier.arrival_delay_sum += delay

    def count_seen(self) -> Counter[str]:
        return Counter({code: carrier.departures for code, carrier in self.carriers.items()})

    def verdict(self, source: Mapping[str, int], in_topic: int) -> list[str]:
        """
        What is wrong at the end; empty when the topic holds exactly the source.

        Args:
            source: departures per carrier.
            in_topic: records in the topic by its offsets.
        """
        wrong: list[str] = []
        total = sum(source.values())
        if in_topic != total:
            wrong.append(f"the topic holds {in_topic:,} records, not {total:,}")
        if self.records != in_topic:
            wrong.append(f"{self.records:,} records were read, not {in_topic:,}")
        seen = self.count_seen()
        wrong += [
            f"{code} has {seen[code]:,} departures, not {source.get(code, 0):,}"
            for code in sorted({*source, *seen})
            if seen[code] != source.get(code, 0)
        ]
        if self.wrong > len(self.problems):
            wrong.append(f"{self.wrong:,} records are wrong, the first of them:")
        return wrong + self.problems

    def _problem(self, text: str) -> None:
        self.wrong += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(text)


def differences(ours: Mapping[str, object], theirs: Mapping[str, object], who: str) -> list[str]:
    """Carriers of which ``who`` has something else than the consumer; empty when all are the same."""
    return [
        f"{code}: the consumer has {ours.get(code)}, {who} {theirs.get(code)}"
        for code in sorted({*ours, *theirs})
        if ours.get(code) != theirs.get(code)
    ]
