"""
Holds a sink to its guarantee: killed at any step, paused while another takes over, beside another that gets one of its
partitions, with a target that is away and records that come again in other batches, the target has each record as often
as the guarantee says, and those of a partition in their order.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core.errors import Fault, RetriableError
from headrace_connect.core.sink_commit import SinkRules
from headrace_connect.plugin import Guarantee, Sink
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.ports import Steps
from headrace_connect.runtime.sink_task import SinkOutside, SinkTask, SinkTaskSettings
from headrace_connect.testing.faults import HoldAt, KillAt, Killed
from headrace_connect.testing.group import MemoryGroup, MemoryTopic
from headrace_connect.testing.memory import TOPIC, JsonPipeline, MemoryDead, MemoryDeadLetters, NoSteps

T = TypeVar("T")
LIMIT_S: Final = 60.0
_BATCH: Final = 7
_OTHER_BATCH: Final = 4
_STARTS_MAX: Final = 1_000
_AGAIN_MS: Final = 5


class SinkCase(ABC):
    """A target that is empty, of one run."""

    rows: int = 30
    bad: frozenset[int] = frozenset()
    """Records that the target will never take; they have to become dead letters."""
    partitions: int = 2
    """Of their topic; records are dealt out one by one."""
    ordered: bool = True
    """Whether ``stored`` has the records of a partition in the order in which the target took them."""

    @abstractmethod
    def make(self) -> Sink[Any]:
        """A new instance that writes into the target; as a new process makes it."""

    @abstractmethod
    def stored(self) -> Sequence[int]:
        """The number of each record that is in the target now, as often as it is there."""

    def value(self, number: int) -> Any:
        """The value of a record: what JSON can hold."""
        return {"n": number}

    def go_away(self) -> bool:
        """Make the target unreachable. False: this case cannot."""
        return False

    def come_back(self) -> None:  # noqa: B027 - only cases that go away need it
        """Make it reachable again."""


NewCase = Callable[[], SinkCase]


def check_sink(new_case: NewCase) -> None:
    """
    All that follows; ``new_case`` gives an empty target each time.

    Raises:
        AssertionError: says what was done, and which records are missing or twice.
    """
    for check in (check_kills, check_repeats, check_two_holders, check_shared, check_away, check_rewind):
        asyncio.run(check(new_case))


class _World:
    """A topic, a group, dead letters, and the target of a case."""

    def __init__(self, case: SinkCase) -> None:
        self.case = case
        values = [case.value(number) for number in range(case.rows)]
        self.topic = MemoryTopic.of(values, case.partitions)
        self.dead = MemoryDead()
        self.over = False
        """Whether those that share the topic are to end."""

    async def run(self, steps: Steps, rows_max: int = _BATCH) -> None:
        """The one task of the group, until it is idle."""
        await _again(
            lambda: self._run(steps, MemoryGroup(self.topic, rows_max), rows_max, 0, lambda task: task.is_idle)
        )

    async def share(self, steps: Steps, task: int, *, waits: bool = True) -> None:
        """
        One of two tasks, until the world is over; the second one gets the last partition.

        Args:
            waits: until the first one has given it back; else that hears of it later.
        """
        last = self.case.partitions - 1

        async def run() -> None:
            group = MemoryGroup(self.topic, _BATCH, [last] if task else None, waits=waits and bool(task))
            await self._run(steps, group, _BATCH, task, lambda _: self.over)

        await _again(run)

    async def _run(
        self, steps: Steps, group: MemoryGroup, rows_max: int, number: int, ends: Callable[[SinkTask], bool]
    ) -> None:
        sink = self.case.make()
        rules = SinkRules(
            keeps_positions=sink.guarantee is Guarantee.POSITIONS,
            tolerates=True,
            interval_ms=5,
            rows_max=10,
            retry_timeout_ms=5_000,
            retry_delay_ms_max=10,
        )
        outside = SinkOutside(group, JsonPipeline(), MemoryDeadLetters(self.dead, number), SystemClock(), steps)
        task = SinkTask(sink, outside, SinkTaskSettings("case", number, rules, rows_max))

        async def close_at_the_end() -> None:
            while not ends(task):
                await pause_ms(1)
            task.close()

        async with TaskRunner() as runner:
            runner.start(close_at_the_end(), name="wait for its end")
            try:
                await task.run()
            finally:
                await group.close()

    def check(self, what: str) -> None:
        """
        Raises:
            AssertionError: the target has not what it should have.
        """
        guarantee = self.case.make().guarantee
        found = self.case.stored()
        stored, dead = Counter(found), Counter(self._dead_numbers())
        wanted = set(range(self.case.rows))
        missing = sorted(wanted - self.case.bad - stored.keys())
        assert not missing, f"{what}: {len(missing)} records are not in the target, such as {missing[0]}"
        wrong = sorted(stored.keys() - wanted | stored.keys() & self.case.bad)
        assert not wrong, f"{what}: the target has {wrong[0]}, which it was not given or cannot take"
        lost = sorted(self.case.bad - dead.keys())
        assert not lost, f"{what}: {len(lost)} bad records are no dead letters, such as {lost[0]}"
        more = sorted(dead.keys() - self.case.bad)
        assert not more, f"{what}: {len(more)} good records are dead letters, such as {more[0]}"
        twice = sorted(number for number, count in stored.items() if count > 1)
        exact = guarantee is not Guarantee.AT_LEAST_ONCE
        assert not (exact and twice), f"{what}: {len(twice)} records are there more than once, such as {twice[0]}"
        late = self._find_late(found) if self.case.ordered else None
        assert late is None, f"{what}: {late} is in the target behind a later record of its partition"
        if guarantee is Guarantee.POSITIONS:
            again = sorted(number for number, count in dead.items() if count > 1)
            assert not again, f"{what}: {len(again)} dead letters are there more than once, such as {again[0]}"
            assert not self.dead.prepared, f"{what}: dead letters are prepared, and nobody decides them"

    def _find_late(self, found: Sequence[int]) -> int | None:
        """A record that came first behind a later one; what came again may be anywhere."""
        last: dict[int, int] = {}
        for number in dict.fromkeys(found):
            if number < last.get(number % self.case.partitions, -1):
                return number
            last[number % self.case.partitions] = number
        return None

    def _dead_numbers(self) -> list[int]:
        by_value = {str(self.case.value(number)): number for number in range(self.case.rows)}
        values = (JsonPipeline.read(one["value"]) for one in self.dead.records)
        return [by_value[str(value)] for value in values]


async def _judge(case: SinkCase, runs: Sequence[KillAt], what: str) -> _World:
    world = _World(case)
    for steps in runs:
        try:
            async with limit_s(LIMIT_S):
                await world.run(steps)
        except Killed:
            case.come_back()
        except TimeoutError:
            raise AssertionError(f"{what}: it does not come to an end; last steps: {steps.reached[-5:]}") from None
    world.check(what)
    return world


async def check_kills(new_case: NewCase) -> None:
    """Killed at each step in turn, and once more at the next start."""
    steps = KillAt()
    await _judge(new_case(), [steps], "not disturbed")
    assert steps.reached.count("connect.sink.committed") > 1, "the case has rows for more than one commit"
    for number in range(1, len(steps.reached) + 1):
        what = f"killed at step {number}, {steps.reached[number - 1]}"
        await _judge(new_case(), [KillAt(number), KillAt()], what)
        await _judge(new_case(), [KillAt(number), KillAt(2), KillAt()], f"{what}, and again at the next start")


async def check_repeats(new_case: NewCase) -> None:
    """Everything comes again, in other batches: the group's offsets were lost."""
    steps = KillAt()
    await _judge(new_case(), [steps], "not disturbed")
    for number in (0, len(steps.reached) // 2):
        world = _World(new_case())
        try:
            await world.run(KillAt(number))
        except Killed:
            world.case.come_back()
        for rows_max in (_OTHER_BATCH, _BATCH):
            world.topic.forget_offsets()
            async with limit_s(LIMIT_S):
                await world.run(NoSteps(), rows_max)
        world.check(f"everything again in other batches after step {number}")


async def check_two_holders(new_case: NewCase) -> None:
    """Paused at each step while another member writes everything, then let go."""
    steps = KillAt()
    await _judge(new_case(), [steps], "not disturbed")
    for number in range(1, len(steps.reached) + 1):
        await _overtaken(_World(new_case()), number, f"paused at step {number}, {steps.reached[number - 1]}")


async def _overtaken(world: _World, number: int, what: str) -> None:
    hold = HoldAt(number)
    async with TaskRunner() as runner:
        old = runner.start(_swallow(world.run(hold)), name="the old task")
        hold.end_with(old)
        async with limit_s(LIMIT_S):
            await hold.here.wait()
            await world.run(NoSteps(), _OTHER_BATCH)
            hold.go.set()
            await pause_ms(5)
            await world.run(NoSteps(), _OTHER_BATCH)
            old.cancel()
            await asyncio.wait([old])
            if world.dead.prepared:  # it has ended between two steps; whoever starts next settles that
                await world.run(NoSteps(), _OTHER_BATCH)
    world.check(what)


async def check_shared(new_case: NewCase) -> None:
    """
    At each step a second task joins, and gets a partition of the first, which goes on with the others: it is given
    back; or the second one is killed later on, and the first has it again; or it is lost, and the first hears of that
    when the second has written all of it.
    """
    case = new_case()
    if case.partitions < 2:
        return
    steps = KillAt()
    await _judge(case, [steps], "not disturbed")
    count = len(steps.reached)
    for number, step in enumerate(steps.reached, 1):
        what = f"a second task from step {number} on, {step}"
        await _shared(_World(new_case()), number, KillAt(), what)
        kill = 1 + number % count
        await _shared(_World(new_case()), number, KillAt(kill), f"{what}, and killed at its step {kill}")
        await _shared(_World(new_case()), number, KillAt(), f"a partition lost at step {number}, {step}", waits=False)


async def _shared(world: _World, number: int, steps: KillAt, what: str, *, waits: bool = True) -> None:
    hold, last = HoldAt(number), world.topic.partitions[-1]
    try:
        async with limit_s(LIMIT_S), TaskRunner() as runner:
            first = runner.start(world.share(hold, 0), name="the first task")
            hold.end_with(first)
            await hold.here.wait()
            other = runner.start(_until_killed(world.share(steps, 1, waits=waits)), name="the second task")
            while not waits and (last.committed or 0) < last.end:
                await pause_ms(1)
            hold.go.set()
            while not world.topic.is_committed:
                await pause_ms(1)
            world.over = True
            await asyncio.wait([first, other])
    except TimeoutError:
        raise AssertionError(f"{what}: it does not come to an end; last steps: {hold.reached[-5:]}") from None
    if world.dead.prepared:  # of the second one; whoever has its number next settles that
        await _settle(world, 1)
    world.check(what)


async def _settle(world: _World, task: int) -> None:
    sink = world.case.make()
    calls = Calls(sink)
    try:
        await calls.call(sink.start)
        dead = MemoryDeadLetters(world.dead, task)
        while (token := await dead.undecided()) is not None:
            await dead.decide(token, commit=await _again(partial(calls.call, sink.settle, token)))
    finally:
        await calls.stop()


async def _again(attempt: Callable[[], Awaitable[T]]) -> T:
    """What starts again, as in a host, where the target was at fault: another holder may have locked it."""
    for _ in range(_STARTS_MAX):
        with suppress(RetriableError):
            return await attempt()
        await pause_ms(_AGAIN_MS)
    return await attempt()


async def _until_killed(run: Any) -> None:
    with suppress(Killed):
        await run


async def _swallow(run: Any) -> None:
    try:
        await run
    except TaskFailed as failed:
        if failed.fault not in (Fault.FENCED, Fault.WORLD):
            raise


async def check_away(new_case: NewCase) -> None:
    """The target goes away at each step, and comes back a moment later."""
    case = new_case()
    if not case.go_away():
        return
    case.come_back()
    steps = KillAt()
    await _judge(new_case(), [steps], "not disturbed")
    for number in range(1, len(steps.reached) + 1):
        case = new_case()
        world = _World(case)
        async with limit_s(LIMIT_S), TaskRunner() as runner:
            hold = HoldAt(number)
            run = runner.start(world.run(hold), name="the task")
            hold.end_with(run)
            await hold.here.wait()
            case.go_away()
            hold.go.set()
            await pause_ms(10)
            case.come_back()
            await run
        world.check(f"the target was away from step {number} on, {steps.reached[number - 1]}")


async def check_rewind(new_case: NewCase) -> None:
    """
    Paused at each kind of step while all positions are set back to the beginning, or forgotten, and another member
    writes everything again; then let go. Only of sinks that have ``rewind``, and can go back.
    """
    if not _rewinds(new_case().make()):
        return
    steps = KillAt()
    await _judge(new_case(), [steps], "not disturbed")
    for number, step in enumerate(steps.reached, 1):
        if step in steps.reached[number:]:
            continue
        for position in (0, None):
            world = _World(new_case())
            what = f"positions set to {position} at step {number}, {step}"
            if not await _rewound(world, number, position, what):
                return


def _rewinds(sink: Sink[Any]) -> bool:
    return sink.guarantee is Guarantee.POSITIONS and type(sink).rewind is not Sink.rewind


async def _rewound(world: _World, number: int, position: int | None, what: str) -> bool:
    """False: it cannot go back."""
    hold = HoldAt(number)
    async with TaskRunner() as runner:
        old = runner.start(_swallow(world.run(hold)), name="the old task")
        hold.end_with(old)
        async with limit_s(LIMIT_S):
            await hold.here.wait()
            before = Counter(world.case.stored())
            goes_back = await _rewind(world, position)
            if goes_back:
                world.topic.forget_offsets()
                await world.run(NoSteps(), _OTHER_BATCH)
                written = Counter(world.case.stored())
            hold.go.set()
            await world.run(NoSteps(), _OTHER_BATCH)
            old.cancel()
            await asyncio.wait([old])
    if not goes_back:
        return False
    for record in set(range(world.case.rows)) - world.case.bad:
        assert written[record] >= 1, f"{what}: {record} is not there"
        most = before[record] + 1
        assert written[record] <= most, f"{what}: {record} is there {written[record]} times, and {most} were asked for"
    later = Counter(world.case.stored())
    assert later == written, f"{what}: the task of before writes {list(later - written) or list(written - later)}"
    return True


async def _rewind(world: _World, position: int | None) -> bool:
    calls = Calls(world.case.make())
    sink: Any = calls.connector
    places = [TopicPartition(TOPIC, one.number) for one in world.topic.partitions]
    try:
        await calls.call(sink.start)
        await _again(partial(calls.call, sink.rewind, dict.fromkeys(places, position)))
    except InvalidConfig:
        return False
    finally:
        await calls.stop()
    return True
