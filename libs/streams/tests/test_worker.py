"""A worker: when it looks at the clock, and what it says of state that does not belong to its positions."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from libs.streams.tests.kit.feeding import raw

from headrace.errors import PositionOutOfRange
from headrace.records import Committed, PartitionTable, TopicPartition
from headrace.work_types import GivenItem
from headrace_common.core.errors import (
    InvalidConfig,
    NotFound,
    ProducerFenced,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from headrace_common.runtime.threads import run_in_thread
from headrace_streams import agg, string
from headrace_streams.adapters.memory_store import MemoryStores, MemoryTaskStore
from headrace_streams.config import StreamsConfig
from headrace_streams.core.errors import Blocked, NotAllowed, RegistryRefused, RegistryUnavailable
from headrace_streams.core.rows import NO_TIME
from headrace_streams.core.state.changelog import NotReadable, Progress, of_remark, remark
from headrace_streams.dsl.app import App
from headrace_streams.patience import Patience
from headrace_streams.plan.cut import Assembly, SubTopology
from headrace_streams.plan.known import Known
from headrace_streams.ports import InternalTopic, Shared, TopicFacts
from headrace_streams.runtime.assembling import Assembled, Assembling
from headrace_streams.runtime.owned import Kept, Owned, Spec, moved
from headrace_streams.runtime.pacing import Pace
from headrace_streams.runtime.stopping import before
from headrace_streams.runtime.taking import Differs, Taking
from headrace_streams.runtime.trouble import Trouble
from headrace_streams.runtime.worker import Worker
from headrace_streams.worker_process import Parent


class Stopped:
    """A clock that stands still, and a reader that notes how long it was to wait."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms
        self.waits: list[float] = []

    def monotonic_ms(self) -> float:
        return self.at_ms

    def now_ms(self) -> int:
        return int(self.at_ms)

    async def sleep_ms(self, ms: float) -> None:
        self.at_ms += ms

    async def poll(self, timeout_ms: float, max_rows: int) -> list[Any]:
        self.waits.append(timeout_ms)
        return []


class Quiet:
    """A membership in which nothing changes."""

    async def poll(self, timeout_ms: float = 0) -> None:
        return None

    def group_metadata(self) -> None:
        return None


def spec(part: str = "lines", partition: int = 0, changelog: TopicPartition | None = None) -> Spec:
    return Spec(SubTopology(part, (), (part,), ()), partition, (part,), {}, changelog)


def seated(outside: Any, *owned: Any, **settings: Any) -> Worker:
    """A worker that feeds these tasks."""
    worker = Worker(App("a"), StreamsConfig(**settings), outside)
    worker._following = SimpleNamespace(done=lambda: False)  # type: ignore[assignment]
    worker._assembled = Assembled(None, {}, frozenset())  # type: ignore[arg-type]
    worker._sit(Quiet())  # type: ignore[arg-type]
    worker._here.owned |= {one.spec.label: one for one in owned}
    checked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    checked.set_result(None)
    worker._here._checking = checked  # type: ignore[assignment]
    worker._feeding._of = {tp: one for one in owned for tp in one.spec.partitions}
    return worker


def outside_of(**parts: Any) -> Any:
    return SimpleNamespace(
        **{"compute": None, "look": None, "changelogs": None, "snapshots": None, "clock": Stopped(0.0), **parts}
    )


async def test_it_waits_for_whole_milliseconds_until_a_commit_is_due() -> None:
    """Clients refuse 30.0 as seconds; less than the clock can show would be no time at all."""
    outside = Stopped(70.0)
    idle: Any = Owned(spec(), SimpleNamespace(due=None, waits=False), None, rows_at_ms={"lines": 0.0})  # type: ignore[arg-type]
    worker = seated(outside_of(reader=outside, clock=outside), idle)
    worker._committing.at_ms, worker._committing.rows = 0.0, 1
    await worker.step()
    outside.at_ms = 99.9999
    await worker.step()
    assert outside.waits == [30, 1]
    assert all(isinstance(wait, int) for wait in outside.waits)


async def test_a_task_that_waits_for_the_clock_is_told_the_time() -> None:
    class Ticking:
        due = 5_000
        waits = False

        def __init__(self) -> None:
            self.told: list[int] = []

        def tick(self, now: int) -> None:
            self.told.append(now)

        def take(self) -> list[Any]:
            return []

    async def compute(call: Any, *args: Any) -> Any:
        return call(*args)

    wall = iter([4_999, 5_000, 5_000])
    clock = SimpleNamespace(monotonic_ms=lambda: 0.0, now_ms=lambda: next(wall))
    task = Ticking()
    owned = Owned(spec(), task, None, rows_at_ms={"lines": 0.0})  # type: ignore[arg-type]
    worker = seated(outside_of(clock=clock, compute=compute), owned)
    await worker._feeding._rest()
    assert (task.told, owned.touched) == ([], False)
    await worker._feeding._rest()
    assert (task.told, owned.touched) == ([5_000], True)


