"""Work groups of both twins, against real services: who does what, who is put out, commits, what is refused."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

import headrace
from headrace import TopicPartition, WorkChange, WorkGroup, WorkItem, aio, declare
from headrace.errors import (
    ClientClosed,
    FencedInstanceId,
    InconsistentGroupProtocol,
    InvalidConfig,
    Rejected,
    StaleMemberEpoch,
    UnknownMemberId,
)

PATIENCE_S = 20
ITEMS = ["eu", "us", "asia", "africa"]


class Worker:
    """Does what it is told; ``doing`` is item -> epoch."""

    def __init__(self, group: WorkGroup) -> None:
        self.group = group
        self.doing: dict[str, int] = {}
        self.changes: list[WorkChange] = []

    def turn(self) -> None:
        while (change := self.group.poll(timeout_ms=20)) is not None:
            self.changes.append(change)
            self.doing.update((one.id, one.epoch) for one in (*change.assigned, *change.raised))
            for id in change.revoked | change.lost:
                del self.doing[id]
            self.group.give_up(*change.revoked, *change.lost)


def until(condition: object, *workers: Worker) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, [worker.doing for worker in workers]
        for worker in workers:
            worker.turn()


def shared(*workers: Worker, items: int = 4) -> bool:
    doing = [id for worker in workers for id in worker.doing]
    assert len(doing) == len(set(doing)), "no item is done twice"
    return len(doing) == items and max(len(w.doing) for w in workers) - min(len(w.doing) for w in workers) <= 1


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    return labs(group_consumer_heartbeat_interval_ms=50, group_rejoin_grace_ms=500)


def test_items_are_shared_and_move_when_somebody_leaves(memory: LabCluster) -> None:
    first, second = Worker(memory.work_group("w", ITEMS)), Worker(memory.work_group("w", ITEMS))
    until(lambda: shared(first), first)
    epochs = dict(first.doing)
    until(lambda: shared(first, second), first, second)
    assert all(epoch > epochs[id] for id, epoch in second.doing.items())
    assert all(epoch == epochs[id] for id, epoch in first.doing.items())
    first.group.close()
    until(lambda: shared(second), second)
    second.group.close()
    with pytest.raises(ClientClosed):
        second.group.poll()


def test_a_loop_gets_each_item_once_and_a_flag_when_it_is_to_stop(memory: LabCluster) -> None:
    with memory.work_group("w", ITEMS) as group:
        items = {}
        for item in group:
            items[item.id] = item
            if len(items) == 4:
                break
        other = Worker(memory.work_group("w", ITEMS))
        end = time.monotonic() + PATIENCE_S
        while sum(item.revoked.is_set() for item in items.values()) < 2:
            assert time.monotonic() < end
            other.turn()
        assert not other.doing
        for item in items.values():
            if item.revoked.is_set():
                assert not item.lost
                item.release()
        until(lambda: len(other.doing) == 2, other)
        with pytest.raises(Rejected, match="not both"):
            group.poll()
        other.group.close()
        assert next(iter(group)).id in other.doing, "it comes back, as a new item"


def test_a_token_that_is_higher_raises_the_epoch(memory: LabCluster) -> None:
    worker = Worker(memory.work_group("w", ["a"]))
    until(lambda: worker.doing, worker)
    token = worker.doing["a"] + 1_000_000
    worker.group.report(refused={"a": token})
    until(lambda: worker.doing["a"] > token, worker)
    worker.group.close()


def test_members_declare_something_else_while_they_work(memory: LabCluster) -> None:
    first, second = Worker(memory.work_group("w", declare(ITEMS, version=1))), Worker(memory.work_group("w", ITEMS))
    second.group.declare(declare(ITEMS, version=1))
    until(lambda: shared(first, second), first, second)
    doing = [dict(worker.doing) for worker in (first, second)]
    first.group.declare(declare([*ITEMS, "moon"], version=2))
    until(lambda: "moon" in first.doing, first, second)
    assert "moon" not in second.doing, "it does not know it"
    second.group.declare(declare([*ITEMS, "moon"], version=2))
    until(lambda: shared(first, second, items=5), first, second)
    assert [{id: worker.doing.get(id) for id in ITEMS if id in worker.doing} for worker in (first, second)] == doing
    for worker in (first, second):
        worker.group.declare(declare(["moon"], version=3))
    until(lambda: shared(first, second, items=1), first, second)
    assert {*first.doing, *second.doing} == {"moon"}
    second.group.declare(declare(["sun"], version=3))
    with pytest.raises(Rejected, match="version 3"):
        until(lambda: False, first, second)
    for worker in (first, second):
        worker.group.close()


def test_who_has_other_terms_does_not_join_and_does_when_the_others_have_left(memory: LabCluster) -> None:
    first = Worker(memory.work_group("w", declare(ITEMS, terms={"rows": "a"})))
    until(lambda: len(first.doing) == len(ITEMS), first)
    assert memory.do(memory._admin.describe_group("w")).terms == {"rows": "a"}
    other = Worker(memory.work_group("w", declare(ITEMS, terms={"rows": "b"})))
    with pytest.raises(InconsistentGroupProtocol, match="rows is a, and this one says that it is b"):
        until(lambda: other.doing, first, other)
    assert len(first.doing) == len(ITEMS)
    other.group.close()
    first.group.close()
    later = Worker(memory.work_group("w", declare(ITEMS, terms={"rows": "b"})))
    until(lambda: len(later.doing) == len(ITEMS), later)
    later.group.close()


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"": "x"}, "a term's name"),
        ({"x" * 250: "x"}, "a term's name"),
        ({1: "x"}, "a term's name"),
        ({"x": "y" * 256}, "255 characters"),
        ({"x": None}, "255 characters"),
        ({str(n): "" for n in range(1_001)}, "1000 is the most"),
    ],
)
def test_terms_have_bounds(terms: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        declare(ITEMS, terms=terms)


def test_other_terms_are_another_declaration() -> None:
    one, same, other, none = (declare(ITEMS, terms=terms) for terms in ({"a": "1"}, {"a": "1"}, {"a": "2"}, {}))
    assert one.fingerprint == same.fingerprint
    assert len({one.fingerprint, other.fingerprint, none.fingerprint}) == 3
    assert none.fingerprint == declare(ITEMS).fingerprint


def test_another_process_with_the_same_name_puts_it_out(memory: LabCluster) -> None:
    old = Worker(memory.work_group("w", ITEMS, group_instance_id="i", transactional_id_prefix="app"))
    until(lambda: shared(old), old)
    left = old.group.transactional_id
    new = Worker(memory.work_group("w", ITEMS, group_instance_id="i", transactional_id_prefix="app"))
    until(lambda: len(new.doing) == 4, new)
    assert {one.unended for change in new.changes for one in change.assigned} == {(left,)}
    with pytest.raises(FencedInstanceId):
        until(lambda: False, old)
    assert not old.doing
    with pytest.raises(FencedInstanceId):
        old.group.group_metadata()
    new.group.report(ended=[left])
    until(lambda: any(change.raised for change in new.changes), new)
    assert new.changes[-1].raised[0].unended == ()
    old.group.close()
    new.group.close()


def test_who_is_put_out_loses_its_items_and_joins_as_another(memory: LabCluster) -> None:
    worker = Worker(memory.work_group("w", ITEMS))
    until(lambda: shared(worker), worker)
    before, epochs = worker.group.member_id, dict(worker.doing)
    memory.evict("w", before)
    until(lambda: any(change.lost for change in worker.changes), worker)
    until(lambda: shared(worker), worker)
    assert worker.group.member_id != before
    assert all(worker.doing[id] > epochs[id] for id in ITEMS)
    worker.group.close()


def test_positions_are_committed_in_transactions_as_a_member(memory: LabCluster) -> None:
    memory.create_topic("t", 1)
    worker = Worker(memory.work_group("w", ITEMS, transactional_id_prefix="app"))
    until(lambda: shared(worker), worker)
    stale = worker.group.group_metadata()
    at = TopicPartition("t", 0)
    with memory.producer(transactional_id=worker.group.transactional_id) as producer:
        with producer.transaction():
            producer.send_offsets_to_transaction({at: 5}, worker.group)
        other = Worker(memory.work_group("w", ITEMS))
        until(lambda: shared(worker, other), worker, other)
        with pytest.raises(StaleMemberEpoch), producer.transaction():
            producer.send_offsets_to_transaction({at: 6}, stale)
        with producer.transaction():
            producer.send_offsets_to_transaction({at: 7}, worker.group)
        memory.evict("w", worker.group.member_id)
        until(lambda: not worker.doing, worker) if worker.doing else None
        with pytest.raises(UnknownMemberId), producer.transaction():
            producer.send_offsets_to_transaction({at: 8}, stale)
    memory.await_group("w")
    assert memory.committed("w")[at].offset == 7
    for each in (worker, other):
        each.group.close()


def test_stateful_items_wait_until_the_other_one_has_caught_up(memory: LabCluster) -> None:
    items = [WorkItem(name, stateful=True) for name in ("a", "b")]
    first, second = Worker(memory.work_group("w", items)), Worker(memory.work_group("w", items))
    until(lambda: shared(first, items=2), first)
    until(lambda: any(change.warm_up for change in second.changes), first, second)
    (item,) = second.changes[-1].warm_up
    assert not second.doing
    second.group.report(lags={item: 0})
    until(lambda: shared(first, second, items=2), first, second)
    assert set(second.doing) == {item}
    for worker in (first, second):
        worker.group.close()


def test_a_coordinator_that_dies_moves_nothing(labs: Labs) -> None:
    memory = labs(coordinators=2, group_consumer_heartbeat_interval_ms=50)
    workers = [Worker(memory.work_group("w", ITEMS)) for _ in range(2)]
    until(lambda: shared(*workers), *workers)
    before = [dict(worker.doing) for worker in workers]
    for number in (1, 2):
        memory.kill_coordinator(number)
        memory.restart_coordinator(number)
    end = time.monotonic() + 3
    until(lambda: time.monotonic() > end, *workers)
    assert [worker.doing for worker in workers] == before
    for worker in workers:
        worker.group.close()


def test_what_is_wrong_is_said_at_once() -> None:
    for items, text in (
        ("eu", "several items"),
        (["a", "a"], "twice"),
        ([""], "1 to 249"),
        ([WorkItem("a", weight=0)], "weight"),
        ([WorkItem("a", standbys=1)], "stateful"),
        ([3], "WorkItems"),
    ):
        with pytest.raises(InvalidConfig, match=text):
            headrace.WorkGroup("w", items, "h:1")
    with pytest.raises(InvalidConfig, match="did you mean zone"):
        headrace.WorkGroup("w", ["a"], "h:1", zon="z")
    with pytest.raises(InvalidConfig, match="name"):
        headrace.WorkGroup("", ["a"], "h:1")


def test_the_process_ends_while_a_loop_waits(memory: LabCluster) -> None:
    group = memory.work_group("w", ["a"])
    seen: list[str] = []

    def run() -> None:
        with pytest.raises(ClientClosed):
            seen.extend(item.id for item in group)

    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + PATIENCE_S
    while not seen:
        assert time.monotonic() < end
        time.sleep(0.01)
    group.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


async def test_for_asyncio(labs: Labs) -> None:
    memory = labs(group_consumer_heartbeat_interval_ms=50)
    async with memory.aio_work_group("w", ITEMS) as first:
        items: dict[str, object] = {}
        async for item in first:
            items[item.id] = item
            if len(items) == 4:
                break
        async with memory.aio_work_group("w", ITEMS) as second:
            await asyncio.gather(*(_stop_two(items)))
            change = await second.poll(timeout_ms=20_000)
            while change is not None and len(change.assigned) < 2:
                more = await second.poll(timeout_ms=20_000)
                assert more is not None
                change = WorkChange((*change.assigned, *more.assigned))
            assert change is not None
            assert {one.id for one in change.assigned} == {id for id, i in items.items() if i.revoked.is_set()}
            assert first.group_metadata().generation == first.member_epoch
    with pytest.raises(ClientClosed):
        await first.poll()


def _stop_two(items: dict[str, aio.WorkGroup]) -> list[object]:
    """Waits until two of the items are revoked, and releases them."""

    async def stop() -> None:
        waiting = {asyncio.ensure_future(item.revoked.wait()): item for item in items.values()}
        stopped = 0
        while stopped < 2:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                waiting.pop(task).release()
                stopped += 1
        for task in waiting:
            task.cancel()

    return [stop()]
