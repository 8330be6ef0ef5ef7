"""
Members of one group join, close and die, one after the other, then its coordinator, while records flow: what a reader
of them would notice. ``test_moves.py`` judges what moved, ``bench/groups.py`` reports how long it took.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from headrace import AdminClient, TopicPartition
from headrace.errors import HeadraceError
from headrace.testing import TestCluster

from .crew import (
    PROTOCOLS,
    Crew,
    Load,
    Member,
    assert_handled,
    assert_one_owner,
    ending,
    pauses_ms,
    read_again_s,
    stayed,
    until,
)

GRACE_S = 3.5
PARTITIONS = 12


@dataclass(slots=True)
class Figures:
    """Of one run."""

    closed_s: float = 0.0
    """From when a member began to close until the last of its partitions was read by another."""
    killed_s: float = 0.0
    """The same from a kill -9."""
    pauses_ms: dict[str, float] = field(default_factory=dict)
    """The longest wait of a record in a partition that did not move, by what happened meanwhile."""
    moved: dict[str, int] = field(default_factory=dict)
    """How many partitions changed their member, or were taken from it for a while, by what happened meanwhile."""
    left: dict[str, int] = field(default_factory=dict)
    """How many of them had to: those of the member that went."""


@dataclass(slots=True)
class Stage:
    """Everything that runs."""

    crew: Crew
    reader: Member
    figures: Figures

    def joins(self) -> None:
        """One more member takes its share."""
        began, members = time.monotonic_ns(), len(self.crew.living)
        new = self.crew.start()
        until(lambda: len(self.crew.living) > members and bool(new.held) and self.crew.shared(), "it has its share")
        self._paused("join", began)

    def closes(self, member: Member) -> None:
        """A member leaves."""
        began, had = time.monotonic_ns(), set(member.look().held)
        self.crew.close(member)
        self.figures.closed_s = self._read_again(member, had, member.closing_ns)
        self.figures.left["close"] = len(had)
        self._paused("close", began)

    def dies(self, member: Member) -> None:
        """A member is killed."""
        began, had = time.monotonic_ns(), set(member.look().held)
        self.crew.kill(member)
        self.figures.killed_s = self._read_again(member, had, member.killed_ns)
        self.figures.left["kill"] = len(had)
        self._paused("kill", began)

    def loses_its_coordinator(self, cluster: TestCluster) -> None:
        """Another takes over; longer is waited than members go on without knowing that they are members."""
        with cluster.admin() as admin:
            began, group = time.monotonic_ns(), str(self.crew.group)
            was = _serving(cluster, admin, group)
            assert was is not None, "it was settled"
            cluster.local.kill(was[0])
            until(lambda: _serving(cluster, admin, group) not in (None, was), "another process has the group")
            time.sleep(GRACE_S)
            self._paused("kill of the coordinator", began)
            self.figures.left["kill of the coordinator"] = 0
            assert self.crew.shared(), "nobody lost anything"
        if not cluster.local.options.restart:
            cluster.local.restart(was[0])

    def _read_again(self, left: Member, had: set[TopicPartition], since_ns: int) -> float:
        assert had, "it had nothing, so that nothing can be missed"
        others = self.crew.members
        until(lambda: read_again_s(left, others, had, since_ns) is not None, f"what {left.name} had is read again")
        self.crew.settle()
        return read_again_s(left, others, had, since_ns) or 0.0

    def _paused(self, what: str, began_ns: int) -> None:
        now = time.monotonic_ns()
        waits = pauses_ms(self.crew.members, self.reader, began_ns, now)
        self.figures.moved[what] = PARTITIONS - len(stayed(self.crew.members, began_ns, now))
        self.figures.pauses_ms[what] = waits[0] if waits else 0.0


def scenario(cluster: TestCluster, folder: Path, protocol: str) -> Figures:
    """
    Three members; a fourth joins, one closes, one is killed, the coordinator is killed. Afterwards each record was
    handled.
    """
    cluster.local.wait_ready()
    topic = cluster.unique_topic("moves", PARTITIONS)
    crew = Crew(cluster, folder, f"group-of-{topic}", topic, **PROTOCOLS[protocol])
    everything = Crew(cluster, folder, None, topic)
    load = Load(cluster, topic)
    with ending(load, crew, everything):
        stage = Stage(crew, everything.start(), Figures())
        first, second, third = (crew.start() for _ in range(3))
        until(lambda: len(crew.living) == 3 and all(member.held for member in crew.living), "all three have a share")
        crew.settle()
        until(lambda: bool(stage.reader.look().runs), "the reader reads")
        stage.joins()
        stage.closes(third)
        stage.dies(second)
        stage.loses_its_coordinator(cluster)
        load.end()
        until(lambda: _all_read(crew, load), "all is read")
        crew.close()
    assert_handled(crew, load.ends)
    assert_one_owner(crew.members)
    assert not [member.errors for member in crew.members if member.errors]
    assert first.closed
    return stage.figures


def _serving(cluster: TestCluster, admin: AdminClient, group: str) -> tuple[str, int | None] | None:
    """Name and pid of the coordinator that describes the group; one that was killed may be back before others act."""
    try:
        name = f"coordinator-{admin.describe_group(group).coordinator}"
    except HeadraceError:
        return None
    return name, next(p.pid for p in cluster.local.processes if p.name == name)


def _all_read(crew: Crew, load: Load) -> bool:
    last = dict.fromkeys(load.ends, -1)
    for member in crew.members:
        for tp, runs in member.look().runs.items():
            if runs:
                last[tp] = max(last[tp], runs[-1].last)
    return all(last[tp] + 1 == end for tp, end in load.ends.items())