async def test_senders_that_were_idle_are_so_again_when_the_task_has_run_for_long() -> None:
    """Until then they may have rows that came while nobody worked."""

    class Waiting:
        due, waits = None, True

        def rest_again(self) -> None:
            self.waits = False

        def take(self) -> list[Any]:
            return []

    async def compute(call: Any, *args: Any) -> Any:
        return call(*args)

    now = iter([2_000.0, 6_999.0, 7_000.0])
    clock = SimpleNamespace(monotonic_ms=lambda: next(now), now_ms=lambda: 0)
    owned = Owned(spec(), Waiting(), None, idle={"lines"}, began_at_ms=2_000.0)  # type: ignore[arg-type]
    worker = seated(outside_of(clock=clock, compute=compute), owned)
    await worker._feeding._rest()
    assert (owned.task.waits, owned.touched) == (True, False)
    await worker._feeding._rest()
    assert (owned.task.waits, owned.touched) == (False, True)


async def test_a_partition_is_idle_when_it_gives_nothing_and_is_at_its_end() -> None:
    """After this process stood still, or without its broker, records that are there have not come."""

    class Ends(Stopped):
        left = True

        async def at_ends(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
            return [] if self.left else partitions

    async def compute(call: Any, *args: Any) -> Any:
        return call(*args)

    told: list[str] = []
    task: Any = SimpleNamespace(due=None, waits=False, idle=told.append, take=list)
    owned = Owned(spec(), task, None, rows_at_ms={"lines": 0.0})
    outside = Ends(5_000.0)
    worker = seated(outside_of(reader=outside, clock=outside, compute=compute), owned)
    await worker._feeding._rest()
    assert (told, owned.touched, owned.rows_at_ms) == ([], False, {"lines": 5_000.0})
    outside.left = False
    await worker._feeding._rest()
    assert told == [], "it has stood at its end for no time yet"
    outside.at_ms = 10_000.0
    await worker._feeding._rest()
    await worker._feeding._rest()
    assert (told, owned.touched, owned.idle) == (["lines"], True, {"lines"})


class Owner:
    """A writer, which another one may have replaced."""

    def __init__(self, *, replaced: bool) -> None:
        self.replaced = replaced
        self.committed: list[Mapping[TopicPartition, Committed]] = []

    async def begin(self) -> None:
        pass

    async def commit(self, positions: Mapping[TopicPartition, Committed]) -> None:
        if self.replaced:
            raise ProducerFenced("there is a newer one")
        self.committed.append(positions)


def taking(*, resends: bool = False) -> Taking:
    return Taking("a", StreamsConfig(), outside_of(), None, None, None, hops=(), resends=resends)  # type: ignore[arg-type]


@pytest.mark.parametrize("replaced", [False, True])
async def test_it_was_replaced_or_positions_were_changed_by_hand(replaced: bool) -> None:
    """It stood still between the end of the changelog and the positions, and a successor committed meanwhile."""
    owned = Owned(spec("in"), None, None, Progress({"in": 3}))  # type: ignore[arg-type]
    taking()._check_positions(owned, {"in": 3})
    with pytest.raises(Differs) as told:
        taking()._check_positions(owned, {"in": 5})
    writer = Owner(replaced=replaced)
    worker = seated(outside_of())
    worker._here.writer = writer  # type: ignore[assignment]
    with pytest.raises(ProducerFenced) if replaced else nullcontext():
        await worker._committing.prove(told.value)
    assert writer.committed == ([] if replaced else [{TopicPartition("in", 0): Committed(5)}]), (
        "what the group has already"
    )


async def test_a_task_has_the_epoch_with_which_it_was_fenced() -> None:
    """Its snapshots are called by it, so those of two workers that both believe to own it are two."""

    class Fences:
        async def fence(self, partition: TopicPartition, token: int) -> int:
            return token + 100

    one = taking()
    one._writer = Fences()  # type: ignore[assignment]
    owned = Owned(spec(changelog=TopicPartition("a.lines.changelog", 0)), None, None)  # type: ignore[arg-type]
    assert (await one.fence(owned, GivenItem("lines/0", 5)), owned.epoch) == (105, 5)


def test_the_directory_of_another_partition_is_of_another_log() -> None:
    """Directories that were mixed up are restored anew, not believed."""
    app = App("a")
    app.stream("orders", value=string, key="k").group_by("k").agg(n=agg.count(), name="totals")
    assembling = Assembling(app, StreamsConfig(), outside_of())
    facts = {"orders": TopicFacts("1", 2), "a.orders.changelog": TopicFacts("2", 2)}
    found = assembling._specs(Assembly("a", app.graph, {"orders": 2}), facts)
    assert [one.log_id for one in found] == ["2-0", "2-1"]


def test_offsets_of_a_task_are_gone_and_it_has_state() -> None:
    """The task without state before it would send again what it has counted."""
    owned = Owned(spec("by-word"), None, None, Progress({"in": 3}))  # type: ignore[arg-type]
    taking()._check_positions(owned, {})
    with pytest.raises(NotFound, match=r"the group a has no offsets.* task by-word/0"):
        taking(resends=True)._check_positions(owned, {})
    owned.progress = Progress()
    taking(resends=True)._check_positions(owned, {})


class Log:
    """A changelog of one partition, and the group's positions as they are asked for one after the other."""

    def __init__(self, rows: int, positions: list[int | None]) -> None:
        self.rows = rows
        self.positions = positions

    async def committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        at = self.positions.pop(0)
        return dict.fromkeys(partitions, None if at is None else Committed(at))

    async def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.rows + 1)

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.assigned = list(positions)

    async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        table = pa.table({"key": [b"k"] * self.rows})
        end = self.rows + 1
        return [PartitionTable(at.topic, at.partition, table, end, 0, end, end) for at in self.assigned]


