"""Whose a transaction is, in one partition: what another's batches in it come to, as dialogues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.transacting import (
    begin,
    codes,
    end,
    enrol,
    fresh,
    marker,
    only,
    sent,
    written,
)

from headrace_broker.core.partition_events import Answer, AskEnrolment, BatchArrived, Effect
from headrace_broker.core.rows import PutBatch
from headrace_common.core.errors import ErrorCode, InvalidProducerIdMapping, NotEnoughReplicas

MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRONG = InvalidProducerIdMapping("another's")


def mine(sequence: int = 0, ref: object = "mine", *, epoch: int = 0) -> BatchArrived:
    return sent(sequence, ref, epoch=epoch, held=True)


def theirs(sequence: int = 0, ref: object = "theirs", *, epoch: int = 0) -> BatchArrived:
    """Somebody names an id of his own, and the producer id of another."""
    return sent(sequence, ref, epoch=epoch, id="other", held=True)


def asks(effects: list[Effect]) -> list[tuple[str, int]]:
    return [(one.transactional_id, one.epoch) for one in only(effects, AskEnrolment)]


def test_a_batch_of_an_open_transaction_that_names_another_id_is_refused() -> None:
    partition = fresh()
    begin(partition)
    assert codes(partition.handle(theirs(1))) == [("theirs", MAPPING)]
    [put] = partition.handle(mine(1))
    assert isinstance(put, PutBatch)
    assert partition.log_end == 2


def test_without_access_nobody_looks() -> None:
    partition = fresh()
    begin(partition)
    assert only(partition.handle(sent(1, id="other")), PutBatch)


def test_a_leader_that_is_new_asks_once_more_and_takes_no_other_id() -> None:
    partition = fresh()
    begin(partition)
    partition.handle(elected(6))
    first = partition.handle(theirs(1))
    assert asks(first) == [("other", 0)]
    asked = partition.handle(mine(1))
    assert asks(asked) == [("id", 0)]
    assert partition.handle(mine(2)) == [], "it waits behind the one before it"
    assert codes(enrol(partition, first, WRONG)) == [("theirs", MAPPING)]
    assert len(only(enrol(partition, asked), PutBatch)) == 2
    assert asks(partition.handle(mine(3))) == []
    assert codes(partition.handle(theirs(4))) == [("theirs", MAPPING)]
    assert partition.log_end == 4


def test_what_was_sent_before_is_answered_by_a_leader_that_is_new() -> None:
    partition = fresh()
    begin(partition)
    partition.handle(elected(6))
    assert [one.base_offset for one in only(partition.handle(mine(0)), Answer)] == [0]


@pytest.mark.parametrize("epoch", [0, 1])
def test_whoever_is_first_does_not_stand_in_the_way(epoch: int) -> None:
    """The id of another waits for its own answer; neither its fate nor its epoch is the right one's."""
    partition = fresh()
    first = partition.handle(theirs(epoch=epoch))
    asked = partition.handle(mine())
    assert (asks(first), asks(asked)) == ([("other", epoch)], [("id", 0)])
    assert (len(partition.appends.parking), partition.appends.parking.size) == (2, len(mine().batch) * 2)
    assert codes(enrol(partition, first, WRONG)) == [("theirs", MAPPING)]
    assert only(enrol(partition, asked), PutBatch)
    assert (len(partition.appends.parking), partition.appends.parking.size) == (0, 0)


def test_the_next_transaction_of_a_producer_id_may_be_of_another_id() -> None:
    """Ids of a unit hand it on, with a higher epoch."""
    partition = fresh()
    begin(partition)
    end(partition, 1)
    asked = partition.handle(theirs(epoch=1))
    assert asks(asked) == [("other", 1)]
    assert only(enrol(partition, asked), PutBatch)
    assert codes(partition.handle(mine(1, epoch=1))) == [("mine", MAPPING)]
    assert asks(partition.handle(mine(1, epoch=1))) == []


def test_a_marker_ends_all_that_waits_of_older_epochs() -> None:
    partition = fresh()
    partition.handle(mine())
    partition.handle(theirs(epoch=3))
    effects = partition.handle(marker(2))
    assert codes(effects) == [("mine", ErrorCode.INVALID_PRODUCER_EPOCH)]
    assert len(partition.appends.parking) == 1
    assert codes(partition.handle(marker(4))) == [("theirs", ErrorCode.INVALID_PRODUCER_EPOCH)]


class TestStrangers:
    """Who writes under a producer id of another, outside of transactions."""

    def stranger(self, sequence: int, ref: object = "x", *, epoch: int = 0) -> BatchArrived:
        return replace(sent(sequence, ref, epoch=epoch, plain=True), stranger=NotEnoughReplicas("stands for any"))

    def owner(self, sequence: int, ref: object = "o") -> BatchArrived:
        return sent(sequence, ref, plain=True)

    def test_nothing_of_them_is_appended_or_remembered(self) -> None:
        partition = fresh()
        for first in (0, 5):
            assert len(codes(partition.handle(self.stranger(first)))) == 1
        assert len(partition.producers) == 0
        assert only(partition.handle(self.owner(0)), PutBatch)
        for epoch in (0, 1, 32_767):
            assert len(codes(partition.handle(self.stranger(1, epoch=epoch)))) == 1
        assert only(partition.handle(self.owner(1)), PutBatch)
        assert partition.log_end == 2

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_nobody_waits_behind_a_transaction_of_them(self, epoch: int) -> None:
        partition = fresh()
        asked = partition.handle(theirs(epoch=epoch))
        assert only(partition.handle(replace(self.owner(0), held=True)), PutBatch)
        assert codes(enrol(partition, asked, WRONG)) == [("theirs", MAPPING)]
        assert only(partition.handle(replace(self.owner(1), held=True)), PutBatch)

    def test_what_is_in_the_log_is_answered(self) -> None:
        """A producer that goes on as another principal repeats what had no answer: a refusal says that it is absent."""
        partition = fresh()
        partition.handle(self.owner(0))
        written(partition)
        [answer] = partition.handle(self.stranger(0))
        assert isinstance(answer, Answer)
        assert (answer.ref, answer.base_offset, partition.log_end) == ("x", 0, 1)
