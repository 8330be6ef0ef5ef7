"""WriteAudit: lines of nodes are appended in order under their name, by nobody else, and the topic is made for them."""

from __future__ import annotations

import asyncio

import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.engine.audit_log import AUDIT_TOPIC, BYTES_MAX, LINES_MAX
from headrace_common.core.audit.canonical import LINE_BYTES_MAX
from headrace_common.core.batch import Codec, decode_batch, read_header
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    HeadraceError,
    Rejected,
    RequestTimedOut,
)
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role

NODE = NodeKey(Role.ADMIN, NodeId(2))


async def stored(engine: Engine) -> list[tuple[bytes, bytes]]:
    fetched = await engine.fetch(topic=AUDIT_TOPIC, partition=1)
    batches = [decode_batch(batch) for batch in fetched.batches]
    return [pair for batch in batches for pair in zip(batch.keys(), batch.values(), strict=True)]


async def test_lines_are_appended_in_order_under_the_name_of_their_node() -> None:
    async with running_engine({AUDIT_TOPIC: 3}) as engine:
        await engine.broker.audit_log.write(NODE, 1, [b"one" * 100, b"two" * 100])
        await engine.broker.audit_log.write(NODE, 1, [b"three"])
        assert await stored(engine) == [(b"admin-2", line) for line in (b"one" * 100, b"two" * 100, b"three")]
        fetched = await engine.fetch(topic=AUDIT_TOPIC, partition=1)
        assert read_header(fetched.batches[0]).codec is Codec.ZSTD


async def test_the_topic_is_made_when_it_is_first_needed() -> None:
    async with running_engine() as engine:
        writing = asyncio.ensure_future(engine.broker.audit_log.write(NODE, 1, [b"one"]))
        await engine.settle()
        assert (engine.cluster.ensured, writing.done()) == (1, False)
        engine.cluster.ensuring.set()
        await writing
        assert await stored(engine) == [(b"admin-2", b"one")]


async def test_while_it_cannot_be_made_the_node_tries_again() -> None:
    async with running_engine() as engine:
        engine.cluster.ensuring.set()
        engine.cluster.not_ensured = RequestTimedOut("no controller")
        with pytest.raises(CoordinatorNotAvailable):
            await engine.broker.audit_log.write(NODE, 1, [b"one"])


async def test_who_does_not_lead_the_partition_says_so() -> None:
    async with running_engine({AUDIT_TOPIC: 3}) as engine:
        with pytest.raises(HeadraceError) as error:
            await engine.broker.audit_log.write(NODE, 7, [b"one"])
        assert error.value.retriable


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b""],
        [b"x"] * (LINES_MAX + 1),
        [b"x" * (LINE_BYTES_MAX + 1)],
        [b"x" * LINE_BYTES_MAX] * (BYTES_MAX // LINE_BYTES_MAX + 1),
    ],
)
async def test_what_no_node_writes_is_refused(lines: list[bytes]) -> None:
    async with running_engine({AUDIT_TOPIC: 3}) as engine:
        with pytest.raises(Rejected):
            await engine.broker.audit_log.write(NODE, 1, lines)
        assert engine.broker.replicas.all()[1].core.log_end == 0


async def test_no_client_and_no_coordinator_appends_to_it() -> None:
    async with running_engine({AUDIT_TOPIC: 1}) as engine:
        session = engine.session
        engine.send(batch_of(1), session=session, topic=AUDIT_TOPIC)
        _, [result] = await engine.answer(session)
        assert isinstance(result.error, ClusterAuthorizationFailed)
