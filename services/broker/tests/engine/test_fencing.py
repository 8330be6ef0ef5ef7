"""Fencing tokens through whole brokers: zombies write nothing, whoever leads, after cuts, restarts and new replicas."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from services.broker.tests.kit.batches import NOW_MS, batch_of
from services.broker.tests.kit.cluster import topic_id_of
from services.broker.tests.kit.dialogue import running_engine
from services.broker.tests.kit.trio import ALL, ONE, THREE, TWO, Trio, running_trio, until

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.engine.broker import EngineSettings
from headrace_broker.engine.produce import Appended, ProduceEntry, ProduceSession
from headrace_broker.engine.storage_queue import Flush
from headrace_common.core.batch import ControlType, build_control_batch, build_fence_batch, read_header
from headrace_common.core.errors import ErrorCode
from headrace_common.core.ids import NodeId, Offset, PartitionId

INTERNAL = "__consumer_offsets"
ID = PartitionId(topic_id_of(INTERNAL), 0)


class Writer:
    """A coordinator, as the partition's leader sees it."""

    def __init__(self, token: int) -> None:
        self.token = token

    async def fence(self, session: ProduceSession, *, acks: int = -1, id: PartitionId = ID) -> Appended:
        return await ask(session, build_fence_batch(self.token, timestamp_ms=NOW_MS), None, acks=acks, id=id)

    async def append(self, session: ProduceSession, *, acks: int = -1, id: PartitionId = ID) -> Appended:
        return await ask(session, batch_of(1), self.token, acks=acks, id=id)


async def ask(
    session: ProduceSession, batch: bytes, token: int | None, *, acks: int = -1, id: PartitionId = ID
) -> Appended:
    [result] = await ask_all(session, [(batch, token)], acks=acks, id=id)
    return result


async def ask_all(
    session: ProduceSession, batches: Sequence[tuple[bytes, int | None]], *, acks: int = -1, id: PartitionId = ID
) -> list[Appended]:
    """One request with several batches of a partition, each with the token that it carries."""
    session.accept(1, acks, 30_000, [ProduceEntry(id, batch, None, token) for batch, token in batches])
    await until(lambda: bool(session.answers))
    return [result for result in session.answers.popleft().results if result is not None]


def at(trio: Trio, broker: NodeId) -> ProduceSession:
    return trio.brokers[broker].produce_session()


def code(result: Appended) -> ErrorCode:
    return ErrorCode.NONE if result.error is None else result.error.code


