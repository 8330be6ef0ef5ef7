"""What later runs of a lake must not change, and whether lake and checkpoint belong together."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headrace_common.core.errors import Conflict, UnsupportedVersion
from headrace_jobs.topic_to_lake.layout import Layout, check_together, continue_layout, last_batch

ID = StructField("id", LongType(), False)
NAME = StructField("name", StringType())
BASE = Layout(StructType([ID, NAME]), "json", ("event_date",))


def changed(*fields: StructField, values: str = "json", by: tuple[str, ...] = ("event_date",)) -> Layout:
    return Layout(StructType(list(fields)), values, by)


def test_it_is_read_as_it_was_written() -> None:
    assert Layout.of_text(BASE.text()) == BASE
    later = json.dumps(json.loads(BASE.text()) | {"format": 2})
    with pytest.raises(UnsupportedVersion, match="format 2"):
        Layout.of_text(later)


def test_columns_may_be_added_and_need_not_be_there() -> None:
    wider = changed(NAME, StructField("id", LongType(), True), StructField("more", StringType()))
    assert continue_layout(BASE, wider) == wider
    assert continue_layout(wider, wider) == wider


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (changed(ID), "has a column name"),
        (changed(StructField("id", IntegerType()), NAME), "of type bigint, not int"),
        (changed(ID, NAME, by=("id",)), "partitioned by event_date, not by id"),
        (changed(ID, NAME, values="arrow"), "begun with values of json"),
    ],
)
def test_what_would_tear_the_table_is_refused(given: Layout, said: str) -> None:
    with pytest.raises(Conflict, match=said):
        continue_layout(BASE, given)


def test_numbers_of_micro_batches() -> None:
    assert last_batch([]) == -1
    assert last_batch(["0", "9.compact", "10", ".11.tmp", "metadata"]) == 10
    assert last_batch(["9.compact"]) == 9


@pytest.mark.parametrize(
    ("planned", "committed", "written"),
    [(-1, -1, -1), (0, -1, -1), (0, -1, 0), (0, 0, 0), (5, 4, 4), (5, 4, 5)],
)
def test_every_state_that_a_crash_can_leave_is_fine(planned: int, committed: int, written: int) -> None:
    check_together(planned=planned, committed=committed, written=written)


@pytest.mark.parametrize(("planned", "committed", "written"), [(-1, -1, 0), (3, 3, 4), (5, 4, 9)])
def test_a_checkpoint_that_did_not_write_the_lake_is_refused(planned: int, committed: int, written: int) -> None:
    with pytest.raises(Conflict, match="did not write it"):
        check_together(planned=planned, committed=committed, written=written)


@pytest.mark.parametrize(("planned", "committed", "written"), [(0, 0, -1), (5, 5, 4)])
def test_a_lake_that_lost_what_was_committed_is_refused(planned: int, committed: int, written: int) -> None:
    with pytest.raises(Conflict, match="are gone"):
        check_together(planned=planned, committed=committed, written=written)
