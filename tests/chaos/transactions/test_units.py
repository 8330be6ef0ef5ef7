"""
Units under random kills: writers prepare, a driver commits; each unit is whole or not at all, and none is there twice.

TRANSACTIONS_LONG=1 (``make chaos-transactions``) is the long form; CHAOS_SEED names the faults.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace import UnitOwner
from headrace.testing import TestCluster

from . import papers
from .storm import FAULTS, LONG, SEED, STOPS, Crew, Storm, hurt_cluster, make_topic, nothing_hangs, read_values, report

HERE = Path(__file__).parent
OWNER = "nightly"
PARTITIONS, WRITERS, RECORDS = 4, 4, 12
PAUSES_S = (1.0, 4.0) if LONG else (0.5, 2.0)
STORM = FAULTS | dict.fromkeys(STOPS, 1) | {"kill driver": 4, "replace driver": 3}
SECONDS, UNITS_MIN = (180.0, 60) if LONG else (14.0, 3)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900 if LONG else 300)]


@dataclass
class Ledger:
    """What drivers planned, and what they were told."""

    plans: dict[int, list[frozenset[str]]] = field(default_factory=lambda: defaultdict(list))
    """Sequence -> the tags of each attempt that was not refused."""
    committed: dict[int, frozenset[str]] = field(default_factory=dict)
    refused: int = 0
    drivers: int = 0

    def learn(self, path: Path) -> None:
        """From one driver."""
        plan: frozenset[str] = frozenset()
        for what, number, *rest in papers.lines(path):
            match what:
                case "init":
                    self.drivers += 1
                case "plan":
                    plan = frozenset(rest[1])
                    self.plans[number].append(plan)
                case "refused":
                    self.plans[number].remove(plan)
                    self.refused += 1
                case "committed":
                    assert plan, f"unit {number}: an owner that was replaced committed nothing, and was not refused"
                    assert self.committed.setdefault(number, plan) == plan, f"unit {number} was committed twice"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data", "units", OWNER) as started:
        yield started


def test_each_unit_is_whole_or_not_at_all_and_there_once(cluster: TestCluster, tmp_path: Path) -> None:
    topic, bootstrap = make_topic(cluster, "units", PARTITIONS), ",".join(cluster.bootstrap_servers)

    def command(slot: int, number: int) -> list[str]:
        if slot == WRITERS:
            more = [str(WRITERS), str(number), str(tmp_path), f"{SEED}-{number}"]
            return [str(HERE / "unit_driver.py"), bootstrap, OWNER, *more]
        return [str(HERE / "unit_writer.py"), bootstrap, topic, OWNER, str(slot), str(number), str(tmp_path)]

    crew = Crew(tmp_path, command, WRITERS + 1)
    storm = Storm(cluster, crew, random.Random(SEED), faults=STORM, pauses=PAUSES_S)
    try:
        crew.start_all()
        storm.rage(SECONDS, too_few=lambda: committed(tmp_path) < UNITS_MIN)
        (tmp_path / "finish").touch()
        crew.finish()
    finally:
        crew.end()
        (tmp_path / "faults.log").write_text("\n".join(storm.told) + "\n")
    with UnitOwner(bootstrap, OWNER) as owner:
        last = owner.init().last_sequence  # aborts what the last writers prepared
    nothing_hangs(cluster, [topic])
    ledger = Ledger()
    for path in papers.names(tmp_path, "*.ledger"):
        ledger.learn(path)
    values = read_values(cluster, topic)
    judge(ledger, values, last)
    figures = {"transactions": len(values) // RECORDS, "drivers": ledger.drivers, "refused": ledger.refused}
    report("units", storm, units=last + 1, **figures, anomalies={})
    assert last + 1 >= UNITS_MIN


def committed(directory: Path) -> int:
    """How many units drivers were told to be committed until now."""
    told = (line for path in papers.names(directory, "*.ledger") for line in papers.lines(path))
    return len({number for what, number, *_ in told if what == "committed"})


def judge(ledger: Ledger, values: list[bytes], last: int) -> None:
    """By what a reader of committed records finds."""
    told = Counter(values)
    assert max(told.values()) == 1, f"twice: {[value for value, times in told.items() if times > 1][:5]}"
    records = Counter(value.decode().partition(":")[0] for value in values)
    torn = {tag: found for tag, found in records.items() if found != RECORDS}
    assert not torn, f"of these transactions only a part is there: {torn}"
    left = frozenset(records)
    for number in range(last + 1):
        candidates = ledger.plans[number]
        seen = left & frozenset().union(*candidates)
        assert seen in candidates, f"unit {number}: {sorted(seen)} is there, planned was one of {candidates}"
        decided = ledger.committed.get(number, seen)
        assert seen == decided, f"unit {number}: {sorted(seen)} is there, committed was {sorted(decided)}"
        left -= seen
    assert max(ledger.committed) <= last, "what was said to be committed is"
    assert not left, f"these were in no unit that was committed: {sorted(left)}"
