"""
This worker's share of the work: what it declares, what it is given, and a seat for each thing that it has.

Who leaves says so last: an item is given up when nothing of it runs here any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace.work_types import GivenItem, WorkChange
from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import Clock, Deadline, limit_ms
from headrace_common.runtime.logs import logger
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core.errors import Fault
from headrace_connect.core.host_messages import Told, TopicSeen
from headrace_connect_worker.core.encoding import encode
from headrace_connect_worker.core.placing import (
    LEADER,
    TaskItem,
    WatcherItem,
    declaration_of,
    list_items,
    parse,
    task_id,
    watcher_id,
)
from headrace_connect_worker.core.records import RunState, Status, TargetState, TopicUsed, Work
from headrace_connect_worker.core.seat import Crashed, Reported, Say, Spec
from headrace_connect_worker.engine.events import Events
from headrace_connect_worker.engine.following import Following
from headrace_connect_worker.engine.handing import Handing
from headrace_connect_worker.engine.leading import Leading
from headrace_connect_worker.engine.place import Place
from headrace_connect_worker.engine.reporting import Reporting
from headrace_connect_worker.engine.seats import Runs, SeatRunner, TaskRuns, WatchRuns
from headrace_connect_worker.ports import (
    HostCrashed,
    HostEvent,
    Hosts,
    Membership,
    TaskReported,
    WatchFailed,
    WorkFound,
)

POLL_MS: Final = 500.0
WATCH_MS: Final = 1_500.0
"""A watcher begins so much later where there are tasks: they stand still, and what watches them does not matter yet."""
SETTLE_MS: Final = 100.0
"""What is taken away again at once is not begun: each worker's declaration shares anew."""
NEW_MS: Final = 2_000.0
"""So long after this worker's declaration others declare the same."""
GATHER_MS: Final = 10.0
"""Changes that come together are declared together."""
WORK_BYTES_MAX: Final = 4 << 20
"""Of what a watcher has found, as JSON: it is one record, and so are the splits of a task."""
NOTHING: Final = "It has found nothing to read, and so has no tasks; it looks again and again."
_log = logger(__name__)


@dataclass(slots=True, eq=False)
class _Held:
    """An item of this worker, and what runs for it."""

    epoch: int
    ends: Callable[[], None]
    running: asyncio.Task[None]
    runner: SeatRunner | None = None


