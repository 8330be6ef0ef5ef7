"""One group is point-to-point, many are publish-subscribe; patterns, added partitions, static members."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from headrace import AdminClient, TopicPartition
from headrace.testing import TestCluster

from .crew import PROTOCOLS, Crew, Load, assert_handled, ending, lag_of, until

pytestmark = pytest.mark.integration

SOON = {"auto_commit_interval_ms": 300}
LOOKING: dict[str, dict[str, int]] = {
    "eager": {"metadata_max_age_ms": 300},
    "cooperative": {"metadata_max_age_ms": 300},
    "server-side": {},  # the coordinator sees topics
}


def test_one_group_shares_the_records_and_many_get_all_of_them(cluster: TestCluster, tmp_path: Path) -> None:
    """Three groups, one of each protocol and one of them slow: each at its own pace, none twice."""
    topic = cluster.unique_topic("shared", 6)
    crews = {
        name: Crew(cluster, tmp_path, f"shared-{name}", topic, **SOON, **settings)
        for name, settings in PROTOCOLS.items()
    }
    load = Load(cluster, topic, partitions=6)
    with ending(load, *crews.values()):
        for name, crew in crews.items():
            for _ in range(2):
                crew.start(work_s=0.3 if name == "eager" else 0.0)
        for crew in crews.values():
            crew.settle(6)
        time.sleep(2)
        load.end()
        with cluster.admin() as admin:
            for name, crew in crews.items():
                group = f"shared-{name}"
                until(lambda: lag_of(admin, group) == 0, f"lag of {group}")  # noqa: B023 - used within this turn
                crew.close()
            states = {one.group_id: one.state for one in admin.list_groups().groups}
    for name, crew in crews.items():
        assert assert_handled(crew, load.ends) == 0, "nobody was lost, so nothing is handled twice"
        assert all(member.runs for member in crew.members), "both had a share"
        assert states[f"shared-{name}"] == "empty"


def test_topics_that_match_and_partitions_that_are_added_are_read(cluster: TestCluster, tmp_path: Path) -> None:
    with cluster.admin() as admin:
        admin.create_topic("seen-a", 2)
        admin.create_topic("not-seen", 2)
        crews = [
            Crew(cluster, tmp_path, f"seen-{name}", "", **SOON, **LOOKING[name], **PROTOCOLS[name])
            for name in PROTOCOLS
        ]
        with ending(*crews):
            for crew in crews:
                crew.start(pattern="seen-.*")
                crew.start(pattern="seen-.*")
            settled(crews, 2)
            admin.create_topic("seen-b", 3)
            settled(crews, 5)
            admin.add_partitions("seen-a", 4)
            settled(crews, 7)
            with cluster.producer() as producer:
                for topic, partitions in (("seen-a", 4), ("seen-b", 3), ("not-seen", 2)):
                    for number in range(partitions):
                        producer.send(topic, b"x", partition=number)
            wanted = {TopicPartition("seen-a", n) for n in range(4)} | {TopicPartition("seen-b", n) for n in range(3)}
            for crew in crews:
                until(lambda: read_by(crew) == wanted, "all are read")  # noqa: B023 - used within this turn
                crew.close()


def read_by(crew: Crew) -> set[TopicPartition]:
    return {tp for member in crew.living for tp, runs in member.runs.items() if runs}


def settled(crews: Iterable[Crew], partitions: int) -> None:
    for crew in crews:
        crew.settle(partitions)


class Restart:
    """A group of two static members, of which the second ends and comes back."""

    def __init__(self, cluster: TestCluster, folder: Path, protocol: str, topic: str) -> None:
        self.group = f"static-{protocol}"
        self.crew = Crew(cluster, folder, self.group, topic, **SOON, **PROTOCOLS[protocol])
        self.first, self.second = (self.crew.start(group_instance_id=name) for name in ("one", "two"))

    def again(self, admin: AdminClient, *, hard: bool) -> None:
        """Nothing but the second member's process has changed."""
        before, story, had = self._epochs(admin), list(self.first.look().rebalances), set(self.second.held)
        assert had
        (self.crew.kill if hard else self.crew.close)(self.second)
        self.second = self.crew.start(group_instance_id="two")
        until(lambda: self.second.look().held == had, f"{self.group}: it has what it had")
        until(lambda: all(self.second.look().runs[tp] for tp in had), f"{self.group}: it reads what it had")
        assert self._epochs(admin) == before
        assert self.first.look().rebalances == story, "the other was not disturbed"

    def _epochs(self, admin: AdminClient) -> tuple[int | None, int | None]:
        until(lambda: admin.describe_group(self.group).state == "stable", f"{self.group} is stable")
        found = admin.describe_group(self.group)
        return found.generation, found.assignment_epoch


def test_a_static_member_that_restarts_causes_no_rebalance(cluster: TestCluster, tmp_path: Path) -> None:
    """
    Closed with each protocol; killed with the classic ones: the server-side protocol keeps the place of one that did
    not say that it goes until its session ends (UNRELEASED_INSTANCE_ID).
    """
    topic = cluster.unique_topic("static", 6)
    load = Load(cluster, topic, partitions=6)
    restarts = {protocol: Restart(cluster, tmp_path, protocol, topic) for protocol in PROTOCOLS}
    crews = [restart.crew for restart in restarts.values()]
    with ending(load, *crews), cluster.admin() as admin:
        settled(crews, 6)
        for protocol, restart in restarts.items():
            restart.again(admin, hard=False)
            if protocol != "server-side":
                restart.again(admin, hard=True)
        load.end()
        for restart in restarts.values():
            until(lambda: lag_of(admin, restart.group) == 0, "all is read and committed")  # noqa: B023
            restart.crew.close()
    for crew in crews:
        assert_handled(crew, load.ends)
