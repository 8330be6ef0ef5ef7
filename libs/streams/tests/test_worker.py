"""A worker: when it looks at the clock, and what it says of state that does not belong to its positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import PositionOutOfRange
from headrace.records import TopicPartition
from headrace_common.core.errors import NotFound, ProducerFenced
from headrace_streams import agg, string
from headrace_streams.adapters.memory_store import MemoryStores
from headrace_streams.config import StreamsConfig
from headrace_streams.core.state.changelog import Progress
from headrace_streams.dsl.app import App
from headrace_streams.plan.cut import Assembly, SubTopology
from headrace_streams.ports import TopicFacts
from headrace_streams.runtime.owned import Owned
from headrace_streams.runtime.worker import Worker


class Stopped:
    """A clock that stands still, and a reader that notes how long it was to wait."""

    def __init__(self, now_ms: float) -> None:
        self.now_ms = now_ms
        self.waits: list[float] = []

    def monotonic_ms(self) -> float:
        return self.now_ms

    async def poll(self, timeout_ms: float, max_rows: int) -> list[Any]:
        self.waits.append(timeout_ms)
        return []


async def test_it_waits_for_whole_milliseconds_until_a_commit_is_due() -> None:
    """Clients refuse 30.0 as seconds; less than the clock can show would be no time at all."""
    outside = Stopped(70.0)
    worker = Worker(App("a"), StreamsConfig(), SimpleNamespace(reader=outside, clock=outside))  # type: ignore[arg-type]
    worker._in_transaction = True
    await worker.step()
    outside.now_ms = 99.9999
    await worker.step()
    assert outside.waits == [30, 1]
    assert all(isinstance(wait, int) for wait in outside.waits)


async def test_a_quiet_worker_commits_its_positions_now_and_then() -> None:
    """So it learns that its app runs elsewhere, and the positions do not expire."""
    outside = Stopped(0.0)
    committed: list[Any] = []

    class Writer:
        async def begin(self) -> None:
            pass

        async def commit(self, positions: Any) -> None:
            committed.append((outside.now_ms, positions))

    here = SimpleNamespace(reader=outside, clock=outside, writer=Writer())
    worker = Worker(App("a"), StreamsConfig(idle_after_ms=60_000), here)  # type: ignore[arg-type]
    part = SubTopology("lines", (), ("lines",), ())
    worker._owned = [Owned(part, 3, None, ("lines",), None, Progress({"lines": 7}), rows_at_ms={"lines": 0.0})]  # type: ignore[arg-type]
    for outside.now_ms in (0.0, 4_000.0, 5_000.0, 9_000.0, 10_001.0):
        await worker.step()
    assert committed == [(at, {TopicPartition("lines", 3): 7}) for at in (5_000.0, 10_001.0)]


class Owner:
    """A writer, which another one may have replaced."""

    def __init__(self, *, replaced: bool) -> None:
        self.replaced = replaced
        self.committed: list[dict[TopicPartition, int]] = []

    async def begin(self) -> None:
        pass

    async def commit(self, positions: dict[TopicPartition, int]) -> None:
        if self.replaced:
            raise ProducerFenced("there is a newer one")
        self.committed.append(positions)


@pytest.mark.parametrize(("replaced", "error"), [(False, NotFound), (True, ProducerFenced)])
async def test_it_was_replaced_or_positions_were_changed_by_hand(replaced: bool, error: type[Exception]) -> None:
    """It stood still between the end of the changelog and the positions, and a successor committed meanwhile."""
    writer = Owner(replaced=replaced)
    worker = Worker(App("a"), StreamsConfig(), SimpleNamespace(writer=writer))  # type: ignore[arg-type]
    owned: Any = SimpleNamespace(progress=Progress({"in": 3}), partition=0, label="in/0")
    await worker._check_same(owned, {"in": 3})
    with pytest.raises(error):
        await worker._check_same(owned, {"in": 5})
    assert writer.committed == ([] if replaced else [{TopicPartition("in", 0): 5}]), "what the group has already"


def test_the_directory_of_another_partition_is_of_another_log() -> None:
    """Directories that were mixed up are restored anew, not believed."""
    app = App("a")
    app.stream("orders", value=string, key="k").group_by("k").agg(n=agg.count(), name="totals")
    worker = Worker(app, StreamsConfig(), SimpleNamespace(stores=MemoryStores()))  # type: ignore[arg-type]
    facts = {"orders": TopicFacts("1", 2), "a.orders.changelog": TopicFacts("2", 2)}
    worker._own(Assembly("a", app.graph, {"orders": 2}), facts)
    assert [owned.log_id for owned in worker._owned] == ["2-0", "2-1"]


@pytest.mark.parametrize("at", [{"in": 3}, {}])
def test_offsets_of_the_group_are_gone_and_state_is_there(at: dict[str, int]) -> None:
    """The task without state would send again what the other has counted."""
    worker = Worker(App("a"), StreamsConfig(), SimpleNamespace())  # type: ignore[arg-type]
    stateful: Any = SimpleNamespace(store=MemoryStores(), progress=Progress(at), label="by-word/0")
    worker._owned = [stateful]
    worker._check_new()
    worker._owned = [SimpleNamespace(store=None), stateful]  # type: ignore[list-item]
    if at:
        with pytest.raises(NotFound, match=r"the group a has no offsets.* task by-word/0"):
            worker._check_new()
    else:
        worker._check_new()


@pytest.mark.parametrize(("group_at", "error"), [(None, PositionOutOfRange), (7, ProducerFenced)])
async def test_records_are_gone_because_it_was_replaced_or_for_good(group_at: int, error: type[Exception]) -> None:
    """A successor that reads a repartition topic trims it below what it has committed."""
    partition = TopicPartition("a.by-k.repartition", 0)

    class Reader:
        async def committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
            return dict.fromkeys(partitions, group_at)

    outside: Any = SimpleNamespace(reader=Reader(), clock=Stopped(0.0))
    worker = Worker(App("a"), StreamsConfig(), outside)
    worker._of = {partition: SimpleNamespace(progress=Progress())}  # type: ignore[dict-item]
    with pytest.raises(error):
        await worker._recover(PositionOutOfRange("offset 0 does not exist"))
