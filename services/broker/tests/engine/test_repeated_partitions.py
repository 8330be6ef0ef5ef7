"""Requests that name a partition several times: its batches are appended in their order, up to the first refusal."""

from __future__ import annotations

from collections.abc import Sequence

from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.dialogue import running_engine

from headrace_broker.engine.broker import EngineSettings
from headrace_broker.engine.produce import Appended
from headrace_broker.engine.storage_queue import Flush
from headrace_common.core.batch import read_header
from headrace_common.core.errors import ErrorCode

NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED


def fates(results: Sequence[Appended]) -> list[int | ErrorCode]:
    """Of each entry: its base offset, or the code of its error."""
    return [one.base_offset if one.error is None else one.error.code for one in results]


def corrupt(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


async def test_batches_of_a_partition_are_appended_in_their_order() -> None:
    for flush in Flush:
        async with running_engine(settings=EngineSettings(flush=flush)) as engine:
            results = await engine.produce([(0, batch_of(3)), (1, batch_of(1)), (0, batch_of(2)), (0, batch_of(1))])
            assert fates(results) == [0, 0, 3, 5]
            fetched = (await engine.fetch()).batches
            assert [read_header(batch).record_count for batch in fetched] == [3, 2, 1]


async def test_what_stands_behind_a_batch_that_is_wrong_is_not_looked_at() -> None:
    async with running_engine() as engine:
        wrong = corrupt(batch_of(2))
        results = await engine.produce([(0, batch_of(1)), (0, wrong), (1, batch_of(1)), (0, batch_of(1)), (0, wrong)])
        assert fates(results) == [0, ErrorCode.CORRUPT_MESSAGE, 0, NOT_ATTEMPTED, NOT_ATTEMPTED]
        assert fates(await engine.produce(batch_of(1))) == [1]


async def test_what_stands_behind_a_batch_that_the_log_refuses_is_not_appended_though_the_log_would_take_it() -> None:
    async with running_engine() as engine:
        await engine.produce(batch_of(1, producer_id=7, epoch=0, sequence=0))
        results = await engine.produce(
            [
                (0, batch_of(1, producer_id=7, epoch=0, sequence=5)),
                (1, batch_of(1)),
                (0, batch_of(1)),
                (0, batch_of(1, producer_id=7, epoch=0, sequence=1)),
            ]
        )
        assert fates(results) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, NOT_ATTEMPTED, NOT_ATTEMPTED]
        assert fates(await engine.produce(batch_of(1, producer_id=7, epoch=0, sequence=1))) == [1]


async def test_a_request_that_is_repeated_gets_the_offsets_of_before() -> None:
    async with running_engine() as engine:
        request = [(0, batch_of(2, producer_id=7, epoch=0, sequence=number)) for number in (0, 2, 4)]
        assert fates(await engine.produce(request)) == [0, 2, 4]
        assert fates(await engine.produce(request)) == [0, 2, 4]
        assert (await engine.fetch(6)).batches == []