class TestOneBroker:
    async def test_internal_topics_take_nothing_without_a_token(self) -> None:
        async with running_engine({INTERNAL: 1, "t": 1}) as engine:
            session = engine.session
            refused = await ask(session, batch_of(1), None)
            assert code(refused) is ErrorCode.POLICY_VIOLATION
            assert "fencing token" in str(refused.error)
            user = PartitionId(topic_id_of("t"), 0)
            assert code(await ask(session, batch_of(1), None, id=user)) is ErrorCode.NONE
            assert code(await Writer(4).append(session)) is ErrorCode.FENCED_WRITER

    async def test_the_present_token_comes_with_the_refusal(self) -> None:
        async with running_engine({INTERNAL: 1}) as engine:
            old, new = Writer(3), Writer(4)
            nothing = await old.append(engine.session)
            assert (code(nothing), nothing.fencing_token, nothing.base_offset) == (ErrorCode.FENCED_WRITER, None, -1)
            assert (await old.fence(engine.session)).base_offset == 0
            again = await old.fence(engine.session)
            assert (code(again), again.fencing_token) == (ErrorCode.FENCED_WRITER, 3), "its answer may have been lost"
            assert again.base_offset == 0, "it asks from there on whether it is committed"
            assert (await old.append(engine.session)).base_offset == 1
            assert (await new.fence(engine.session)).base_offset == 2
            zombie = await old.append(engine.session)
            assert (code(zombie), zombie.fencing_token, zombie.base_offset) == (ErrorCode.FENCED_WRITER, 4, 2)
            assert (await new.append(engine.session)).base_offset == 3

    async def test_users_may_fence_their_own_topics(self) -> None:
        async with running_engine({"t": 1}) as engine:
            id = PartitionId(topic_id_of("t"), 0)
            writer = Writer(10)
            assert code(await writer.fence(engine.session, id=id)) is ErrorCode.NONE
            assert code(await writer.append(engine.session, id=id)) is ErrorCode.NONE
            assert code(await Writer(9).append(engine.session, id=id)) is ErrorCode.FENCED_WRITER
            assert code(await ask(engine.session, batch_of(1), None, id=id)) is ErrorCode.NONE

    async def test_a_fence_that_is_trimmed_is_told_as_before_the_start(self) -> None:
        async with running_engine({"t": 1}) as engine:
            id, writer = PartitionId(topic_id_of("t"), 0), Writer(3)
            await writer.fence(engine.session, id=id)
            for _ in range(3):
                await writer.append(engine.session, id=id)
            await engine.broker.trim([(id, Offset(4))])
            again = await writer.fence(engine.session, id=id)
            assert (code(again), again.fencing_token, again.base_offset) == (ErrorCode.FENCED_WRITER, 3, 3)

    async def test_in_a_request_with_a_fence_each_batch_is_appended_behind_the_one_before_it(self) -> None:
        async with running_engine({"t": 1}) as engine:
            id = PartitionId(topic_id_of("t"), 0)
            one, two = (build_fence_batch(token, timestamp_ms=NOW_MS) for token in (1, 2))
            results = await ask_all(
                engine.session, [(one, None), (batch_of(1), 1), (two, None), (batch_of(1), 2)], id=id
            )
            assert [(code(each), each.base_offset) for each in results] == [(ErrorCode.NONE, n) for n in range(4)]

    async def test_what_stands_behind_a_batch_that_the_fence_in_its_request_shuts_out_is_not_appended(self) -> None:
        async with running_engine({"t": 1}) as engine:
            id = PartitionId(topic_id_of("t"), 0)
            one, two = (build_fence_batch(token, timestamp_ms=NOW_MS) for token in (1, 2))
            results = await ask_all(
                engine.session, [(one, None), (two, None), (batch_of(1), 1), (batch_of(1), 2)], id=id
            )
            assert [code(each) for each in results] == [
                ErrorCode.NONE,
                ErrorCode.NONE,
                ErrorCode.FENCED_WRITER,
                ErrorCode.OPERATION_NOT_ATTEMPTED,
            ]
            assert results[2].fencing_token == 2

    async def test_a_fence_is_no_part_of_a_transaction(self) -> None:
        async with running_engine({"t": 1}, coordinator=True) as engine:
            fence = build_fence_batch(1, timestamp_ms=NOW_MS)
            [result] = await engine.produce(fence, transactional_id="id")
            assert code(result) is ErrorCode.INVALID_REQUEST
            assert "send it without one" in str(result.error)

    async def test_a_topic_may_require_a_token_of_all_its_writers(self) -> None:
        configs = {"t": {"fencing.required": "true"}}
        async with running_engine({"t": 1}, configs=configs) as engine:
            id = PartitionId(topic_id_of("t"), 0)
            refused = await ask(engine.session, batch_of(1), None, id=id)
            assert (code(refused), refused.fencing_token) == (ErrorCode.FENCED_WRITER, None)
            assert code(await Writer(4).fence(engine.session, id=id)) is ErrorCode.NONE
            assert code(await Writer(4).append(engine.session, id=id)) is ErrorCode.NONE
            refused = await ask(engine.session, batch_of(1), None, id=id)
            assert (code(refused), refused.fencing_token) == (ErrorCode.FENCED_WRITER, 4)

    async def test_other_control_batches_are_refused(self) -> None:
        async with running_engine({INTERNAL: 1}) as engine:
            for kind in (ControlType.LEADER_EPOCH, ControlType.COMMIT):
                batch = build_control_batch(kind, b"", timestamp_ms=NOW_MS, producer_id=-1, producer_epoch=-1)
                assert code(await ask(engine.session, batch, 1)) is ErrorCode.INVALID_RECORD

    async def test_users_cannot_trim_internal_topics(self) -> None:
        async with running_engine({INTERNAL: 1}) as engine:
            writer = Writer(1)
            await writer.fence(engine.session)
            [trimmed] = await engine.broker.trim([(ID, -1)])
            assert trimmed.error is not None
            assert trimmed.error.code is ErrorCode.POLICY_VIOLATION

    async def test_the_system_may_use_the_reserve_of_the_disk(self) -> None:
        async with running_engine({INTERNAL: 1, "t": 1}) as engine:
            engine.broker.loop.disk_full = "the disk is full"
            user = PartitionId(topic_id_of("t"), 0)
            assert code(await ask(engine.session, batch_of(1), None, id=user)) is ErrorCode.DISK_FULL
            assert code(await Writer(1).fence(engine.session)) is ErrorCode.NONE

    @pytest.mark.parametrize("keep_unsynced", [None, 0])
    async def test_a_restart_knows_the_token_of_what_is_left(self, keep_unsynced: int | None) -> None:
        store = MemoryLogs()
        settings = EngineSettings(flush=Flush.GROUP)
        async with running_engine({INTERNAL: 1}, store=store, settings=settings) as engine:
            await Writer(1).fence(engine.session)
            store.sync_gate.clear()
            engine.session.accept(
                1, 0, 30_000, [ProduceEntry(ID, build_fence_batch(2, timestamp_ms=NOW_MS), None, None)]
            )
            await engine.settle()
            found = store.reopen(keep_unsynced=keep_unsynced)
            store.sync_gate.set()
        async with running_engine({INTERNAL: 1}, store=found) as engine:
            replica = engine.broker.replicas.get(ID)
            assert replica is not None
            assert replica.core.fences.token == (2 if keep_unsynced is None else 1)


