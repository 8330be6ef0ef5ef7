"""
Prepared transactions under random kills: what was written down as their verdict is what readers see.

TRANSACTIONS_LONG=1 (``make chaos-transactions``) is the long form; CHAOS_SEED names the faults.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import TestCluster

from . import papers
from .storm import FAULTS, LONG, SEED, STOPS, Crew, Storm, hurt_cluster, make_topic, nothing_hangs, read_values, report

HERE = Path(__file__).parent
PARTITIONS, WRITERS, RECORDS = 4, 3, 12
PAUSES_S = (1.0, 4.0) if LONG else (0.5, 2.0)
STORM = FAULTS | dict.fromkeys(STOPS, 1) | {"kill driver": 2, "replace driver": 1}
SECONDS, DECIDED_MIN = (120.0, 200) if LONG else (10.0, 20)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900 if LONG else 300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data", "prepared") as started:
        yield started


def test_readers_see_what_was_decided(cluster: TestCluster, tmp_path: Path) -> None:
    topic, bootstrap = make_topic(cluster, "prepared", PARTITIONS), ",".join(cluster.bootstrap_servers)

    def command(slot: int, number: int) -> list[str]:
        if slot == WRITERS:
            return [str(HERE / "prepared_decider.py"), bootstrap, str(tmp_path)]
        more = [str(slot), str(number), f"{SEED}-{number}", str(tmp_path)]
        return [str(HERE / "prepared_writer.py"), bootstrap, topic, *more]

    crew = Crew(tmp_path, command, WRITERS + 1)
    storm = Storm(cluster, crew, random.Random(SEED), faults=STORM, pauses=PAUSES_S)
    try:
        crew.start_all()
        storm.rage(SECONDS, too_few=lambda: too_few(decided(tmp_path)))
        (tmp_path / "stop").touch()
        crew.finish()
    finally:
        crew.end()
        (tmp_path / "faults.log").write_text("\n".join(storm.told) + "\n")
    nothing_hangs(cluster, [topic])
    verdicts: dict[str, bool] = {path.name: papers.get(path) for path in papers.names(tmp_path / "verdicts")}
    tags = {tag: token for path in papers.names(tmp_path, "*.tags") for tag, token in papers.lines(path)}
    values = read_values(cluster, topic)
    judge(tags, verdicts, values)
    counts = decided(tmp_path)
    report("prepared", storm, **counts, records=len(values), anomalies={})
    assert not too_few(counts), counts


def decided(directory: Path) -> Counter[str]:
    """How many transactions were decided in each way until now."""
    verdicts = map(papers.get, papers.names(directory / "verdicts"))
    return Counter("committed" if commit else "aborted" for commit in verdicts)


def too_few(counts: Counter[str]) -> bool:
    """Whether that is no test."""
    return counts["committed"] <= DECIDED_MIN or not counts["aborted"]


def judge(tags: dict[str, str], verdicts: dict[str, bool], values: list[bytes]) -> None:
    """By what a reader of committed records finds."""
    told = Counter(values)
    assert max(told.values()) == 1, f"twice: {[value for value, times in told.items() if times > 1][:5]}"
    found = Counter(value.decode().partition(":")[0] for value in values)
    open_ = [tag for tag, token in tags.items() if token not in verdicts]
    assert not open_, f"nobody decided {open_}"
    expected = {tag: RECORDS for tag, token in tags.items() if verdicts[token]}
    wrong = {tag: (found[tag], expected.get(tag, 0)) for tag in {*found, *expected} if found[tag] != expected.get(tag)}
    assert not wrong, f"of these (found, decided) differ: {wrong}"
