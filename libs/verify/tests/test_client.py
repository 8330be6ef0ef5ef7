"""What a process of the load writes down of its batches, whatever becomes of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace import HeadraceError, Producer
from headrace.errors import ErrorCode, UnknownTopicOrPartition, WaitTimedOut
from headrace_verify.checker_history import F, Operation, Sent, Type
from headrace_verify.client import Client, History, batch


class FakeDelivery:
    def __init__(self, end: int | HeadraceError) -> None:
        self._end = end

    def result(self) -> Any:
        if isinstance(self._end, HeadraceError):
            raise self._end
        return type("Metadata", (), {"offset": self._end})()


class FakeProducer:
    """Ends the first send of each batch with ``first``, the others with offsets."""

    def __init__(self, first: int | HeadraceError, rest: HeadraceError | None = None) -> None:
        self._first, self._rest = first, rest

    def send_many(self, topic: str, values: list[bytes], partition: list[int]) -> list[FakeDelivery]:
        ends = [self._first, *(self._rest or 10 + n for n in range(len(values) - 1))]
        return [FakeDelivery(end) for end in ends]


class FakeConsumer:
    def partitions_for(self, topic: str) -> set[int]:
        return {0, 1}


UNKNOWN, FAILED = WaitTimedOut("no answer"), UnknownTopicOrPartition("there is none")


@pytest.mark.parametrize(
    ("first", "rest", "end", "offset"),
    [
        (7, None, Type.OK, 7),
        (UNKNOWN, None, Type.INFO, None),
        (FAILED, None, Type.INFO, None),
        (FAILED, FAILED, Type.FAIL, None),
        (UNKNOWN, UNKNOWN, Type.INFO, None),
    ],
)
def test_the_outcome_of_a_batch_is_that_of_all_of_it(
    first: Any, rest: HeadraceError | None, end: Type, offset: int | None
) -> None:
    entries: list[Operation] = []
    told: list[ErrorCode] = []
    fakes: tuple[Any, Any] = (FakeProducer(first, rest), FakeConsumer())
    client = Client(*fakes, "t", History(entries.append, 3), 3, lambda error, doing: told.append(error.code))
    assert batch(client, random.Random(1))
    call, done = entries
    assert (call.type, call.f, done.type, done.f) == (Type.INVOKE, F.SEND, end, F.SEND)
    sends = [one for one in done.value if isinstance(one, Sent)]
    assert len(sends) == len(call.value) > 1
    assert sends[0].offset == offset
    assert [one.offset is not None for one in sends[1:]] == [rest is None] * (len(sends) - 1)
    assert len({one.value for one in sends}) == len(sends)
    assert bool(told) is (offset is None)


def test_a_producer_takes_what_the_fake_takes() -> None:
    assert "partition" in Producer.send_many.__annotations__
