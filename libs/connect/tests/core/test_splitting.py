"""Which task reads which splits; whose fault an error is; what dead letters say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import TopicPartition
from headrace_common.core.errors import FencedOwner, InvalidConfig, NetworkFailed, RecordTooLarge
from headrace_common.core.ids import in_ids
from headrace_connect.core.dead_letters import Origin, Refusal, Stage, error_headers
from headrace_connect.core.errors import Fault, PartitionTaken, RetriableError, RowsRefused, fault_of, is_retriable
from headrace_connect.core.names import group_of, transactional_id
from headrace_connect.core.splitting import share

SPLITS = st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True, max_size=20)


@given(SPLITS, st.integers(1, 8), SPLITS, st.integers(1, 8))
def test_each_split_has_one_task_and_tasks_have_about_equally_many(
    splits: list[str], tasks_max: int, before: list[str], tasks_before: int
) -> None:
    at = {split: task for task, own in enumerate(share(before, tasks_before)) for split in own}
    shares = share(splits, tasks_max, at)
    assert sorted(split for own in shares for split in own) == sorted(splits)
    assert len(shares) == min(tasks_max, len(splits))
    assert not shares or max(map(len, shares)) - min(map(len, shares)) <= 1


@given(SPLITS, st.integers(1, 8))
def test_splits_stay_where_they_are(splits: list[str], tasks_max: int) -> None:
    before = share(splits, tasks_max)
    at = {split: task for task, own in enumerate(before) for split in own}
    assert share(splits, tasks_max, at) == before


@pytest.mark.parametrize(
    ("error", "fault", "retriable"),
    [
        (RetriableError("away"), Fault.WORLD, True),
        (ConnectionRefusedError("no"), Fault.WORLD, True),
        (TimeoutError(), Fault.WORLD, True),
        (NetworkFailed("no broker"), Fault.WORLD, True),
        (ValueError("of a driver"), Fault.WORLD, False),
        (InvalidConfig("no such key"), Fault.CONFIG, False),
        (RecordTooLarge("large"), Fault.CONFIG, False),
        (FencedOwner("old"), Fault.FENCED, False),
        (PartitionTaken([TopicPartition("t", 0)]), Fault.FENCED, False),
        (RowsRefused({0: "bad"}), Fault.DATA, False),
        (KeyError("x"), Fault.BUG, False),
        (AssertionError(), Fault.BUG, False),
    ],
)
def test_whose_fault_an_error_is(error: Exception, fault: Fault, retriable: bool) -> None:
    assert (fault_of(error), is_retriable(error)) == (fault, retriable)


def test_headers_of_dead_letters_have_kafkas_names() -> None:
    origin = Origin("shop", 2, "a.B", "orders", 1, 7)
    found = dict(error_headers(origin, Refusal(Stage.VALUE, "no JSON", "ValueError")))
    assert found == {
        "__connect.errors.topic": b"orders",
        "__connect.errors.partition": b"1",
        "__connect.errors.offset": b"7",
        "__connect.errors.connector.name": b"shop",
        "__connect.errors.task.id": b"2",
        "__connect.errors.stage": b"VALUE_CONVERTER",
        "__connect.errors.class.name": b"a.B",
        "__connect.errors.exception.class.name": b"ValueError",
        "__connect.errors.exception.message": b"no JSON",
    }
    assert "__connect.errors.offset" not in dict(error_headers(Origin("s", 0, "a.B", "t"), Refusal(Stage.READ, "x")))


def test_ids_have_neither_dots_nor_slashes_of_names() -> None:
    assert in_ids("a.b/c ü") == "a%2Eb%2Fc%20%C3%BC"
    assert transactional_id("c.d", "a.b", 3) == "connect.c%2Ed.a%2Eb/3"
    assert group_of("a.b") == "connect-a.b"
