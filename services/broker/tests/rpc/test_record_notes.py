"""Who reads and writes records of a topic with ``audit.access`` is told to the audit; of other topics nobody is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest
from libs.common.tests.kit.access import allow
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import image_of, topic_id_of
from services.broker.tests.kit.guarded import ALICE, NOTHING, Guarded, guarded_broker, node
from services.broker.tests.rpc.test_access import ask, fetch, produce

from headrace_broker.engine.produce import Appended, ProduceCall
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.audit.events import Event
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.errors import ErrorCode, Rejected, RequestTimedOut
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import Role
from headrace_proto.v1 import broker_pb2 as pb

TOPICS: Final = {"orders": 2, "payments": 1}


class Heard:
    """In the place of an audit."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def note(self, event: Event) -> None:
        self.told.append(event)

    def records(self) -> list[tuple[Kind, str, str, int]]:
        kinds = {Kind.RECORDS_READ, Kind.RECORDS_WRITTEN}
        taken = [one for one in self.told if one.kind in kinds]
        self.told.clear()
        return [(one.kind, one.actor.principal, one.resource.name if one.resource else "", one.count) for one in taken]


@pytest.fixture
async def world() -> AsyncIterator[Guarded]:
    async with guarded_broker(**TOPICS) as one:
        await one.allow(*(allow(ResourceType.TOPIC, EVERY_NAME, what) for what in (Operation.READ, Operation.WRITE)))
        yield one


@pytest.fixture
def audit(world: Guarded) -> Heard:
    heard = Heard()
    world.access.auditing.audit = heard  # type: ignore[assignment]
    return heard


async def setting(world: Guarded, **topics: str) -> None:
    await world.show(image_of(TOPICS, configs={name: {"audit.access": value} for name, value in topics.items()}))


def both(*batches: bytes) -> pb.ProduceRequest:
    """Batches for ``orders``, and one for ``payments``."""
    request = produce(*batches)
    request.partitions.extend(produce(topic="payments").partitions)
    return request


async def test_writes_and_reads_are_told_once_a_request(world: Guarded, audit: Heard) -> None:
    await setting(world, orders="read,write")
    stub = await world.stub(ALICE)
    writes, reads = stub.Produce(), stub.Fetch()
    await ask(writes, both(batch_of(1), batch_of(1)))
    assert audit.records() == [(Kind.RECORDS_WRITTEN, "User:alice", "orders", 1)]
    await ask(writes, both())
    assert audit.records() == [(Kind.RECORDS_WRITTEN, "User:alice", "orders", 1)]
    await ask(reads, fetch())
    assert audit.records() == [(Kind.RECORDS_READ, "User:alice", "orders", 1)]
    await ask(reads, fetch("payments"))
    end = pb.FetchPartition(topic_id=topic_id_of("orders"), partition=0, fetch_offset=3, max_bytes=1 << 20)
    await ask(reads, fetch(partitions=[end]))
    assert audit.records() == [], "another topic, and no records"


@pytest.mark.parametrize(("value", "kinds"), [("read", [Kind.RECORDS_READ]), ("write", [Kind.RECORDS_WRITTEN])])
async def test_only_what_is_asked_for(world: Guarded, audit: Heard, value: str, kinds: list[Kind]) -> None:
    await setting(world, orders=value)
    stub = await world.stub(ALICE)
    await ask(stub.Produce(), produce())
    await ask(stub.Fetch(), fetch())
    assert [kind for kind, *_ in audit.records()] == kinds


async def test_it_counts_for_streams_that_are_open(world: Guarded, audit: Heard) -> None:
    stub = await world.stub(ALICE)
    writes = stub.Produce()
    await ask(writes, produce())
    assert audit.records() == []
    await setting(world, orders="write")
    await ask(writes, produce())
    assert len(audit.records()) == 1
    await setting(world)
    await ask(writes, produce())
    assert audit.records() == []


async def test_what_was_refused_was_neither_read_nor_written(world: Guarded, audit: Heard) -> None:
    await world.allow(allow(ResourceType.TOPIC, EVERY_NAME, Operation.WRITE))
    await setting(world, orders="read,write", payments="read,write")
    stub = await world.stub(ALICE)
    [answer] = (await ask(stub.Fetch(), fetch())).partitions
    assert answer.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    torn = batch_of(1)[:-1] + b"\0"
    answers = (await ask(stub.Produce(), both(torn))).partitions
    assert [one.error for one in answers] == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]
    assert audit.records() == [(Kind.RECORDS_WRITTEN, "User:alice", "payments", 1)]


def test_what_may_have_been_written_counts() -> None:
    some: Any = None
    places = [PartitionId(topic_id_of(name), 0) for name in TOPICS]
    results: list[Appended | None] = [Appended(error=RequestTimedOut("late")), Appended(error=Rejected("no"))]
    call = ProduceCall(some, 1, -1, places, results, 0, 0, 0)
    assert list(call.written) == [topic_id_of("orders")]


async def test_a_write_without_an_answer_is_told_too(world: Guarded, audit: Heard) -> None:
    await setting(world, orders="write")
    stub = await world.stub(ALICE)
    silent: Any = produce()
    silent.acks = 0
    writes = stub.Produce()
    await writes.write(silent)
    await ask(writes, produce(topic="payments"))
    assert [name for _, _, name, _ in audit.records()] == ["orders"]


async def test_nodes_are_not_told(world: Guarded, audit: Heard) -> None:
    await world.show(
        image_of({**TOPICS, "__consumer_offsets": 1}, configs={"__consumer_offsets": {"audit.access": "read"}})
    )
    stub = await world.stub(node(Role.COORDINATOR))
    await ask(stub.Fetch(), fetch("__consumer_offsets"))
    assert audit.records() == []


async def test_an_open_cluster_tells_of_nobody_by_name(world: Guarded, audit: Heard) -> None:
    await setting(world, orders="write")
    await world.turn(Mode.OPEN)
    await world.show(replace(world.cluster.image))
    await ask((await world.stub(NOTHING)).Produce(), produce())
    assert audit.records() == [(Kind.RECORDS_WRITTEN, "User:ANONYMOUS", "orders", 1)]