async def test_a_task_without_a_changelog_has_its_event_times_beside_its_positions() -> None:
    """Else who takes it over could not tell event time to those that were not told before."""
    marks = {"b": 5, "a": NO_TIME, "": 5}
    owned = Owned(Spec(SubTopology("p", (), ("a", "b"), ()), 0, ("a", "b"), {}), None, None)  # type: ignore[arg-type]
    of_group = moved([Kept(owned, Progress({"b": 7}, marks), [])])

    class Group:
        async def committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Committed | None]:
            return {at: of_group.get(at) for at in partitions}

    one = taking()
    one._outside = outside_of(reader=Group())
    assert await one._of_group(owned) == Progress({"b": 7}, marks)
    owned.progress = Progress({"b": 7}, marks)
    later = {**marks, "": 9}
    of_group |= moved([Kept(owned, Progress({"a": 1, "b": 7}, later), [])])
    assert await one._of_group(owned) == Progress({"a": 1, "b": 7}, later), "beside the first of its topics"
    of_group = {at: Committed(offset.offset, metadata="by hand") for at, offset in of_group.items()}
    assert await one._of_group(owned) == Progress({"a": 1, "b": 7})


def test_positions_that_have_not_moved_are_not_committed_again() -> None:
    in_0 = TopicPartition("in", 0)
    owned = Owned(spec("in"), None, SimpleNamespace(), Progress({"in": 3}))  # type: ignore[arg-type]
    other = Owned(spec("other"), None, SimpleNamespace(), Progress({"other": 3}))  # type: ignore[arg-type]
    kept = [Kept(owned, Progress({"in": 4}), []), Kept(other, Progress({"other": 3}), [])]
    assert moved(kept) == {in_0: Committed(4)}
    assert moved(kept[1:]) == {TopicPartition("other", 0): Committed(3)}, "by it the group sees who commits"


def test_event_times_that_are_too_many_are_not_kept() -> None:
    few, many = (
        {f"app.by-user.repartition/{n}": 1_700_000_000_000 + n * 7_919 for n in range(k)} for k in (250, 5_000)
    )
    assert (len(remark(few)) <= 4_096, of_remark(remark(few)), remark(many)) == (True, few, "")
    with pytest.raises(NotReadable, match="were not written by Streams"):
        of_remark(remark(few)[:-9])


@pytest.mark.parametrize(
    ("rows", "positions", "refused"),
    [(0, [None], False), (1, [None, None], True), (1, [None, 7], False), (1, [7], False)],
)
async def test_offsets_of_the_group_are_gone_before_anyone_joins(
    rows: int, positions: list[int | None], refused: bool
) -> None:
    """A fence is no state; a worker that starts at the same time may commit between two looks."""
    log = Log(rows, positions)
    outside = outside_of(reader=log, changelogs=log)
    changelog = TopicPartition("a.by-word.changelog", 0)
    specs = {one.label: one for one in (spec(), spec("by-word", 0, changelog))}
    check = Assembling(App("a"), StreamsConfig(), outside).check_positions(
        Assembled(None, specs, frozenset()),  # type: ignore[arg-type]
        Patience(outside.clock, 1_000),
    )
    if refused:
        with pytest.raises(NotFound, match="the group a has no offsets"):
            await check
    else:
        await check
    assert log.positions == []