class Working:
    """See the module's text."""

    def __init__(
        self,
        membership: Membership,
        hosts: Hosts,
        following: Following,
        reporting: Reporting,
        leading: Leading,
        events: Events,
        clock: Clock,
        place: Place,
    ) -> None:
        self._membership = membership
        self._hosts = hosts
        self._following = following
        self._reporting = reporting
        self._leading = leading
        self._events = events
        self._clock = clock
        self._place = place
        self._held: dict[str, _Held] = {}
        self._specs: dict[str, Spec | None] = {}
        self._handing = Handing(following, place, self._held.__contains__, self._end)
        self._declared_ms = 0.0
        self._closing = False
        self._retired = False

    @property
    def items(self) -> frozenset[str]:
        """What this worker has now, and what it is giving up."""
        return frozenset(self._held)

    # --- loops --------------------------------------------------------------------------------------------------------

    async def declare(self) -> None:
        """Say what there is to do, at first and whenever it is something else; for good."""
        await self._following.until(lambda: self._following.is_ready)
        said, at = None, None
        state = self._following.state
        with self._following.bell.heard() as ear:
            while True:
                await ear.wait()
                if said is not None:
                    await self._clock.sleep_ms(GATHER_MS)
                ear.clear()
                if not self._following.is_exact or state.offset == at:
                    continue
                at, items = state.offset, list_items(state)
                if items != said and not self._retired:
                    self._membership.declare(declaration_of(state, items))
                    said, self._declared_ms = items, self._clock.monotonic_ms()

    async def share(self, tasks: TaskRunner) -> None:
        """
        Take what this worker is given, and end what is taken from it, until it leaves.

        Raises:
            HeadraceError: it cannot be a member, and waiting does not mend that.
        """
        while True:
            try:
                change = await self._membership.poll(POLL_MS)
            except HeadraceError as error:
                if self._closing:
                    return
                if not error.retriable:
                    raise
                _log.warning("the work group cannot be reached: %s", error)
                continue
            if change is not None:
                self._take(change, tasks)

    async def hear(self) -> None:
        """Give what hosts say to the seats; for good."""
        async for event in self._hosts.events():
            self._dispatch(event)

    async def leave(self, ms: float) -> None:
        """
        End all that runs here, and begin nothing more; at most so long. Where there are others, they get it connector
        by connector; else nothing is given up by it: that would come back to this worker as long as it is a member.
        """
        self._closing = True
        deadline = Deadline(ms)
        if self._is_shared():
            self._retired = True
            self._membership.retire()
            with suppress(TimeoutError):
                async with limit_ms(ms / 2):
                    await self._handing.hand_over([item for item in self._held if item != LEADER])
        left = list(self._held.values())
        for one in left:
            one.ends()
        if left:
            with suppress(TimeoutError):
                async with deadline.limit():
                    await asyncio.wait([one.running for one in left])

    def _is_shared(self) -> bool:
        """Whether it has something to hand over, and somebody else has something to do: then there are others."""
        return bool(self._held) and any(item.id not in self._held for item in list_items(self._following.state))

    def _end(self, item: str) -> None:
        if item in self._held:
            self._held[item].ends()

    # --- items --------------------------------------------------------------------------------------------------------

    def _take(self, change: WorkChange, tasks: TaskRunner) -> None:
        for given in change.raised:
            if given.id in self._held:
                self._held[given.id].epoch = given.epoch
        for item in sorted(change.revoked | change.lost):
            if item not in self._held:
                self._membership.give_up((item,))
            elif item in change.lost:
                self._end(item)
        if self._closing:
            return
        if moved := [item for item in change.revoked if item in self._held]:
            tasks.start(self._handing.hand_over(moved), name="hand items over")
        for given in change.assigned:
            self._begin(given, tasks)

    def _begin(self, given: GivenItem, tasks: TaskRunner) -> None:
        assert given.id not in self._held, "it was given up before it comes again"
        match parse(given.id):
            case None:
                leading = tasks.start(self._lead(), name="leading")
                self._held[given.id] = _Held(given.epoch, lambda: self._end_leading(leading), leading)
            case WatcherItem(name):
                self._sit(given, WatchRuns(self._hosts, name), name, None, tasks)
            case TaskItem(name, task):
                self._sit(given, TaskRuns(self._hosts, name, task), name, task, tasks)

    async def _lead(self) -> None:
        await self._leading.run(
            lambda: self._held[LEADER].epoch if LEADER in self._held else 0,
            lambda token: self._membership.refuse(LEADER, token),
        )

    def _end_leading(self, leading: asyncio.Task[None]) -> None:
        def ended(_: asyncio.Task[None]) -> None:
            self._gone(LEADER)

        leading.add_done_callback(ended)
        leading.cancel()

    def _sit(self, given: GivenItem, runs: Runs, name: str, task: int | None, tasks: TaskRunner) -> None:
        item = given.id
        runner = SeatRunner(
            runs,
            partial(self._wanted, item, name, task),
            partial(self._say, item, name, task),
            partial(self._following.bell_of, name),
            self._clock,
            self._settle_ms(name, task),
        )
        running = tasks.start(self._run(item, runner, name, task), name=item)
        self._held[item] = _Held(given.epoch, runner.leave, running, runner)

    def _settle_ms(self, name: str, task: int | None) -> float:
        """So long it is left alone before it begins."""
        connector = self._following.state.connectors.get(name)
        if task is None and connector is not None and connector.tasks is not None and connector.tasks.shares:
            return WATCH_MS
        is_new = self._clock.monotonic_ms() - self._declared_ms < NEW_MS
        return SETTLE_MS if is_new else 0

    async def _run(self, item: str, runner: SeatRunner, name: str, task: int | None) -> None:
        await runner.run()
        self._following.forget_bell(name)
        self._reporting.forget(Status(name, task, None))
        self._events.forget(name, task)
        if task is None:
            self._reporting.forget(Work(name, ""))
        self._gone(item)

    def _gone(self, item: str) -> None:
        self._held.pop(item, None)
        self._specs.pop(item, None)
        self._following.bell.ring()
        if self._retired or not self._closing:
            self._membership.give_up((item,))

    # --- what is wanted -----------------------------------------------------------------------------------------------

    def _wanted(self, item: str, name: str, task: int | None) -> Spec | None:
        """As the config topic says; while it is being read, as it said."""
        if self._following.is_exact:
            self._specs[item] = self._watcher_spec(name) if task is None else self._task_spec(name, task)
        return self._specs.get(item)

    def _watcher_spec(self, name: str) -> Spec | None:
        state = self._following.state
        connector = state.connectors.get(name)
        if connector is None:
            return None
        restart = state.watcher_restart(name)
        return Spec(connector.config_offset, connector.config, (), connector.target, restart)

    def _task_spec(self, name: str, task: int) -> Spec | None:
        state = self._following.state
        connector = state.connectors.get(name)
        if connector is None or connector.tasks is None or task >= len(connector.tasks.shares):
            return None
        tasks = connector.tasks
        restart = state.task_restart(name, task)
        return Spec(tasks.generation, tasks.config, tasks.shares[task], connector.target, restart)

    # --- what is said -------------------------------------------------------------------------------------------------

    def _say(self, item: str, name: str, task: int | None, said: Say) -> None:
        epoch = self._held[item].epoch
        status = Status(name, task, said.state, said.trace, self._place.worker_id, epoch, said.fenced)
        self._reporting.say(status)
        self._events.put_state(name, task, said.state, said.trace)

    def _dispatch(self, event: HostEvent) -> None:
        now_ms = self._clock.monotonic_ms()
        match event:
            case TaskReported(name, task, generation, state, trace, fault):
                self._tell(task_id(name, task), Reported(generation, state, trace, fault, now_ms))
            case WorkFound():
                self._found(event, now_ms)
            case WatchFailed(name, offset, fault, trace):
                state = RunState.RESTARTING if fault is Fault.WORLD else RunState.FAILED
                self._tell(watcher_id(name), Reported(offset, state, trace, fault, now_ms))
            case TopicSeen(name, task, topic):
                if topic not in self._following.statuses.topics(name):
                    self._reporting.put(TopicUsed(name, topic, task, self._clock.now_ms()))
            case Told(name, task, kind, text, detail):
                self._events.put(name, task, kind, text, detail)
            case HostCrashed(name, trace):
                for item in (watcher_id(name), *(one for one in self._held if _is_task_of(one, name))):
                    self._tell(item, Crashed(trace, now_ms))

    def _found(self, event: WorkFound, now_ms: float) -> None:
        item = watcher_id(event.connector)
        held = self._held.get(item)
        if held is None:
            return
        work = Work(
            event.connector,
            event.kind,
            event.config_offset,
            event.guarantee,
            event.tasks,
            event.splits,
            self._place.worker_id,
            held.epoch,
        )
        size = len(encode(work)[1] or b"")
        if size > WORK_BYTES_MAX:
            text = f"{len(event.splits)} splits have {size} bytes as JSON; {WORK_BYTES_MAX} is the most"
            self._tell(item, Reported(event.config_offset, RunState.FAILED, text, Fault.CONFIG, now_ms))
            return
        connector = self._following.state.connectors.get(event.connector)
        paused = connector is not None and connector.target is TargetState.PAUSED
        state = RunState.PAUSED if paused else RunState.RUNNING
        nothing = event.kind == "source" and not event.splits
        self._tell(item, Reported(event.config_offset, state, NOTHING if nothing else "", now_ms=now_ms))
        self._reporting.say(work)

    def _tell(self, item: str, event: Reported | Crashed) -> None:
        held = self._held.get(item)
        if held is not None and held.runner is not None:
            held.runner.tell(event)


def _is_task_of(item: str, name: str) -> bool:
    parsed = parse(item)
    return isinstance(parsed, TaskItem) and parsed.name == name
