"""
Holds a source to what it says of itself: killed at any step, paused while another takes over, with commits that fail or
stay unknown and a system that is away, each of its rows is in the topic once, and those of a split in their order.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from headrace_common.runtime.clock import SystemClock, limit_s, pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core.errors import Fault
from headrace_connect.core.source_commit import Rules
from headrace_connect.core.source_steps import CloseAsked
from headrace_connect.plugin import Position, Source, Split
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.ports import Steps
from headrace_connect.runtime.sending import BadRecords
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.testing.faults import HoldAt, KillAt, Killed
from headrace_connect.testing.memory import MemoryLog, MemorySourceLog, NoSteps, RawPipeline

LIMIT_S: Final = 60.0
_AWAY_MS: Final = 30
_RULES: Final = Rules(interval_ms=5, rows_max=10, retry_timeout_ms=5_000, retry_delay_ms_max=10)
_SETTINGS: Final = SourceTaskSettings(_RULES, poll_interval_ms=1, bad=BadRecords(tolerates=True))


class SourceCase(ABC):
    """A source system with rows, of one run."""

    rows: int = 30
    """So many are in it; several chunks of them."""
    ordered: bool = True
    """Whether each reading of a split gives its rows in the same order."""

    @abstractmethod
    def make(self) -> Source[Any]:
        """A new instance that reads them; as a new process makes it."""

    @abstractmethod
    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        """
        Which row a record is; different for each row, None for what is none. Values that are no text and no bytes come
        as JSON.
        """

    def go_away(self) -> bool:
        """Make the system unreachable, or cut its connections. False: this case cannot."""
        return False

    def come_back(self) -> None:  # noqa: B027 - only cases that go away need it
        """Make it reachable again."""

    def check(self, log: MemoryLog) -> None:  # noqa: B027 - only cases with more than rows need it
        """Raise ``AssertionError`` where something else is wrong with what was committed."""


NewCase = Callable[[], SourceCase]
Order = Mapping[Hashable, tuple[str, int]]
"""Of each row its split, and its place in that; rows without one may be anywhere."""


def check_source(new_case: NewCase) -> None:
    """
    All that follows; ``new_case`` gives a fresh system each time.

    Raises:
        AssertionError: says what was done, and which rows are missing or twice.
    """
    order = asyncio.run(_find_order(new_case))
    asyncio.run(check_positions(new_case))
    for check in (check_kills, check_commits, check_two_holders, check_away):
        asyncio.run(check(new_case, order))


async def _find_order(new_case: NewCase) -> Order:
    case = new_case()
    order: dict[Hashable, tuple[str, int]] = {}
    for split, _, rows in await _read_all(case, {}) if case.ordered else ():
        for row in rows:
            order.setdefault(row, (split, len(order)))
    return order


async def check_positions(new_case: NewCase) -> None:
    """``read(after)`` goes on exactly behind the position of any chunk, also in another instance."""
    case = new_case()
    chunks = await _read_all(case, {})
    if not type(case.make()).exactly_once:
        return
    for number in range(len(chunks) + 1):
        positions = {split: position for split, position, _ in chunks[:number]}
        rest = await _read_all(case, positions)
        before = [row for _, _, rows in chunks[:number] for row in rows]
        after = [row for _, _, rows in rest for row in rows]
        _expect(before + after, case.rows, f"read behind chunk {number} of {len(chunks)}", exact=True)


async def check_kills(new_case: NewCase, order: Order) -> None:
    """Killed at each step in turn, and once more at the next start."""
    steps = KillAt()
    await _judge(new_case(), [steps], "not disturbed", order)
    assert steps.reached.count("connect.source.committed") > 1, "the case has rows for more than one commit"
    for number in range(1, len(steps.reached) + 1):
        what = f"killed at step {number}, {steps.reached[number - 1]}"
        await _judge(new_case(), [KillAt(number), KillAt()], what, order)
        await _judge(new_case(), [KillAt(number), KillAt(3), KillAt()], f"{what}, and again at the next start", order)


async def check_commits(new_case: NewCase, order: Order) -> None:
    """Commits that are not answered, that do not take place, and ids that are forgotten."""
    for name in ("unknown", "undelivered", "forgotten"):
        for numbers in ({1}, {2}, set(range(1, 100, 2))):
            log = MemoryLog()
            setattr(log, name, numbers)
            await _judge(new_case(), [KillAt()], f"commits {sorted(numbers)[:3]}… {name}", order, log)


async def check_two_holders(new_case: NewCase, order: Order) -> None:
    """Paused at each step while a newer task reads everything, then let go."""
    steps = KillAt()
    await _judge(new_case(), [steps], "not disturbed", order)
    for number in range(1, len(steps.reached) + 1):
        await _overtaken(new_case(), number, f"paused at step {number}, {steps.reached[number - 1]}", order)


async def check_away(new_case: NewCase, order: Order) -> None:
    """The system goes away at each step, and comes back a moment later; or connections are cut there."""
    case = new_case()
    if not case.go_away():
        return
    case.come_back()
    steps = KillAt()
    await _judge(new_case(), [steps], "not disturbed", order)
    for number in range(1, len(steps.reached) + 1):
        case, log, hold = new_case(), MemoryLog(), HoldAt(number)
        what = f"the system was away from step {number} on, {steps.reached[number - 1]}"
        try:
            async with limit_s(LIMIT_S), TaskRunner() as runner:
                run = runner.start(_run(case, log, 1, hold), name="the task")
                hold.end_with(run)
                await hold.here.wait()
                case.go_away()
                hold.go.set()
                await pause_ms(_AWAY_MS)
                case.come_back()
                await run
        except TimeoutError:
            raise AssertionError(f"{what}: it does not come to an end; last steps: {hold.reached[-5:]}") from None
        _check_log(case, log, what, order)


async def _overtaken(case: SourceCase, number: int, what: str, order: Order) -> None:
    log, hold = MemoryLog(), HoldAt(number)
    async with TaskRunner() as runner:
        old = runner.start(_swallow(_run(case, log, 1, hold)), name="the old task")
        hold.end_with(old)
        async with limit_s(LIMIT_S):
            await hold.here.wait()
            await _run(case, log, 2, NoSteps())
            hold.go.set()
            await old
    _check_log(case, log, what, order)


async def _judge(
    case: SourceCase, runs: Sequence[KillAt], what: str, order: Order, log: MemoryLog | None = None
) -> None:
    log = log or MemoryLog()
    for generation, steps in enumerate(runs):
        try:
            async with limit_s(LIMIT_S):
                await _run(case, log, generation, steps)
        except Killed:
            continue
        except TimeoutError:
            raise AssertionError(f"{what}: it does not come to an end; last steps: {steps.reached[-5:]}") from None
    _check_log(case, log, what, order)


def _check_log(case: SourceCase, log: MemoryLog, what: str, order: Order) -> None:
    exact = type(case.make()).exactly_once
    topics = {topic: _rows_of(case, records) for topic, records in log.records.items()}
    _expect([row for rows in topics.values() for row in rows], case.rows, what, exact=exact)
    for rows in topics.values():
        last: dict[str, int] = {}
        for row in dict.fromkeys(rows):
            if row in order:
                split, place = order[row]
                assert place > last.get(split, -1), f"{what}: {row!r} comes behind a later row of its split"
                last[split] = place
    case.check(log)


def _rows_of(case: SourceCase, records: Sequence[Mapping[str, Any]]) -> list[Hashable]:
    found = (case.identify(one["key"], one["value"]) for one in records)
    return [row for row in found if row is not None]


def _expect(found: Sequence[Hashable], rows: int, what: str, *, exact: bool) -> None:
    counts = Counter(found)
    twice = [row for row, count in counts.items() if count > 1]
    assert len(counts) == rows, f"{what}: {len(counts)} of {rows} rows are in the topic"
    assert not exact or not twice, f"{what}: {len(twice)} rows are there more than once, such as {twice[0]!r}"


async def _run(case: SourceCase, log: MemoryLog, generation: int, steps: Steps) -> None:
    """A task until it is idle."""
    source = case.make()
    splits = await _splits(source)
    outside = SourceOutside(MemorySourceLog(log, generation), RawPipeline(), SystemClock(), steps)
    task = SourceTask(case.make(), splits, outside, _SETTINGS)

    async def close_when_idle() -> None:
        while not task.is_idle:
            await pause_ms(1)
        task.ask(CloseAsked())

    async with TaskRunner() as runner:
        runner.start(close_when_idle(), name="wait until it is idle")
        await task.run()


async def _swallow(run: Any) -> None:
    """A task that was overtaken ends; how it says so is its affair, but it may only say that."""
    try:
        await run
    except TaskFailed as failed:
        if failed.fault is not Fault.FENCED:
            raise


async def _splits(source: Source[Any]) -> Sequence[Split]:
    calls = Calls(source)
    try:
        await calls.call(source.start)
        splits: Sequence[Split] = await calls.call(source.splits)
        return splits
    finally:
        await calls.stop()


async def _read_all(case: SourceCase, after: dict[str, Position]) -> list[tuple[str, Position, list[Hashable]]]:
    """Split, position and rows of each chunk, until each split has no more."""
    source = case.make()
    calls = Calls(source)
    found: list[tuple[str, Position, list[Hashable]]] = []
    try:
        await calls.call(source.start)
        for split in await calls.call(source.splits):
            async with limit_s(LIMIT_S):
                async for chunk, _ in calls.iterate(source.read, split, after.get(split.id)):
                    records = [one for out in RawPipeline().apply(chunk).outgoing for one in out.table.to_pylist()]
                    rows = [case.identify(one["key"], one["value"]) for one in records]
                    found.append((split.id, chunk.position, rows))
                    if chunk.drained:
                        break
    finally:
        await calls.stop()
    return found
