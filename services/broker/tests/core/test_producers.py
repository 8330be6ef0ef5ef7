"""Idempotent producers: the rules of 04-replication §8 as dialogues, and against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.owned_ids import owned_id
from headrace_broker.core.producers import SEQUENCES, Producers, last_of
from headrace_broker.core.rows import IndexRow, ProducerBatch, ProducerRow
from headrace_common.core.errors import HeadraceError, InvalidProducerEpoch, OutOfOrderSequence
from headrace_common.core.ids import Offset

NOW = 1_000


def append(
    producers: Producers, epoch: int, first: int, records: int, offset: int, *, producer_id: int = 7, now_ms: int = NOW
) -> None:
    assert producers.check(producer_id, epoch, first, records) is None
    producers.note_appended(producer_id, epoch, first, records, Offset(offset), now_ms, now_ms)


def test_a_producer_that_nothing_is_known_of_may_start_anywhere() -> None:
    assert Producers().check(7, 3, 500, 10) is None


def test_the_next_sequence_follows_and_no_other() -> None:
    producers = Producers()
    append(producers, 0, 0, 10, 0)
    append(producers, 0, 10, 5, 10)
    for first in (14, 16, 0, 9):
        with pytest.raises(OutOfOrderSequence):
            producers.check(7, 0, first, 3)


def test_a_batch_sent_again_is_answered_with_its_old_offset_among_the_last_five_only() -> None:
    producers = Producers()
    for number in range(6):
        append(producers, 0, number * 10, 10, 100 + number)
    assert [getattr(producers.check(7, 0, n * 10, 10), "base_offset", None) for n in range(1, 6)] == [*range(101, 106)]
    with pytest.raises(OutOfOrderSequence):
        producers.check(7, 0, 0, 10)


def test_a_sequence_is_not_used_for_a_batch_of_another_length() -> None:
    producers = Producers()
    append(producers, 0, 0, 10, 0)
    with pytest.raises(OutOfOrderSequence):
        producers.check(7, 0, 0, 9)


def test_an_older_epoch_is_fenced_even_with_a_known_sequence() -> None:
    producers = Producers()
    append(producers, 0, 0, 10, 0)
    append(producers, 1, 0, 10, 10)
    with pytest.raises(InvalidProducerEpoch):
        producers.check(7, 0, 0, 10)


def test_a_new_epoch_starts_from_zero() -> None:
    producers = Producers()
    append(producers, 0, 0, 10, 0)
    with pytest.raises(OutOfOrderSequence):
        producers.check(7, 1, 10, 1)
    append(producers, 1, 0, 1, 10)
    append(producers, 1, 1, 1, 11)


def test_sequences_wrap_to_zero_after_the_largest() -> None:
    producers = Producers()
    top = SEQUENCES - 1
    append(producers, 0, top - 1, 2, 0)
    append(producers, 0, 0, 3, 2)
    assert last_of(top, 3) == 1
    again = Producers()
    append(again, 0, top, 3, 0)  # the batch itself wraps: top, 0, 1
    append(again, 0, 2, 1, 3)
    assert again.check(7, 0, top, 3) == ProducerBatch(top, 1, Offset(0), NOW)


def test_idle_producers_expire_and_one_in_a_transaction_does_not() -> None:
    row = ProducerRow(8, 0, (), 10, transaction_start=Offset(5))
    producers = Producers([row])
    append(producers, 0, 0, 1, 0, now_ms=100)
    assert producers.expire(100) == 0
    assert producers.expire(101) == 1
    assert [left.producer_id for left in producers.snapshot()] == [8]


def row_of(producer_id: int, epoch: int, first: int, records: int, offset: int) -> IndexRow:
    return IndexRow(
        Offset(offset), records - 1, 100, records, 0, 0, producer_id, epoch, first, Offset(0), 100, NOW, NOW
    )


Batch = tuple[int, int, int, int]
"""Producer id, epoch, first sequence, records."""

batches = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 1, 2, 3, 4, 6, 9]), st.integers(1, 3)),
    max_size=60,
)


def test_the_first_of_them_are_those_that_began_first_then_the_others_by_id() -> None:
    producers = Producers()
    for producer_id in (40, 20, 30, 10, 50):
        opens = producer_id in (20, 30)
        producers.note_appended(producer_id, 0, 0, 1, Offset(100 - producer_id), NOW, NOW, transactional=opens)
    assert [row.producer_id for row in Producers(producers.snapshot()).first(4)] == [30, 20, 10, 40]
    assert [row.producer_id for row in producers.first(9, open_only=True)] == [20, 30], "as they were appended"
    assert [len(producers.first(n)) for n in (0, 1, 2, 9)] == [0, 1, 2, 5]


class Model:
    """All accepted batches in order; what follows is computed from the whole history each time."""

    def __init__(self) -> None:
        self.log: list[tuple[Batch, int]] = []

    def verdict(self, batch: Batch) -> str | int:
        producer_id, epoch, first, _ = batch
        mine = [(b, offset) for b, offset in self.log if b[0] == producer_id]
        if not mine:
            return "append"
        newest = max(b[1] for b, _ in mine)
        current = [(b, offset) for b, offset in mine if b[1] == newest]
        for known, offset in current[-5:]:
            if known == batch:
                return offset
        if epoch < newest:
            return "fenced"
        if epoch > newest:
            return "append" if first == 0 else "gap"
        last = current[-1][0]
        return "append" if first == last[2] + last[3] else "gap"


@given(batches, st.integers(0, 60))
def test_every_verdict_is_the_models_also_after_a_restart(sent: list[Batch], restart_at: int) -> None:
    model, producers = Model(), Producers()
    snapshot, replayed = producers.snapshot(), list[IndexRow]()
    for number, batch in enumerate(sent):
        if number == restart_at:
            producers = Producers(snapshot)
            producers.replay(replayed, NOW)
        elif number % 7 == 0:
            snapshot, replayed = producers.snapshot(), []
        expected = model.verdict(batch)
        try:
            found = producers.check(*batch)
            actual: str | int = "append" if found is None else found.base_offset
        except InvalidProducerEpoch:
            actual = "fenced"
        except OutOfOrderSequence:
            actual = "gap"
        assert actual == expected
        if actual == "append":
            offset = 1000 + number
            producers.note_appended(*batch, Offset(offset), NOW, NOW)
            replayed.append(row_of(*batch, offset))
            model.log.append((batch, offset))


def test_errors_say_what_to_do() -> None:
    producers = Producers()
    append(producers, 1, 0, 1, 0)
    with pytest.raises(HeadraceError, match="ask for a new producer id"):
        producers.check(7, 0, 0, 1)


def test_the_highest_id_is_of_those_that_can_have_been_given_out() -> None:
    producers = Producers()
    assert producers.highest_id(2**48) == -1
    append(producers, 0, 0, 1, 0, producer_id=1005)
    append(producers, 0, 0, 1, 1, producer_id=2**62 - 1)
    assert producers.highest_id(2**48) == 1005
    append(producers, 0, 0, 1, 2, producer_id=owned_id(1007, "User:alice", b"key"))
    assert producers.highest_id(2**48) == 1007, "of one that is somebody's it is the number that it was made of"


# --- the bound --------------------------------------------------------------------------------------------------------


def known_to(producers: Producers) -> set[int]:
    return {row.producer_id for row in producers.snapshot()}


def test_the_one_that_has_not_written_for_longest_is_forgotten_and_may_start_anywhere_again() -> None:
    producers = Producers()
    for producer_id in (1, 2, 3):
        append(producers, 0, 0, 1, producer_id, producer_id=producer_id)
    append(producers, 0, 1, 1, 4, producer_id=1)
    producers.forget_above(2)
    assert known_to(producers) == {1, 3}
    assert producers.check(2, 0, 700, 1) is None
    with pytest.raises(OutOfOrderSequence):
        producers.check(3, 0, 700, 1)


def test_who_has_an_open_transaction_stays_and_goes_by_its_end() -> None:
    producers = Producers()
    for producer_id in (1, 2, 3):
        producers.note_appended(producer_id, 0, 0, 1, Offset(producer_id), NOW, NOW, transactional=producer_id != 3)
    producers.forget_above(1)
    assert known_to(producers) == {1, 2, 3}, "the last one to write stays as well"
    append(producers, 0, 0, 1, 4, producer_id=4)
    producers.forget_above(1)
    assert known_to(producers) == {1, 2, 4}
    producers.end(1, 1, True, NOW)
    producers.forget_above(2)
    assert known_to(producers) == {1, 2}
    assert producers.check_marker(1, 1, True) is False, "a repeat of its marker is known as one"


def test_the_order_survives_a_snapshot() -> None:
    producers = Producers()
    for now_ms, producer_id in ((30, 1), (10, 2), (20, 3)):
        append(producers, 0, 0, 1, now_ms, producer_id=producer_id, now_ms=now_ms)
    again = Producers(producers.snapshot())
    again.forget_above(2)
    assert known_to(again) == {1, 3}


@given(
    most=st.integers(1, 6),
    steps=st.lists(
        st.tuples(st.sampled_from(["write", "transaction", "end", "expire", "snapshot"]), st.integers(0, 11))
    ),
)
def test_against_one_that_forgets_nobody(most: int, steps: list[tuple[str, int]]) -> None:
    """The oracle sorts all by when they last wrote, and keeps the newest and those in transactions."""
    producers, last, opened = Producers(), dict[int, int](), set[int]()
    epochs: dict[int, int] = {}
    for now_ms, (what, producer_id) in enumerate(steps):
        match what:
            case "write" if producer_id not in opened:
                producers.note_appended(producer_id, epochs.get(producer_id, 0), 0, 1, Offset(now_ms), now_ms, now_ms)
            case "transaction":
                epoch = epochs.setdefault(producer_id, 0)
                producers.note_appended(producer_id, epoch, 0, 1, Offset(now_ms), now_ms, now_ms, transactional=True)
                opened.add(producer_id)
            case "end":
                epochs[producer_id] = epochs.get(producer_id, 0) + 1
                producers.end(producer_id, epochs[producer_id], True, now_ms)
                opened.discard(producer_id)
            case "expire":
                producers.expire(now_ms - 5)
                last = {one: at for one, at in last.items() if at >= now_ms - 5 or one in opened}
                continue
            case "snapshot":
                producers = Producers(producers.snapshot())
                continue
            case _:
                continue
        last[producer_id] = now_ms
        producers.forget_above(most)
        idle = sorted((one for one in last if one not in opened), key=last.__getitem__)
        surplus = max(0, min(len(last) - most, len(idle) - 1))
        for forgotten in idle[:surplus]:
            del last[forgotten]
        assert known_to(producers) == set(last)
        assert set(producers.open) == opened
