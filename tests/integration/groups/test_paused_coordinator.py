"""A coordinator that is stopped past its session: clients go on at the other; on waking it writes nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from headrace import AdminClient
from headrace.errors import HeadraceError

from .crew import (
    PARTITIONS,
    PROTOCOLS,
    Crew,
    Load,
    Watch,
    assert_committed,
    assert_handled,
    assert_one_owner,
    ending,
    two_coordinators,
    until,
)
from .shard_log import assert_no_late_writer

pytestmark = pytest.mark.integration

SESSION_MS = 4_000


def test_a_paused_coordinator_writes_nothing_on_waking(tmp_path: Path) -> None:
    """Three groups, one of each protocol, that commit all the time; the one that has the first is stopped."""
    session = {"broker.session.timeout.ms": str(SESSION_MS), "broker.heartbeat.interval.ms": "500"}
    with two_coordinators(tmp_path / "data", settings=session) as cluster, cluster.admin() as admin:
        topic = cluster.unique_topic("paused", PARTITIONS)
        crews = {
            name: Crew(cluster, tmp_path, f"paused-{name}", topic, auto_commit_interval_ms=200, **settings)
            for name, settings in PROTOCOLS.items()
        }
        load = Load(cluster, topic)
        watches = {name: Watch(cluster, f"paused-{name}", topic) for name in PROTOCOLS}
        with ending(load, *watches.values(), *crews.values()):
            for crew in crews.values():
                crew.start()
                crew.start()
            for crew in crews.values():
                crew.settle()
            owners = {name: admin.describe_group(f"paused-{name}").coordinator for name in PROTOCOLS}
            victim = owners["server-side"]
            hit = [name for name, owner in owners.items() if owner == victim]
            cluster.local.signal(f"coordinator-{victim}", signal.SIGSTOP)
            stopped_ns = time.monotonic_ns()
            for name in hit:
                until(lambda: moved(admin, f"paused-{name}", victim), f"{name} has another coordinator")  # noqa: B023
                progress(watches[name])
            took_s = (time.monotonic_ns() - stopped_ns) / 1e9
            cluster.local.signal(f"coordinator-{victim}", signal.SIGCONT)
            for name in PROTOCOLS:
                progress(watches[name])
            load.end()
            for name, crew in crews.items():
                watch = watches[name]
                until(lambda: watch.now() == load.ends, f"{name} has committed all")  # noqa: B023
                watch.end()
                crew.close()
        print(f"\n{', '.join(hit)}: committed at the other {took_s:.1f} s after the stop, session {SESSION_MS} ms")
        for name, crew in crews.items():
            assert_handled(crew, load.ends)
            assert_committed(crew, watches[name])
            assert_one_owner(crew.members)
        assert_no_late_writer(cluster)


def moved(admin: AdminClient, group: str, from_: int) -> bool:
    try:
        return admin.describe_group(group).coordinator != from_
    except HeadraceError:
        return False


def progress(watch: Watch) -> None:
    """Each partition has a newer commit than now."""
    at = len(watch.seen)
    until(lambda: len(watch.seen) > at, "a look succeeds")
    before = watch.seen[at][1]
    until(
        lambda: all(offset > before.get(tp, 0) for tp, offset in watch.seen[-1][1].items()), "all partitions progress"
    )
