"""
Members join, close and are killed at random under load, and so are coordinators: nothing is left out.

GROUPS_SECONDS (12) is how long, GROUPS_SEED which faults: a failure names it. GROUPS_ALL=1 kills brokers (three then)
and the controller too.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.testing import TestCluster
from headrace_cli.local.failures import NotRunning

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

SECONDS = float(os.environ.get("GROUPS_SECONDS", "12"))
SEED = int(os.environ.get("GROUPS_SEED", "20261121"))
EVERYTHING = os.environ.get("GROUPS_ALL") == "1"
VICTIMS = ["coordinator-1", "coordinator-2"]
if EVERYTHING:
    VICTIMS += ["broker-1", "controller-1", "broker-2", "coordinator-1", "broker-3", "coordinator-2"]
MEMBERS_MIN, MEMBERS_MAX = 2, 5
COORDINATOR_EVERY_S = 5.0
SESSION_MS = 6_000
"""A member that dies with its coordinator is missed by the next one only after a session: 45 s by default."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(SECONDS + 240)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    directory = tmp_path_factory.mktemp("churn") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_COORDINATOR_GROUP_CONSUMER_SESSION_TIMEOUT_MS", str(SESSION_MS))
        with two_coordinators(directory, brokers=3 if EVERYTHING else 1) as started:
            yield started


def churn(cluster: TestCluster, crew: Crew, chance: random.Random, seconds: float) -> list[str]:
    """Something happens every second or so, and every few seconds to a coordinator; what it was."""
    told: list[str] = []
    began = time.monotonic()
    next_kill = began + COORDINATOR_EVERY_S / 2
    victims = cycle(VICTIMS)  # so one of every two coordinators has the group
    while time.monotonic() < began + seconds:
        time.sleep(chance.uniform(0.3, 1.5))
        if time.monotonic() > next_kill:
            next_kill += COORDINATOR_EVERY_S
            victim = next(victims)
            try:
                cluster.local.kill(victim)
                told.append(f"{time.monotonic() - began:.1f} kill -9 {victim}")
            except NotRunning:
                continue  # it has not come back yet
            continue
        living = [member for member in crew.living if not member.leaving]
        what = chance.choice(("join", "join", "close", "kill"))
        if len(living) <= MEMBERS_MIN or (what == "join" and len(living) < MEMBERS_MAX):
            told.append(f"{time.monotonic() - began:.1f} join {crew.start().name}")
        elif what == "kill":
            member = chance.choice(living)
            crew.kill(member)
            told.append(f"{time.monotonic() - began:.1f} kill -9 {member.name}")
        else:
            member = chance.choice(living)
            crew.ask_to_close(member)
            told.append(f"{time.monotonic() - began:.1f} close {member.name}")
    return told


def test_each_record_is_handled_and_what_is_committed_has_no_gap(
    cluster: TestCluster, tmp_path: Path, protocol: str
) -> None:
    topic = cluster.unique_topic("churn", PARTITIONS)
    group = f"churn-{protocol}"
    settings = PROTOCOLS[protocol] | ({"session_timeout_ms": SESSION_MS} if protocol != "server-side" else {})
    crew = Crew(cluster, tmp_path, group, topic, auto_commit_interval_ms=300, **settings)
    load, watch = Load(cluster, topic), Watch(cluster, group, topic)
    with ending(load, watch, crew):
        for _ in range(3):
            crew.start()
        until(lambda: bool(watch.now()), "something is committed")
        told = churn(cluster, crew, random.Random(f"{SEED}-{protocol}"), SECONDS)
        cluster.local.wait_ready()
        load.end()
        crew.settle()
        with cluster.admin() as admin:

            def without_lag() -> bool:
                try:
                    found = admin.group_lag(group, ages=False)
                except HeadraceError:
                    return False
                return len(found) == PARTITIONS and all(at.lag == 0 for at in found.values())

            until(without_lag, f"lag reaches 0: seed {SEED}, {told}")
        assert watch.now() == load.ends
        watch.end()
        crew.close()
    again = assert_handled(crew, load.ends)
    print(f"\n{protocol}, seed {SEED}: {sum(load.ends.values())} records, {again} handled again; {'; '.join(told)}")
    assert_committed(crew, watch)
    assert_one_owner(crew.members)
    assert_no_late_writer(cluster)
    assert not [(m.name, m.errors) for m in crew.members if m.errors], told
