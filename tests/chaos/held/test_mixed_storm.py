"""
All kinds of clients at once, while processes die or are paused, partitions are added and moved, topics are made anew.

HELD_LONG=1 (``make chaos``) is the long form; CHAOS_SEED names the faults.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.held.verifying import LONG, PREFIX, SEED, Verifying, judge, verifying
from tests.chaos.transactions.storm import (
    BROKER_1,
    BROKER_2,
    BROKER_3,
    COORDINATOR_1,
    COORDINATOR_2,
    STOPS,
    Crew,
    hurt_cluster,
    nothing_hangs,
)
from tests.chaos.transactions.storm import Storm as Faults

from headrace import TopicPartition
from headrace.testing import TestCluster

SECONDS, PAUSES_S, ACKNOWLEDGED_MIN = (240.0, (0.5, 3.0), 500) if LONG else (12.0, (0.4, 1.2), 50)
EVENTS_MAX = 6_000
"""Of a round: so topics are made anew all the time."""
PARTITIONS_MAX = 16
KILLS = (BROKER_1, BROKER_2, BROKER_3, COORDINATOR_1, COORDINATOR_2, "kill controller-1")
ADD, MOVE, REPLACE = "add partitions", "move partition", "replace topic"

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_500 if LONG else 300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data", PREFIX, tls=True) as started:
        yield started


class Administrator:
    """Changes the topics that are written to, and others."""

    def __init__(self, cluster: TestCluster, run: Verifying, chance: random.Random) -> None:
        self._cluster, self._run, self._chance = cluster, run, chance

    def add_partitions(self) -> None:
        """One more, of a topic that is in use."""
        topic = self._chance.choice((self._run.log, self._run.copies))
        with self._cluster.admin() as admin:
            total = len(admin.describe_topic(topic).partitions) + 1
            if total <= PARTITIONS_MAX:
                admin.add_partitions(topic, total)

    def move(self) -> None:
        """Another order of replicas and so another leader, by way of two replicas."""
        topic, brokers = self._run.log, [1, 2, 3]
        self._chance.shuffle(brokers)
        with self._cluster.admin() as admin:
            partition = self._chance.choice(admin.describe_topic(topic).partitions).partition
            count = self._chance.choice((2, 3))
            admin.alter_reassignments({TopicPartition(topic, partition): brokers[:count]})

    def replace_topic(self) -> None:
        """One of the same name, soon after the old one was deleted."""
        with self._cluster.admin() as admin:
            if any(one.name == "anew" for one in admin.list_topics()):
                admin.delete_topic("anew")
            admin.create_topic("anew", 3, 3)


def test_nothing_is_lost_doubled_reordered_or_torn(cluster: TestCluster, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    nobody = Crew(tmp_path, lambda slot, number: [], 0)
    with verifying(cluster.bootstrap_servers, EVENTS_MAX) as run:
        administrator = Administrator(cluster, run, chance)
        changes = {ADD: administrator.add_partitions, MOVE: administrator.move, REPLACE: administrator.replace_topic}
        faults = dict.fromkeys((*KILLS, *STOPS), 1) | dict.fromkeys(changes, 4)
        storm = Faults(cluster, nobody, chance, faults=faults, changes=changes, pauses=PAUSES_S)
        try:
            storm.rage(SECONDS, too_few=lambda: run.state.round < 2)
        finally:
            (tmp_path / "faults.log").write_text("\n".join(storm.told) + "\n")
        report = run.end()
    judge("mixed storm", report, ACKNOWLEDGED_MIN, faults=dict(storm.counts))
    assert sum(storm.counts[what] for what in ("add partitions", "move partition", "replace topic")), storm.told
    with cluster.admin() as admin:
        nothing_hangs(cluster, [one.name for one in admin.list_topics()])
