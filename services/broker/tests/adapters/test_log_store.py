"""The contract of ``LogStore``, over both adapters."""

from __future__ import annotations

import pytest
from storage_batches import Writer, make_batch, make_row, partition

from headrace_broker.core.rows import (
    AbortedRow,
    Below,
    DropLog,
    DropPrefix,
    DropSuffix,
    EpochRow,
    FenceRow,
    LogId,
    ProducerBatch,
    ProducerRow,
    PutAborted,
    PutEpoch,
    PutProducers,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset

from .conftest import Disk


async def started(disk: Disk, count: int = 5) -> Writer:
    writer = Writer(disk.logs.new_log_id())
    disk.logs.write([*writer.create(), *writer.append(count)])
    return writer


def producer(number: int) -> ProducerRow:
    return ProducerRow(number, 2, (ProducerBatch(0, 9, Offset(0), 5), ProducerBatch(10, 19, Offset(10), 6)), 77, None)


async def test_what_was_written_is_read(disk: Disk) -> None:
    writer = await started(disk)
    rows = list(disk.logs.index(writer.log, Offset(0), Offset(1000)))
    assert rows == writer.rows
    assert await disk.logs.read(writer.log, rows) == list(writer.batches.values())
    assert await disk.logs.read(writer.log, []) == []


async def test_index_takes_the_start_and_leaves_the_end_out(disk: Disk) -> None:
    writer = await started(disk)
    assert [row.base_offset for row in disk.logs.index(writer.log, Offset(10), Offset(30))] == [10, 20]
    assert list(disk.logs.index(writer.log, Offset(30), Offset(30))) == []
    assert list(disk.logs.index(writer.log, Offset(50), Offset(10))) == []
    assert list(disk.logs.index(LogId(99), Offset(0), Offset(10))) == []


async def test_floor_is_the_batch_that_holds_the_offset_or_the_one_before(disk: Disk) -> None:
    writer = await started(disk)
    other = Writer(disk.logs.new_log_id(), end=100)
    disk.logs.write([*other.create(), *other.append(2)])
    logs = disk.logs
    assert [logs.floor(writer.log, Offset(at)) for at in (0, 9, 10, 49, 4000)] == [
        writer.rows[at] for at in (0, 0, 1, 4, 4)
    ]
    assert logs.floor(other.log, Offset(99)) is None
    assert logs.floor(LogId(99), Offset(5)) is None


async def test_log_ids_are_never_given_twice_even_after_deletion_and_restart(disk: Disk) -> None:
    first = await started(disk)
    await disk.logs.lower_evidence([(first.log, Offset(0), -1)])
    disk.logs.write([DropLog(first.log)])
    await disk.restart()
    second = await started(disk)
    assert second.log > first.log


async def test_a_log_is_recovered_with_all_its_rows(disk: Disk) -> None:
    writer = await started(disk)
    state = StateRow(partition(1), Offset(0), Offset(30), (FenceRow(Offset(-1), 5), FenceRow(Offset(20), 7)), Offset(0))
    sealed = SegmentRow(Offset(0), 1000, 2000, Offset(20), 8192, 0, 20)
    disk.logs.write(
        [
            PutState(writer.log, state),
            PutSegment(writer.log, sealed),
            PutSegment(writer.log, SegmentRow(Offset(20), 2000)),
            PutEpoch(writer.log, EpochRow(4, Offset(30))),
            PutProducers(writer.log, Offset(20), (producer(5), producer(6))),
        ]
    )
    await disk.logs.sync()
    logs = await disk.restart()
    (found,) = logs.list_recovered()
    assert found.log == writer.log
    assert found.state == state
    assert found.log_end == 50
    assert found.last_row == writer.rows[-1]
    assert found.segments == (sealed, SegmentRow(Offset(20), 2000))
    assert found.epochs == (EpochRow(1, Offset(0)), EpochRow(4, Offset(30)))
    assert found.producers_at == 20
    assert found.producers == (producer(5), producer(6))
    assert found.damage is None
    assert logs.report.logs == 1
    assert not logs.report.clean


@pytest.mark.parametrize("state_in_the_same_group", [False, True])
async def test_a_cut_takes_the_fences_behind_it(disk: Disk, state_in_the_same_group: bool) -> None:
    writer = await started(disk)
    early, late = FenceRow(Offset(10), 5), FenceRow(Offset(20), 7)
    before = PutState(writer.log, StateRow(partition(1), Offset(0), Offset(0), (early, late)))
    cut = [DropSuffix(writer.log, Offset(20))]
    if not state_in_the_same_group:
        disk.logs.write([before])
    await disk.logs.sync()
    await disk.logs.lower_evidence([(writer.log, Offset(20), 1)])
    disk.logs.write([before, *cut] if state_in_the_same_group else cut)
    (found,) = (await disk.restart()).list_recovered()
    assert found.log_end == 20
    assert found.state.fences == (early,)
    assert found.state.fencing_token == 5


async def test_an_empty_log_ends_where_it_starts(disk: Disk) -> None:
    writer = Writer(disk.logs.new_log_id(), end=500)
    disk.logs.write(writer.create())
    logs = await disk.restart()
    (found,) = logs.list_recovered()
    assert (found.log_end, found.last_row, found.producers_at, found.producers) == (500, None, 500, ())


@pytest.mark.parametrize(
    "below",
    [None, Below((Offset(0),), aborted=True, snapshot=False), Below((Offset(0),), aborted=False, snapshot=True)],
)
async def test_drop_prefix_takes_whole_segments_and_old_snapshots(disk: Disk, below: Below | None) -> None:
    """Whether it is told what is there, or has to look."""
    writer = await started(disk, 10)
    disk.logs.write(
        [
            PutSegment(writer.log, SegmentRow(Offset(0), 1, 2, Offset(30), 9, 0, 30)),
            PutSegment(writer.log, SegmentRow(Offset(30), 2, 3, Offset(60), 9, 30, 60)),
            PutSegment(writer.log, SegmentRow(Offset(60), 3)),
            *(PutProducers(writer.log, Offset(at), (producer(at),)) for at in (10, 20, 30, 40)),
        ]
    )
    state = StateRow(partition(1), Offset(30), Offset(30))
    disk.logs.write([PutState(writer.log, state), DropPrefix(writer.log, Offset(30), below)])
    assert [(disk.logs.producers_before(writer.log, Offset(at)) or (-1,))[0] for at in (29, 39)] == [-1, 30]
    assert [row.base_offset for row in disk.logs.index(writer.log, Offset(0), Offset(999))] == list(range(30, 100, 10))
    (found,) = (await disk.restart()).list_recovered()
    assert [row.base_offset for row in found.segments] == [30, 60]
    assert (found.producers_at, found.log_end) == (40, 100)
    with pytest.raises(StorageFailed, match="offset 0 "):
        await disk.logs.read(writer.log, writer.rows[:1])


async def test_drop_prefix_keeps_the_newest_snapshot_at_or_below_the_start(disk: Disk) -> None:
    writer = await started(disk, 10)
    disk.logs.write([PutProducers(writer.log, Offset(at), (producer(at),)) for at in (10, 20)])
    disk.logs.write(
        [PutState(writer.log, StateRow(partition(1), Offset(30), Offset(30))), DropPrefix(writer.log, Offset(30))]
    )
    (found,) = (await disk.restart()).list_recovered()
    assert (found.producers_at, found.producers) == (20, (producer(20),))


async def test_the_newest_producer_snapshot_at_or_below_an_end_is_found(disk: Disk) -> None:
    writer = await started(disk, 10)
    assert disk.logs.producers_before(writer.log, Offset(100)) is None
    disk.logs.write([PutProducers(writer.log, Offset(at), (producer(at),)) for at in (10, 40)])
    assert disk.logs.producers_before(writer.log, Offset(9)) is None
    assert disk.logs.producers_before(writer.log, Offset(10)) == (10, (producer(10),))
    assert disk.logs.producers_before(writer.log, Offset(39)) == (10, (producer(10),))
    assert disk.logs.producers_before(writer.log, Offset(100)) == (40, (producer(40),))
    await disk.logs.lower_evidence([(writer.log, Offset(30), -1)])
    disk.logs.write([DropSuffix(writer.log, Offset(30))])
    assert disk.logs.producers_before(writer.log, Offset(100)) == (10, (producer(10),))


async def test_drop_prefix_of_everything_leaves_an_empty_log(disk: Disk) -> None:
    writer = await started(disk)
    disk.logs.write(
        [
            PutSegment(writer.log, SegmentRow(Offset(0), 1, 2, Offset(50), 9, 0, 50)),
            PutSegment(writer.log, SegmentRow(Offset(50), 3)),
            PutState(writer.log, StateRow(partition(1), Offset(50), Offset(50))),
            DropPrefix(writer.log, Offset(50)),
        ]
    )
    (found,) = (await disk.restart()).list_recovered()
    assert (found.log_end, found.last_row) == (50, None)
    assert [row.base_offset for row in found.segments] == [50]


async def test_drop_suffix_truncates_together_with_the_new_rows(disk: Disk) -> None:
    writer = await started(disk, 6)
    disk.logs.write(
        [
            PutSegment(writer.log, SegmentRow(Offset(0), 1, 2, Offset(40), 9, 0, 40)),
            PutSegment(writer.log, SegmentRow(Offset(40), 3)),
            PutEpoch(writer.log, EpochRow(2, Offset(20))),
            PutEpoch(writer.log, EpochRow(3, Offset(50))),
            *(PutProducers(writer.log, Offset(at), (producer(at),)) for at in (20, 30, 40)),
        ]
    )
    batch = make_batch(30, 5, epoch=9)
    again = Writer(writer.log, end=30, epoch=9)
    disk.logs.write(
        [DropSuffix(writer.log, Offset(30)), PutEpoch(writer.log, EpochRow(9, Offset(30))), *again.append(1)]
    )
    assert len(batch) == 4096
    assert list(disk.logs.index(writer.log, Offset(20), Offset(99))) == [writer.rows[2], again.rows[0]]
    assert await disk.logs.read(writer.log, again.rows) == [again.batches[30]]
    (found,) = (await disk.restart()).list_recovered()
    assert found.log_end == 40
    assert found.epochs == (EpochRow(1, Offset(0)), EpochRow(2, Offset(20)), EpochRow(9, Offset(30)))
    assert found.segments == (SegmentRow(Offset(0), 1),)
    assert (found.producers_at, found.producers) == (30, (producer(30),))


async def test_drops_see_what_their_own_group_wrote_before_them(disk: Disk) -> None:
    writer = Writer(disk.logs.new_log_id())
    disk.logs.write(
        [
            *writer.create(),
            *writer.append(6),
            PutSegment(writer.log, SegmentRow(Offset(0), 1, 2, Offset(20), 9, 0, 20)),
            PutSegment(writer.log, SegmentRow(Offset(20), 2)),
            PutEpoch(writer.log, EpochRow(2, Offset(50))),
            PutProducers(writer.log, Offset(10), (producer(1),)),
            PutProducers(writer.log, Offset(20), (producer(2),)),
            PutState(writer.log, StateRow(partition(1), Offset(20), Offset(20))),
            DropPrefix(writer.log, Offset(20)),
            DropSuffix(writer.log, Offset(50)),
        ]
    )
    (found,) = (await disk.restart()).list_recovered()
    assert (found.log_end, found.producers_at) == (50, 20)
    assert found.epochs == (EpochRow(1, Offset(0)),)
    assert found.segments == (SegmentRow(Offset(20), 2),)


async def test_drop_log_leaves_its_neighbours(disk: Disk) -> None:
    writers = [await started(disk) for _ in range(3)]
    await disk.logs.lower_evidence([(writers[1].log, Offset(0), -1)])
    disk.logs.write([DropLog(writers[1].log)])
    assert disk.logs.floor(writers[1].log, Offset(10)) is None
    logs = await disk.restart()
    assert [found.log for found in logs.list_recovered()] == [writers[0].log, writers[2].log]
    assert await logs.read(writers[2].log, writers[2].rows) == list(writers[2].batches.values())


async def test_recovered_is_valid_until_the_first_write(disk: Disk) -> None:
    await started(disk)
    logs = await disk.restart()
    assert len(logs.list_recovered()) == 1
    await started(disk)
    assert logs.list_recovered() == []


async def test_a_clean_shutdown_leaves_its_epoch_once(disk: Disk) -> None:
    await started(disk)
    assert disk.logs.read_token() is None
    logs = await disk.restart(clean_epoch=41)
    assert (logs.read_token(), logs.report.clean) == (41, True)
    logs = await disk.restart()
    assert (logs.read_token(), logs.report.clean) == (None, False)


async def test_a_batch_that_differs_from_its_row_is_not_served(disk: Disk) -> None:
    writer = await started(disk)
    wrong = make_row(10, writer.batches[10] + b"x")
    with pytest.raises(StorageFailed, match="offset 10 "):
        await disk.logs.read(writer.log, [wrong])


async def test_evidence_must_fall_before_rows_do(disk: Disk) -> None:
    writer = await started(disk)
    await disk.logs.sync()
    disk.logs.note_synced(writer.log, Offset(50), 1)
    with pytest.raises(AssertionError, match="lower the evidence"):
        disk.logs.write([DropSuffix(writer.log, Offset(20))])
    with pytest.raises(AssertionError, match="forget the evidence"):
        disk.logs.write([DropLog(writer.log)])
    await disk.logs.lower_evidence([(writer.log, Offset(20), 1)])
    disk.logs.write([DropSuffix(writer.log, Offset(20))])
    (found,) = (await disk.restart()).list_recovered()
    assert (found.log_end, found.damage) == (20, None)


async def test_a_late_confirmation_does_not_raise_lowered_evidence(disk: Disk) -> None:
    writer = await started(disk)
    await disk.logs.sync()
    disk.logs.note_synced(writer.log, Offset(50), 1)
    await disk.logs.lower_evidence([(writer.log, Offset(0), -1)])
    disk.logs.note_synced(writer.log, Offset(50), 1)
    disk.logs.write([DropLog(writer.log)])
    assert (await disk.restart()).report.damaged == ()


async def test_evidence_rises_again_after_a_truncation(disk: Disk) -> None:
    writer = await started(disk)
    await disk.logs.sync()
    await disk.logs.lower_evidence([(writer.log, Offset(20), 1)])
    again = Writer(writer.log, end=20, epoch=2)
    disk.logs.write([DropSuffix(writer.log, Offset(20)), *again.append(1)])
    await disk.logs.sync()
    disk.logs.note_synced(writer.log, Offset(30), 2)
    with pytest.raises(AssertionError, match="lower the evidence"):
        disk.logs.write([DropSuffix(writer.log, Offset(20))])


async def test_one_sync_at_a_time(disk: Disk) -> None:
    import asyncio

    await started(disk)
    first = asyncio.ensure_future(disk.logs.sync())
    await asyncio.sleep(0)
    with pytest.raises(AssertionError, match="one sync"):
        await disk.logs.sync()
    await first


async def test_space_is_told(disk: Disk) -> None:
    free, size = disk.logs.free_bytes()
    assert 0 < free <= size


def aborted(last: int) -> AbortedRow:
    return AbortedRow(2**40 + last, Offset(max(0, last - 15)), Offset(last), Offset(last + 1))


async def test_aborted_transactions_come_back_in_the_order_of_their_markers(disk: Disk) -> None:
    writer = await started(disk)
    disk.logs.write([PutAborted(writer.log, aborted(at)) for at in (40, 10, 20)])
    (found,) = (await disk.restart()).list_recovered()
    assert found.aborted == (aborted(10), aborted(20), aborted(40))


async def test_aborted_transactions_go_with_their_markers(disk: Disk) -> None:
    writer = await started(disk)
    disk.logs.write([PutAborted(writer.log, aborted(at)) for at in (10, 20, 30, 40)])
    await disk.logs.lower_evidence([(writer.log, Offset(40), 1)])
    start = StateRow(partition(1), Offset(20), Offset(20))
    disk.logs.write(
        [PutState(writer.log, start), DropPrefix(writer.log, Offset(20)), DropSuffix(writer.log, Offset(40))]
    )
    (found,) = (await disk.restart()).list_recovered()
    assert found.aborted == (aborted(20), aborted(30))
    await disk.logs.lower_evidence([(writer.log, Offset(0), -1)])
    disk.logs.write([DropLog(writer.log)])
    assert list((await disk.restart()).list_recovered()) == []


async def test_open_and_ended_transactions_of_producers_come_back(disk: Disk) -> None:
    writer = await started(disk)
    rows = (
        producer(5),
        ProducerRow(6, 3, (ProducerBatch(0, 9, Offset(10), 6),), 77, Offset(10), 70),
        ProducerRow(7, 4, (), 78, committed=True),
        ProducerRow(8, 32_767, (), 79, committed=False),
    )
    disk.logs.write([PutProducers(writer.log, Offset(50), rows)])
    (found,) = (await disk.restart()).list_recovered()
    assert found.producers == rows
