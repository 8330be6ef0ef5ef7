"""Ranges into tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.offsets import OffsetRange
from headrace_spark.core.packing import RECORD_BYTES, TASK_BYTES, TASK_BYTES_MIN, Packing, Task, pack

MANY = 200_000
"""Offsets that are worth more than one task."""


def of(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", partition), start, end)


def loads(tasks: tuple[Task, ...]) -> list[int]:
    return [sum(map(len, task)) for task in tasks]


def test_nothing_to_read_is_no_task() -> None:
    assert pack([], Packing(cores=4)) == ()
    assert pack([of(0, 5, 5)], Packing(cores=4)) == ()


def test_a_small_batch_is_one_task() -> None:
    few = [of(n, 0, 10) for n in range(50)]
    assert pack(few, Packing(cores=8)) == (tuple(few),)


def test_one_large_partition_keeps_all_cores_busy() -> None:
    tasks = pack([of(0, 5, 5 + MANY)], Packing(cores=4))
    assert loads(tasks) == [MANY // 4] * 4
    assert tasks[1][0].start == tasks[0][0].end


def test_more_than_the_known_cores_can_take_is_cut_into_tasks_of_half_a_second() -> None:
    tasks = pack([of(n, 0, 1_000_000) for n in range(20)], Packing(cores=2))
    assert len(tasks) == 20 * 1_000_000 * RECORD_BYTES // TASK_BYTES
    assert len(pack([of(n, 0, 1_000_000) for n in range(20)], Packing(cores=2, tasks_max=3))) == 3


def test_three_equal_partitions_on_two_cores_are_two_equal_tasks() -> None:
    assert loads(pack([of(n, 0, MANY) for n in range(3)], Packing(cores=2))) == [MANY * 3 // 2] * 2


def test_equal_partitions_stay_in_one_piece() -> None:
    tasks = pack([of(n, 0, MANY + n) for n in range(8)], Packing(cores=4))
    assert [[each.partition.partition for each in task] for task in tasks] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_large_records_weigh_more() -> None:
    heavy, light = of(0, 0, 100_000), of(1, 0, 100_000)
    sizes = {heavy.partition: 3_000, light.partition: 1_000}
    tasks = pack([heavy, light], Packing(cores=2, record_bytes=sizes, task_bytes=1 << 40))
    assert len(tasks[0]) == 1
    assert loads(tasks) == [66_666, 133_334]


def test_users_say_how_many() -> None:
    small = [of(0, 0, 10)]
    assert len(pack(small, Packing(cores=2, tasks_min=5))) == 5
    assert len(pack(small, Packing(cores=2, tasks_min=50))) == 10, "an offset is not split"
    assert len(pack([of(0, 0, MANY)], Packing(cores=8, tasks_max=3))) == 3
    assert loads(pack([of(0, 0, 10), of(1, 0, 10)], Packing(cores=2, offsets_max=4))) == [4, 4, 4, 4, 4]


ranges = st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 60_000)), max_size=12).map(
    lambda rows: [of(n, start, start + length) for n, (start, length) in enumerate(rows)]
)
packings = st.builds(
    Packing,
    cores=st.integers(1, 9),
    tasks_min=st.none() | st.integers(1, 20),
    tasks_max=st.none(),
    offsets_max=st.none() | st.integers(200, 9_000),
    record_bytes=st.dictionaries(st.integers(0, 12).map(lambda n: TopicPartition("t", n)), st.integers(1, 100_000)),
    task_bytes_min=st.sampled_from([1, 1 << 20, TASK_BYTES_MIN]),
)


def offsets_of(given_: list[OffsetRange]) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Per partition, joined where they touch."""
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for each in sorted(given_):
        runs = found.setdefault(each.partition, [])
        if runs and runs[-1][1] == each.start:
            runs[-1] = (runs[-1][0], each.end)
        else:
            runs.append((each.start, each.end))
    return found


@given(ranges, packings, st.randoms())
def test_every_offset_is_in_one_task(rows: list[OffsetRange], packing: Packing, chance: object) -> None:
    tasks = pack(rows, packing)
    assert offsets_of([each for task in tasks for each in task]) == offsets_of([each for each in rows if len(each)])
    assert all(task for task in tasks)
    assert all(len({each.partition for each in task}) == len(task) for task in tasks), "one piece of a range per task"
    assert tasks == pack(rows[::-1], packing), "the order of the input means nothing"


@given(ranges, packings)
def test_the_number_of_tasks_is_bounded(rows: list[OffsetRange], packing: Packing) -> None:
    tasks = pack(rows, packing)
    if packing.offsets_max is None:
        total_bytes = sum(len(each) * packing.record_bytes.get(each.partition, RECORD_BYTES) for each in rows)
        assert len(tasks) <= max(packing.cores, packing.tasks_min or 1, total_bytes // TASK_BYTES)
    else:
        assert max(loads(tasks), default=0) <= packing.offsets_max


@given(ranges, st.integers(1, 9))
def test_tasks_of_equal_records_have_about_the_same_to_do(rows: list[OffsetRange], cores: int) -> None:
    tasks = pack(rows, Packing(cores=cores, task_bytes_min=1, task_bytes=1 << 40))
    total = sum(map(len, rows))
    assert len(tasks) == min(cores, total)
    assert max(loads(tasks), default=0) <= -(-total // cores) * 9 // 8 + 1
