"""
Members join, close and are killed at random under load, and so are coordinators: nothing is left out.

GROUPS_SECONDS (12) is how long, GROUPS_SEED which faults: a failure names it. GROUPS_ALL=1 kills brokers (three then)
and the controller too.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

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
    lag_of,
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


def short(protocol: str) -> dict[str, Any]:
    """Settings of members whose session is short; in the server-side protocol the coordinator has it."""
    classic = {} if protocol == "server-side" else {"session_timeout_ms": SESSION_MS}
    return {**PROTOCOLS[protocol], **classic, "auto_commit_interval_ms": 300}


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
                hard = chance.random() < 0.7
                cluster.local.kill(victim, hard=hard)
                told.append(f"{time.monotonic() - began:.1f} {'kill -9' if hard else 'stop'} {victim}")
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
    crew = Crew(cluster, tmp_path, group, topic, **short(protocol))
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
            until(lambda: lag_of(admin, group) == 0, f"lag reaches 0: seed {SEED}, {told}")
        assert watch.now() == load.ends
        watch.end()
        crew.close()
    again = assert_handled(crew, load.ends)
    print(f"\n{protocol}, seed {SEED}: {sum(load.ends.values())} records, {again} handled again; {'; '.join(told)}")
    assert_committed(crew, watch)
    assert_one_owner(crew.members)
    assert_no_late_writer(cluster)
    assert not [(m.name, m.errors) for m in crew.members if m.errors], told


def test_a_member_that_stood_still_past_its_session_hands_nothing_out(cluster: TestCluster, tmp_path: Path) -> None:
    """Others have its partitions by then. It hears so first, loses them, and joins again."""
    topic = cluster.unique_topic("still", PARTITIONS)
    crews = {name: Crew(cluster, tmp_path, f"still-{name}", topic, **short(name)) for name in PROTOCOLS}
    watches = {name: Watch(cluster, f"still-{name}", topic) for name in PROTOCOLS}
    load = Load(cluster, topic)
    with ending(load, *watches.values(), *crews.values()), cluster.admin() as admin:
        for crew in crews.values():
            crew.start()
            crew.start()
        for crew in crews.values():
            until(lambda: all(member.held for member in crew.living), "both have a share")  # noqa: B023
            crew.settle()
        for crew in crews.values():
            crew.members[1].process.send_signal(signal.SIGSTOP)
        for crew in crews.values():
            until(lambda: len(crew.members[0].look().held) == PARTITIONS, "the other has all")  # noqa: B023
        woken_ns = time.monotonic_ns()
        for crew in crews.values():
            crew.members[1].process.send_signal(signal.SIGCONT)
        for crew in crews.values():
            until(lambda: any(sign == "!" for sign, _ in crew.members[1].look().rebalances), "it knows")  # noqa: B023
            crew.settle()
        load.end()
        for name, crew in crews.items():
            until(lambda: lag_of(admin, f"still-{name}") == 0, "lag reaches 0")  # noqa: B023
            watches[name].end()
            crew.close()
    for name, crew in crews.items():
        lost = [span for spans in crew.members[1].spans.values() for span in spans if span.lost]
        assert lost
        late = {run.at_ns for span in lost for run in span.runs if run.at_ns > woken_ns}
        assert len(late) <= 1, f"{name}: more was handed out than the poll in whose midst it was stopped"
        assert_handled(crew, load.ends)
        assert_committed(crew, watches[name])
        assert_one_owner(crew.members)