class TestThreeBrokers:
    async def test_a_zombie_writes_nothing_under_a_new_leader_either(self) -> None:
        async with running_trio() as trio:
            old, new = Writer(1), Writer(2)
            await old.fence(at(trio, ONE), id=trio.id)
            await old.append(at(trio, ONE), id=trio.id)
            await until(lambda: all(trio.core(b).fences.token == 1 for b in (TWO, THREE)))
            await new.fence(at(trio, ONE), id=trio.id)
            await trio.lead(TWO)
            zombie = await old.append(at(trio, TWO), id=trio.id)
            assert (code(zombie), zombie.fencing_token) == (ErrorCode.FENCED_WRITER, 2)
            assert code(await new.append(at(trio, TWO), id=trio.id)) is ErrorCode.NONE

    async def test_a_fence_that_only_a_deposed_leader_had_is_cut_with_its_log(self) -> None:
        async with running_trio() as trio:
            first, id = Writer(1), trio.id
            await first.fence(at(trio, ONE), id=id)
            await until(lambda: all(trio.core(b).fences.token == 1 for b in (TWO, THREE)))
            trio.cut(ONE)
            alone = at(trio, ONE)
            assert code(await Writer(2).fence(alone, acks=1, id=id)) is ErrorCode.NONE
            assert code(await first.append(alone, acks=1, id=id)) is ErrorCode.FENCED_WRITER
            trio.silence(ONE)
            await until(lambda: trio.now.leader == TWO and trio.core(TWO).leading is not None)
            assert code(await first.append(at(trio, TWO), id=id)) is ErrorCode.NONE, (
                "what is not committed binds nobody"
            )
            trio.cluster.heal()
            await until(lambda: trio.core(ONE).log_end == 2 and trio.core(ONE).epochs.latest == 1)
            assert trio.core(ONE).fences.token == 1
            await until(trio.all_in_sync)
            await trio.lead(ONE)
            assert code(await first.append(at(trio, ONE), id=id)) is ErrorCode.NONE

    async def test_a_replica_that_begins_behind_the_fence_has_its_token(self) -> None:
        """The fence was deleted by retention, as in a user's topic; the token stays."""
        async with running_trio(min_insync_replicas="1") as trio:
            id, writer = trio.id, Writer(7)
            await trio.assign(ONE)
            await until(lambda: trio.brokers[TWO].replicas.get(id) is None)
            await writer.fence(at(trio, ONE), id=id)
            await writer.append(at(trio, ONE), id=id)
            [trimmed] = await trio.brokers[ONE].trim([(id, Offset(2))])
            assert trimmed.error is None
            await trio.assign(ONE, TWO)
            await until(lambda: trio.core(TWO).log_start == 2 and trio.core(TWO).fences.token == 7)
            await trio.lead(TWO)
            assert code(await Writer(6).append(at(trio, TWO), id=id)) is ErrorCode.FENCED_WRITER
            assert code(await writer.append(at(trio, TWO), id=id)) is ErrorCode.NONE

    async def test_all_replicas_hold_the_fence_as_it_was_stored(self) -> None:
        async with running_trio() as trio:
            await Writer(5).fence(at(trio, ONE), id=trio.id)
            await until(lambda: all(trio.core(b).log_end == 1 for b in (TWO, THREE)))
            for broker in ALL:
                [batch] = await trio.stored(broker)
                assert read_header(batch).control
