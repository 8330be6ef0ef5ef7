"""
The full checker on transactions of up to four sends and polls, without faults and with them: no anomaly.

TRANSACTIONS_LONG=1 (``make chaos-transactions``) is the long form; CHAOS_SEED names the faults. Histories are kept
beside the cluster's directory.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from headrace.testing import TestCluster
from headrace_verify.checker import Outcome
from headrace_verify.checker_history import Operation, from_lines, merge_histories
from headrace_verify.checker_txn import Judgement, check_history
from headrace_verify.client import Client, History
from headrace_verify.reading import note_everything

from .storm import FAULTS, LONG, RACKS, SEED, STOPS, Crew, Storm, hurt_cluster, make_topic, nothing_hangs, report

SCRIPT = Path(__file__).parent / "client.py"
KINDS = ("assign", "subscribe", "subscribe", "plain")
KEYS = 4
CALM_S, STORM_S, PAUSES_S = (60.0, 240.0, (1.0, 4.0)) if LONG else (4.0, 14.0, (0.5, 2.0))
READ_S = 200.0
TRANSACTIONS_MIN = 50
COMMITTED = b'"type":"ok","f":"txn"'
READER = 1_000_000

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_200 if LONG else 300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path_factory.mktemp("history") / "data", "calm", "storm") as started:
        yield started


@pytest.mark.parametrize("faults", [{}, FAULTS | dict.fromkeys(STOPS, 1)], ids=["calm", "storm"])
def test_no_anomaly(cluster: TestCluster, tmp_path: Path, faults: dict[str, int]) -> None:
    topic = make_topic(cluster, "storm" if faults else "calm", KEYS)
    bootstrap, stop = ",".join(cluster.bootstrap_servers), tmp_path / "stop"

    def command(slot: int, number: int) -> list[str]:
        history = tmp_path / f"{number}.history"
        seed = f"{SEED}-{number}"
        return [str(SCRIPT), bootstrap, topic, str(slot), str(number), seed, str(stop), str(history), KINDS[slot]]

    crew = Crew(tmp_path, command, len(KINDS))
    storm = Storm(cluster, crew, random.Random(SEED), faults=faults, pauses=PAUSES_S)
    try:
        crew.start_all()
        storm.rage(STORM_S if faults else CALM_S, too_few=lambda: committed(tmp_path) <= TRANSACTIONS_MIN)
        stop.touch()
        crew.finish()
    finally:
        crew.end()
        (tmp_path / "faults.log").write_text("\n".join(storm.told) + "\n")
    nothing_hangs(cluster, [topic])
    for number, rack in enumerate(("", RACKS[1])):
        read_everything(cluster, topic, tmp_path / f"final-{number}.history", READER + number, rack)
    verdict = check_history(merge_histories(map(entries, sorted(tmp_path.glob("*.history")))))
    outcomes = {outcome.value: times for outcome, times in verdict.transactions.items()}
    figures = {"sends": verdict.sends_ok, "unknown": verdict.sends_unknown, "read": verdict.read}
    allowed = {name: len(found) for name, found in verdict.allowed.items()}
    report(topic, storm, transactions=outcomes, **figures, anomalies=verdict.counts, allowed=allowed)
    judge(verdict, tmp_path, calm=not faults)


def committed(directory: Path) -> int:
    """How many transactions processes were told to be committed until now."""
    return sum(path.read_bytes().count(COMMITTED) for path in directory.glob("*.history"))


def judge(verdict: Judgement, directory: Path, *, calm: bool) -> None:
    """Nothing was found, and there was something to find it in."""
    assert verdict.counts == {}, f"seed {SEED}, {directory}\n{verdict.describe()}"
    assert verdict.transactions[Outcome.OK] > TRANSACTIONS_MIN, f"seed {SEED}: too few transactions, see {directory}"
    assert verdict.transactions[Outcome.FAIL], "some are given up"
    if calm:
        assert not verdict.transactions[Outcome.INFO], "without faults it is known what became of each"


def entries(path: Path) -> Iterable[Operation]:
    """Of a process; its last line may be cut short by its end."""
    return from_lines(line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))


def read_everything(cluster: TestCluster, topic: str, path: Path, number: int, rack: str) -> None:
    """The final phase: all keys from the beginning to their ends."""
    with (
        cluster.producer() as producer,
        cluster.consumer(isolation_level="read_committed", client_rack=rack) as consumer,
    ):
        note_everything(Client(producer, consumer, topic, History.in_file(path, number), number), READ_S)