@pytest.mark.parametrize(("group_at", "out"), [(None, False), (7, True)])
async def test_records_are_gone_because_it_was_put_out_or_for_good(
    group_at: int | None, out: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A successor that reads a repartition topic trims it below what it has committed; that is no loss."""
    joined = []

    class Joins(Worker):
        async def _get_up(self) -> None:
            joined.append("up")

        async def _join(self) -> None:
            joined.append("in")

    owned: Any = Owned(spec("a.by-k.repartition"), None, None)  # type: ignore[arg-type]
    reader = Log(0, [group_at])
    worker = seated(outside_of(reader=reader), owned)
    worker.__class__ = Joins
    error = PositionOutOfRange("offset 0 does not exist; records 0 to 6 were not read")
    worker._trouble.judge(error)
    if out:
        await worker._recover(error)
    else:
        with pytest.raises(PositionOutOfRange):
            await worker._recover(error)
        with pytest.raises(PositionOutOfRange):
            worker._trouble.judge(error)
    assert joined == (["up", "in"] if out else [])
    read_on = "a joins anew: others have its tasks by now, and read on where it stood; nothing is lost"
    assert caplog.messages == ([read_on] if out else [])


async def test_it_is_ready_when_it_has_had_its_tasks_for_a_moment() -> None:
    outside = Stopped(0.0)
    worker = seated(outside_of(reader=outside, clock=outside))
    seat: Any = worker._seat
    for outside.at_ms, taking in ((0.0, True), (900.0, False), (1_500.0, True), (2_000.0, False), (2_499.0, False)):
        seat.taken = {"x": (Owned(spec(), None, None), None)} if taking else {}  # type: ignore[arg-type]
        worker._tell_state(seat)
        assert not worker.settled.is_set()
    outside.at_ms = 2_500.0
    worker._tell_state(seat)
    assert worker.settled.is_set()


def test_workers_of_one_machine_have_ports_of_their_own() -> None:
    parent = Parent("app.py", {"metrics_listen": "127.0.0.1:9400", "health_listen": "127.0.0.1:0"}, workers=2)
    settings = [json.loads(parent.command(number)[-2]) for number in range(2)]
    assert [one["metrics_listen"] for one in settings] == ["127.0.0.1:9400", "127.0.0.1:9401"]
    assert [one["health_listen"] for one in settings] == ["127.0.0.1:0"] * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_listeners_of_one_machine_have_ports_of_their_own(workers: int) -> None:
    settings = {"metrics_listen": "0.0.0.0:9400", "health_listen": f"0.0.0.0:{9400 + workers - 1}"}
    with pytest.raises(InvalidConfig, match=f"both have port .* set them at least {workers} apart"):
        Parent("app.py", settings, workers)


class Missing:
    """Topics of which one does not exist; says how often they were looked for."""

    def __init__(self) -> None:
        self.looks = 0

    async def find(self, names: list[str]) -> dict[str, TopicFacts]:
        self.looks += 1
        return {}


class Passing:
    """A clock whose time passes in sleeps."""

    def __init__(self) -> None:
        self.at_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.at_ms

    async def sleep_ms(self, ms: float) -> None:
        self.at_ms += ms
        await asyncio.sleep(0)


async def test_missing_topics_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    app = App("a")
    app.stream("orders", value=string).to("out")
    topics = Missing()
    worker = Worker(app, StreamsConfig(), outside_of(topics=topics, clock=Passing()))
    with pytest.raises(UnknownTopicOrPartition, match="create them first: headrace topic create orders"):
        await worker.assemble()
    assert topics.looks > 2
    told = "a waits for topics that do not exist: orders, out; headrace topic create NAME makes one"
    assert [record.message for record in caplog.records] == [told]


class Shown(Passing):
    """Topics of which some are deleted, and come back."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        self.there = set(topics)
        self.looks: list[float] = []

    async def names(self) -> list[str]:
        return sorted(self.there)

    async def find(self, names: list[str]) -> dict[str, TopicFacts]:
        self.looks.append(self.at_ms)
        return {name: TopicFacts(name, 1) for name in names if name in self.there}

    async def known(self, app: str) -> Known:
        return Known(app)

    async def make(self, topics: list[InternalTopic]) -> dict[str, TopicFacts]:
        return {topic.name: TopicFacts(topic.name, topic.partitions) for topic in topics}

    async def limits(self, names: list[str]) -> dict[str, Any]:
        return {}


async def test_that_missing_topics_are_there_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Appears(Shown):
        async def sleep_ms(self, ms: float) -> None:
            self.there.add("orders")
            await super().sleep_ms(ms)

    app = App("a")
    app.stream("orders", value=string).to("out")
    shown = Appears("out")
    with caplog.at_level("INFO"):
        await Assembling(app, StreamsConfig(), outside_of(topics=shown, clock=shown, stores=MemoryStores())).assemble()
    assert caplog.messages[0].startswith("a waits for topics that do not exist: orders")
    assert caplog.messages[1:] == ["a goes on: the topics that it waited for are there"]


async def reading(shown: Shown, **settings: Any) -> Worker:
    """A worker of a program that names a topic, and reads others by a pattern."""
    app = App("a")
    app.stream("orders", value=string).to("out")
    app.stream(re.compile("eu-.*"), value=string, name="eu").to("out")
    outside = outside_of(topics=shown, clock=shown, stores=MemoryStores())
    worker = Worker(app, StreamsConfig(**settings), outside)
    worker._assembled = await worker._assembling.assemble()
    shown.looks.clear()
    return worker


DELETED = (
    "a reads topics that were deleted: orders; {}stop its workers, create them again, headrace topic create orders, "
    "and have it begin anew, headrace streams reset a"
)


async def test_a_topic_that_is_deleted_while_it_runs_is_told_once_and_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    shown = Shown("orders", "eu-1", "out")
    worker = await reading(shown, metadata_max_age_ms=30_000, default_api_timeout_ms=70_000)
    shown.there -= {"orders", "eu-1"}
    for at_ms in range(0, 100_000, 10_000):
        shown.at_ms = float(at_ms)
        await worker._look_at_topics()
    assert [record.message for record in caplog.records] == [DELETED.format("it stops in 70 s if they stay away; ")]
    shown.at_ms = 100_000.0
    with pytest.raises(UnknownTopicOrPartition) as told:
        await worker._look_at_topics()
    assert str(told.value) == DELETED.format("")
    assert shown.looks == [30_000, 60_000, 90_000, 100_000], "the last one before it is old enough for another look"
    with pytest.raises(UnknownTopicOrPartition):
        worker._trouble.judge(told.value)


async def test_a_topic_that_comes_back_is_missing_anew_when_it_goes_again(caplog: pytest.LogCaptureFixture) -> None:
    shown = Shown("orders", "eu-1", "out")
    worker = await reading(shown, metadata_max_age_ms=30_000, default_api_timeout_ms=60_000)
    for at_ms, there in ((30_000, False), (60_000, True), (90_000, False), (120_000, False)):
        shown.there = {"eu-1", "out"} | ({"orders"} if there else set())
        shown.at_ms = float(at_ms)
        await worker._look_at_topics()
    assert len(caplog.records) == 2


@pytest.mark.parametrize("gone", ["a.orders.changelog", "a.by-n.repartition"])
async def test_a_topic_of_the_app_itself_that_is_deleted_ends_it(gone: str) -> None:
    app = App("a")
    orders = app.stream("orders", value=string, key="k")
    orders.group_by("k").agg(n=agg.count(), name="counts").to("out")
    orders.key_by("value").repartition(name="by-n").to("out")
    shown = Shown("orders", "out", "a.orders.changelog", "a.by-n.repartition")
    worker = seated(outside_of(topics=shown, clock=shown, stores=MemoryStores()))
    worker._app = app
    worker._assembled = await Assembling(app, StreamsConfig(), worker._outside).assemble()
    rewound: list[str] = []
    worker._committing = worker._feeding = Rewinds(rewound)  # type: ignore[assignment]
    trouble = UnknownTopicOrPartition("topic 'out' does not exist")
    await worker._recover(trouble)
    assert rewound == ["rewind", "begin"], "nothing of its own is gone"
    shown.there.remove(gone)
    with pytest.raises(UnknownTopicOrPartition, match=f"deleted: {gone}; .* headrace streams reset a") as told:
        await worker._recover(trouble)
    with pytest.raises(UnknownTopicOrPartition):
        worker._trouble.judge(told.value)


def test_of_a_record_that_is_too_large_the_message_that_names_its_topic_is_told() -> None:
    large = RecordTooLarge("a record for the topic dead cannot be sent")
    large.__cause__ = RecordTooLarge("the record has 9 bytes")
    aborted = ProducerFenced("abort the transaction")
    aborted.__cause__ = large
    for error in (large, aborted):
        with pytest.raises(RecordTooLarge, match="for the topic dead"):
            Trouble(Stopped(0.0), 60_000).judge(error)  # type: ignore[arg-type]


class Rewinds:
    """Writes down how a worker goes back to its last commit."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def too_long(self) -> str:
        return ""

    async def rewind(self) -> None:
        self._done.append("rewind")

    async def begin(self) -> None:
        self._done.append("begin")


async def test_a_topic_of_a_pattern_may_go(caplog: pytest.LogCaptureFixture) -> None:
    shown = Shown("orders", "eu-1", "eu-2", "out")
    worker = await reading(shown, metadata_max_age_ms=1_000, default_api_timeout_ms=2_000)
    assert (await worker._assembling.on_topics()).read_by_name == ["orders"]
    shown.there -= {"eu-2"}
    for at_ms in range(0, 100_000, 10_000):
        shown.at_ms = float(at_ms)
        await worker._look_at_topics()
    assert caplog.records == []


async def test_a_worker_that_waits_for_topics_can_be_stopped() -> None:
    stop, waits = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        waits.set()
        await asyncio.Event().wait()

    begun = asyncio.create_task(before(stop, wait()))
    await waits.wait()
    stop.set()
    assert not await begun


async def test_what_is_done_before_a_stop_counts() -> None:
    async def done() -> None:
        pass

    async def fails() -> None:
        raise NotAllowed("x")

    assert await before(asyncio.Event(), done())
    with pytest.raises(NotAllowed):
        await before(asyncio.Event(), fails())


class Anew:
    """Topics that a reset deletes while a worker joins, and that worker's memberships."""

    def __init__(self, happens: str) -> None:
        self.happens = happens
        self.anew = 0
        self.reset = False
        self.memberships: list[Any] = []

    async def find(self, names: list[str]) -> dict[str, TopicFacts]:
        there = {"orders": TopicFacts("1", 1)} | ({"a.being-reset": TopicFacts("9", 1)} if self.reset else {})
        return {name: there[name] for name in names if name in there}

    async def known(self, app: str) -> Known:
        return Known(app)

    async def make(self, topics: list[InternalTopic]) -> dict[str, TopicFacts]:
        return {topic.name: TopicFacts(f"{topic.name} {self.anew}", 1) for topic in topics}

    async def limits(self, names: list[str]) -> dict[str, Any]:
        return {}

    async def shared(self, app: str) -> Shared:
        return Shared()

    async def join(self, declaration: Any, lags: Any) -> Any:
        if len(self.memberships) == 0:
            self.reset = self.happens == "begins"
            self.anew += self.happens == "ends"
        self.memberships.append(SimpleNamespace(closed=False))
        membership = self.memberships[-1]

        async def close() -> None:
            membership.closed = True

        membership.close = close
        return membership


@pytest.mark.parametrize("happens", ["", "begins", "ends"])
async def test_a_reset_while_it_joins_is_seen(happens: str) -> None:
    """A reset looks for members after it has set its mark, so whoever is one looks for the mark, and at its topics."""
    app = App("a")
    app.stream("orders", value=string, key="k").group_by("k").agg(n=agg.count(), name="totals")
    anew = Anew(happens)

    async def compute(call: Any, *args: Any) -> Any:
        return call(*args)

    outside = outside_of(topics=anew, join=anew.join, stores=MemoryStores(), changelogs=Log(0, []), compute=compute)
    worker = Worker(app, StreamsConfig(), outside)
    worker._assembled = await worker._assembling.assemble()
    if happens == "begins":
        with pytest.raises(
            NotAllowed, match=r"a reset of a has begun and not ended: .* run it again, headrace streams"
        ):
            await worker._join()
    else:
        await worker._join()
    closed = {"": [False], "begins": [True], "ends": [True, False]}[happens]
    assert [membership.closed for membership in anew.memberships] == closed
    (spec_,) = worker._assembled.specs.values()
    assert spec_.log_id == f"a.orders.changelog {anew.anew}-0"


async def test_a_worker_that_waits_for_another_program_to_end_can_be_stopped() -> None:
    stop, waits = asyncio.Event(), asyncio.Event()

    class Taken(Anew):
        async def shared(self, app: str) -> Shared:
            return Shared(frozenset({"payments/0"}))

        async def positions(self, app: str) -> dict[TopicPartition, int]:
            return {TopicPartition("payments", 0): 1}

    class Slow(Stopped):
        async def sleep_ms(self, delay_ms: float) -> None:
            waits.set()
            await asyncio.Event().wait()

    app = App("a")
    app.stream("orders", value=string).to("orders")
    worker = Worker(app, StreamsConfig(), outside_of(topics=Taken(""), clock=Slow(0.0)))
    begun = asyncio.create_task(before(stop, worker.assemble()))
    async with asyncio.timeout(5):
        await waits.wait()
        stop.set()
        assert not await begun


async def test_a_function_that_does_not_return_ends_the_worker() -> None:
    """It leaves its group and its transaction, and touches no store that the function may hold."""
    left: list[str] = []

    class Leaving(Quiet):
        async def close(self) -> None:
            left.append("group")

    class Closing(Owner):
        async def close(self) -> None:
            left.append("writer")

    async def never(call: Any, *args: Any) -> None:
        await asyncio.Event().wait()

    kept: Any = SimpleNamespace(close=lambda: left.append("store"))
    owned = Owned(spec("lines", 0, TopicPartition("a.lines.changelog", 0)), None, kept)  # type: ignore[arg-type]
    worker = seated(outside_of(compute=never), owned, max_poll_interval_ms=5)
    seat: Any = worker._seat
    seat.membership, seat.writer = Leaving(), Closing(replaced=False)
    with pytest.raises(Blocked, match=r"has not returned for 0\.005 s"):
        await worker._call(print)
    async with asyncio.timeout(5):
        await worker._get_up()
    assert left == ["writer", "group"]


def test_a_registry_that_does_not_answer_is_waited_for() -> None:
    """Not for ever; and what it refuses is final."""
    clock = Stopped(0.0)
    worker = Worker(App("a"), StreamsConfig(default_api_timeout_ms=1_000), outside_of(clock=clock))
    worker._trouble.judge(RegistryUnavailable())
    clock.at_ms = 999.0
    worker._trouble.judge(RegistryUnavailable())
    clock.at_ms = 1_000.0
    with pytest.raises(RegistryUnavailable):
        worker._trouble.judge(RegistryUnavailable())
    with pytest.raises(RegistryRefused):
        Worker(App("a"), StreamsConfig(), outside_of())._trouble.judge(RegistryRefused())


@pytest.mark.parametrize(
    ("rows", "dirty", "touched", "full"),
    [(9, 0, True, False), (10, 0, True, True), (0, 99, True, False), (0, 100, True, True), (0, 100, False, False)],
)
async def test_it_commits_early_when_much_was_read_or_much_state_has_changed(
    rows: int, dirty: int, touched: bool, full: bool
) -> None:
    task: Any = SimpleNamespace(dirty_bytes=lambda: dirty // 2)
    two = [Owned(spec("lines", n), task, None, touched=touched) for n in range(2)]
    committing = seated(outside_of(), *two, commit_rows=10, commit_state_bytes=100)._committing
    committing.rows = rows
    assert committing.is_full() == full


async def test_after_a_commit_state_is_at_most_what_the_worker_may_keep() -> None:
    app = App("a")
    app.stream("lines", value=string, key="k").group_by("k").agg(n=agg.count(), name="counts")
    assembly = Assembly("a", app.graph, {"lines": 1})
    (part,) = assembly.parts
    task, store = assembly.make(part, 0), MemoryStores().open("lines", 0)
    task.open(store.cold, {})
    log = TopicPartition("a.lines.changelog", 0)
    owned = Owned(spec("lines", 0, log), task, store, touched=True)

    async def compute(call: Any, *args: Any) -> Any:
        return call(*args)

    class Sending(Owner):
        async def send(self, output: Any) -> Any:
            return SimpleNamespace(end=lambda: 1)

    outside = outside_of(compute=compute, clock=SimpleNamespace(monotonic_ms=lambda: 1.0, now_ms=lambda: 1.0))
    worker = seated(outside, owned)
    worker._cache._max = 0
    seat: Any = worker._seat
    seat.writer = Sending(replaced=False)
    worker.figures.owned = seat.owned
    for _ in range(2):
        task.feed("lines", raw([(b"x", b"", 0), (b"y", b"", 0)]))
        assert [task.dirty_bytes() > 0, task.stores[0].kept_bytes() > 0] == [True, True]
        owned.touched, owned.positions = True, {"lines": 2}
        await worker._commit()
        assert list(worker.figures.values("state_cache_bytes", 0)) == [(0, {})]
        assert task.stores[0].kept_bytes() == 0
    (hits,), (misses,) = (list(worker.figures.values(name, 0)) for name in ("cache_hits", "cache_misses"))
    assert (hits[0], misses[0]) == (0, 4)
    assert hits[1].keys() == {"node"}


async def test_a_disk_is_opened_beside_the_event_loop() -> None:
    """A hundred of them take seconds, in which its other tasks would stand still, and their transaction time out."""
    may = threading.Event()

    class Slow(MemoryStores):
        def open(self, sub_topology: str, partition: int) -> MemoryTaskStore:
            assert may.wait(30), "the event loop turns meanwhile"
            return super().open(sub_topology, partition)

    app = App("a")
    app.stream("lines", value=string, key="k").group_by("k").agg(n=agg.count(), name="counts")
    assembly = Assembly("a", app.graph, {"lines": 1})
    (part,) = assembly.parts
    of_task = Spec(part, 0, ("lines",), {}, TopicPartition("a.lines.changelog", 0))
    outside = outside_of(compute=run_in_thread, stores=Slow())
    seat: Any = seated(outside)._seat
    seat._assembled = Assembled(assembly, {of_task.label: of_task}, frozenset())
    seat._changelogs = SimpleNamespace(follow=lambda owned: None)
    seat.follows = frozenset({of_task.label})
    standing = asyncio.create_task(seat.stand_by())
    await asyncio.sleep(0)
    may.set()
    await standing
    assert seat.followed.keys() == {of_task.label}


class Slow:
    """A task that takes 100 ms for a record."""

    due, waits = None, False
    stores = ()

    def __init__(self, clock: Stopped) -> None:
        self._clock = clock
        self.fed: list[int] = []

    def tell(self, now: int) -> None: ...

    def take(self) -> list[Any]:
        return []

    def dirty_bytes(self) -> int:
        return 0

    def feed_together(self, given: list[tuple[str, pa.Table]]) -> None:
        ((_, records),) = given
        self.fed.append(records.num_rows)
        self._clock.at_ms += 100 * records.num_rows


async def test_no_more_is_fed_than_a_transaction_has_time_for() -> None:
    """Else it would be aborted and done again, for ever: a transaction has 10 s, and this batch takes 100."""
    clock, commits = Stopped(0.0), []

    async def compute(call: Any, *args: Any) -> Any:
        return call(*args)

    task: Any = Slow(clock)
    owned = Owned(spec("lines"), task, None)
    worker = seated(outside_of(clock=clock, compute=compute), owned)
    committing = worker._committing
    committing._in_transaction = True

    async def commit() -> None:
        commits.append((clock.at_ms, owned.positions["lines"]))
        committing._began_ms = clock.at_ms

    committing.commit = commit  # type: ignore[method-assign]
    records = raw([(b"k", b"v", 0)] * 1_000, 7)
    for _ in range(2):
        await worker._feeding._feed(PartitionTable("lines", 0, records, 1_010, 0, 1_010, 1_010))
    assert task.fed[0] == 500, "nothing is known of it yet"
    assert sum(task.fed) == 2_000
    assert max(task.fed[1:]) == 12, "1.25 s"
    times = [at for at, _ in commits]
    assert max(b - a for a, b in pairwise(times)) <= 3_700, "a fourth of 10 s, and one part more"
    assert commits[0] == (50_000, 507)
    assert owned.positions == {"lines": 1_010}, "gaps behind the last record count"


async def test_a_transaction_that_was_open_for_too_long_is_told_with_the_setting() -> None:
    clock = Stopped(5_000.0)
    committing = seated(outside_of(clock=clock))._committing
    committing._in_transaction = True
    assert committing.too_long() == ""
    clock.at_ms = 12_000.0
    assert committing.too_long().startswith(" (its transaction was open for 12 s; transaction_timeout_ms is 10,000.")
    committing._in_transaction = False
    assert committing.too_long() == ""


def test_the_pace_is_that_of_the_last_part() -> None:
    pace = Pace(10_000, 1_250, 10_000)
    assert pace.rows("a") == 500
    pace.took("a", 500, 5)
    assert (pace.rows("a"), pace.rows("b")) == (10_000, 500)
    pace.took("a", 10_000, 100_000)
    assert pace.rows("a") == 125
    pace.took("a", 125, 1e9)
    assert pace.rows("a") == 1
    pace.took("a", 1, 0)
    assert pace.rows("a") == 10_000
    assert Pace(10_000, 1_250, 3).rows("a") == 3
