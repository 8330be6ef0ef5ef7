"""What hosts report and what the engine is told of it; the processes are doubles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from headrace_common.runtime.clock import SystemClock, give_way
from headrace_connect.core import host_messages as messages
from headrace_connect.core.counts import Counts
from headrace_connect.core.errors import Fault
from headrace_connect.core.host_messages import Command, Report
from headrace_connect.core.task import State
from headrace_connect_worker.adapters import host_processes
from headrace_connect_worker.adapters.host_process import HostSettings
from headrace_connect_worker.adapters.host_processes import HostProcesses
from headrace_connect_worker.config import HostLimits
from headrace_connect_worker.core.hosting import Work
from headrace_connect_worker.core.records import RunState, TargetState
from headrace_connect_worker.ports import (
    HostCrashed,
    HostEvent,
    HostUnavailable,
    StartTask,
    TaskReported,
    WatchFailed,
    WorkFound,
)

MIB = 1 << 20


class FakeHost:
    """Satisfies what is used of ``HostProcess``."""

    def __init__(
        self,
        label: str,
        start: object,
        settings: HostSettings,
        clock: object,
        on_report: Callable[[Report], None],
        whose: Callable[[], object],
    ) -> None:
        self.report = on_report
        self.memory_max = 0
        self.memory = 0
        self.sent: list[Command] = []
        self.was_open = True
        self.trace = "it was killed"
        self.broken = False
        self._over = asyncio.Event()

    async def run(self) -> str:
        await self._over.wait()
        return self.trace

    async def opened(self) -> None:
        await give_way()

    def send(self, command: Command) -> None:
        if self.broken:
            raise HostUnavailable(self.trace)
        self.sent.append(command)

    def kill(self, why: str) -> None:
        self.trace = why
        self._over.set()

    async def end(self) -> None:
        self._over.set()


@pytest.fixture
async def hosts(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostProcesses]:
    monkeypatch.setattr(host_processes, "HostProcess", FakeHost)
    async with HostProcesses(HostSettings({}), HostLimits(task_stop_ms_max=100), SystemClock()) as made:
        yield made


def only(hosts: HostProcesses) -> FakeHost:
    [host] = hosts._hosts.values()
    assert isinstance(host, FakeHost)
    return host


async def events(hosts: HostProcesses) -> list[HostEvent]:
    """Those that are there."""
    for _ in range(5):
        await give_way()
    found = list(hosts._events._events)
    hosts._events._events.clear()
    return found


def task(number: int = 0, generation: int = 7, **more: str) -> StartTask:
    config = {"connector.class": "files", **{key.replace("_", "."): value for key, value in more.items()}}
    return StartTask("a", number, config, (), generation)


def report(state: State, number: int = 0, generation: int = 7, fault: Fault | None = None) -> messages.TaskReport:
    return messages.TaskReport("a", number, generation, state, fault=fault)


async def test_no_event_of_a_task_comes_after_it_was_stopped(hosts: HostProcesses) -> None:
    await hosts.start(task(0))
    await hosts.start(task(1))
    host = only(hosts)
    host.report(report(State.RUNNING, 0))
    host.report(report(State.RUNNING, 1))
    host.report(messages.TopicSeen("a", 0, "t"))
    stopping = asyncio.create_task(hosts.stop("a", 0))
    await give_way()
    assert host.sent[-1] == messages.StopTask("a", 0)
    host.report(report(State.RESTARTING, 0))
    host.report(messages.TopicSeen("a", 0, "u"))
    host.report(report(State.UNASSIGNED, 0))
    await stopping
    host.report(report(State.RUNNING, 0))
    assert await events(hosts) == [TaskReported("a", 1, 7, RunState.RUNNING)]


async def test_what_is_of_another_generation_or_watch_is_not_passed_on(hosts: HostProcesses) -> None:
    await hosts.start(task())
    await hosts.watch("a", {"connector.class": "files"}, 4)
    await hosts.watch("a", {"connector.class": "files"}, 5)
    host = only(hosts)
    host.report(report(State.RUNNING, generation=6))
    host.report(messages.WatchReport("a", 4, messages.Kind.SOURCE, "", 1, (messages.SplitForm("old"),)))
    host.report(messages.WatchFailed("a", 4, Fault.WORLD, "away"))
    assert await events(hosts) == []
    host.report(messages.WatchReport("a", 5, messages.Kind.SINK, "positions", 3))
    host.report(messages.WatchFailed("a", 5, Fault.WORLD, "away", "where"))
    assert await events(hosts) == [
        WorkFound("a", 5, "sink", "positions", (), 3),
        WatchFailed("a", 5, Fault.WORLD, "away\nwhere"),
    ]
    await hosts.unwatch("a")
    host.report(messages.WatchFailed("a", 5, Fault.WORLD, "away"))
    assert await events(hosts) == []


async def test_a_task_that_was_fenced_is_forgotten_and_its_host_ends(hosts: HostProcesses) -> None:
    await hosts.start(task())
    only(hosts).report(report(State.UNASSIGNED, fault=Fault.FENCED))
    assert await events(hosts) == [TaskReported("a", 0, 7, RunState.UNASSIGNED, fault=Fault.FENCED)]
    assert not hosts._hosts
    await hosts.stop("a", 0)
    await hosts.start(task(generation=8))
    assert only(hosts).sent == [messages.StartTask("a", 0, {"connector.class": "files"}, (), 8)]


async def test_what_a_task_waits_for_is_in_its_trace(hosts: HostProcesses) -> None:
    await hosts.start(task())
    only(hosts).report(messages.TaskReport("a", 0, 7, State.RESTARTING, "away", "where", Fault.WORLD, 3, 4_000))
    trace = "it is started again in 4 s: away\nwhere"
    assert await events(hosts) == [TaskReported("a", 0, 7, RunState.RESTARTING, trace, Fault.WORLD)]


async def test_a_host_may_have_the_memory_of_its_tasks(hosts: HostProcesses) -> None:
    await hosts.start(task(0, task_memory_max=str(100 * MIB)))
    assert only(hosts).memory_max == 100 * MIB
    await hosts.start(task(1, task_memory_max=str(50 * MIB)))
    assert only(hosts).memory_max == 150 * MIB
    await hosts.start(task(2, task_memory_max="0"))
    assert only(hosts).memory_max == 0
    only(hosts).report(report(State.UNASSIGNED, 2))
    assert only(hosts).memory_max == 150 * MIB


async def test_a_host_that_is_lost_is_told_once_and_begun_anew(hosts: HostProcesses) -> None:
    await hosts.start(task(0))
    await hosts.start(task(1))
    await hosts.watch("a", {"connector.class": "files"}, 4)
    first = only(hosts)
    first.kill("it was silent")
    assert await events(hosts) == [HostCrashed("a", "it was silent")]
    await hosts.start(task(0))
    assert only(hosts) is not first


async def test_a_task_that_cannot_be_given_to_its_host_leaves_nothing(hosts: HostProcesses) -> None:
    await hosts.start(task(0))
    host = only(hosts)
    host.broken = True
    with pytest.raises(HostUnavailable):
        await hosts.start(task(1))
    await hosts.set_target("a", 1, TargetState.PAUSED)
    host.broken = False
    await hosts.start(task(1))
    assert host.sent[-1] == messages.StartTask("a", 1, {"connector.class": "files"}, (), 7)


async def test_a_task_is_paused_and_resumed(hosts: HostProcesses) -> None:
    await hosts.start(task())
    await hosts.set_target("a", 0, TargetState.PAUSED)
    await hosts.set_target("a", 0, TargetState.STARTED)
    assert only(hosts).sent[1:] == [messages.PauseTask("a", 0), messages.ResumeTask("a", 0)]


async def test_a_topic_is_told(hosts: HostProcesses) -> None:
    await hosts.start(task())
    only(hosts).report(messages.TopicSeen("a", 0, "t"))
    assert await events(hosts) == [messages.TopicSeen("a", 0, "t")]


# --- figures --------------------------------------------------------------------------------------------------------


def counted(connector: str, number: int, records: int) -> messages.TaskCounts:
    return messages.TaskCounts(connector, number, Counts(records))


async def test_what_hosts_have_counted_is_there_while_their_tasks_are(hosts: HostProcesses) -> None:
    await hosts.start(task(0))
    await hosts.start(task(1))
    host = only(hosts)
    host.memory = 5 * MIB
    host.report(messages.Pong(1, (counted("a", 0, 7), counted("a", 1, 8), counted("b", 0, 9), counted("a", 2, 9))))
    assert {work: counts.read_records for work, counts in hosts.figures.counts.items()} == {
        Work("a", 0): 7,
        Work("a", 1): 8,
    }, "what it does not have counts nothing"
    assert list(hosts.figures.memory.values()) == [("a", 5 * MIB)]
    host.report(messages.Pong(2, (counted("a", 1, 10),)))
    assert hosts.figures.counts[Work("a", 0)].read_records == 7
    assert hosts.figures.counts[Work("a", 1)].read_records == 10
    stopping = asyncio.create_task(hosts.stop("a", 0))
    await give_way()
    host.report(report(State.UNASSIGNED, 0))
    await stopping
    assert list(hosts.figures.counts) == [Work("a", 1)]
    host.kill("killed by signal 11")
    await events(hosts)
    assert (hosts.figures.counts, hosts.figures.memory, hosts.figures.crashes) == ({}, {}, 1)


async def test_a_host_that_ends_as_it_was_told_has_not_crashed(hosts: HostProcesses) -> None:
    await hosts.start(task(0))
    host = only(hosts)
    host.report(messages.Pong(1, (counted("a", 0, 7),)))
    stopping = asyncio.create_task(hosts.stop("a", 0))
    await give_way()
    host.kill("it is not needed any more")
    await events(hosts)
    await stopping
    assert (hosts.figures.counts, hosts.figures.memory, hosts.figures.crashes) == ({}, {}, 0)
