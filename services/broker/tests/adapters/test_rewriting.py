"""What a compaction writes, over both adapters: replaced batches, gaps, clean points; and what stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from storage_batches import Writer, partition, rewrite

from headrace_broker.core.rows import (
    AbortedRow,
    CleanPoint,
    DropAborted,
    DropBatch,
    DropLog,
    DropPrefix,
    DropSuffix,
    EpochRow,
    IndexRow,
    LogId,
    PutAborted,
    PutBatch,
    PutEpoch,
    PutIndex,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_broker.ports import BytesLost, LogStore
from headrace_common.core.batch import check_crc, read_header
from headrace_common.core.ids import Offset

from .conftest import Disk, RocksDisk


async def started(disk: Disk, count: int = 6) -> Writer:
    writer = Writer(disk.logs.new_log_id())
    disk.logs.write([*writer.create(), *writer.append(count)])
    return writer


def rows(logs: LogStore, log: LogId) -> list[IndexRow]:
    return list(logs.index(log, Offset(0), Offset(9999)))


def gap_of_three(log: LogId) -> list[PutBatch | DropBatch]:
    """Of the batches at 10, 20 and 30 nothing is left."""
    return [rewrite(log, 10, 40), DropBatch(log, Offset(20)), DropBatch(log, Offset(30))]


@pytest.mark.parametrize("size", [64, 500, 4096, 9000])
async def test_a_batch_that_was_replaced_is_read_as_it_is_now(disk: Disk, size: int) -> None:
    writer = await started(disk)
    put = rewrite(writer.log, 20, 30, size, 3)
    disk.logs.write([put])
    expected = [*writer.rows[:2], put.row, *writer.rows[3:]]
    for again in (False, True):
        logs = await disk.restart() if again else disk.logs
        assert rows(logs, writer.log) == expected
        assert logs.floor(writer.log, Offset(29)) == put.row
        found = await logs.read(writer.log, expected)
        assert found == [*list(writer.batches.values())[:2], put.batch, *list(writer.batches.values())[3:]]
    assert disk.logs.list_recovered()[0].log_end == 60


async def test_a_row_from_before_does_not_serve_the_batch_of_now(disk: Disk) -> None:
    writer = await started(disk)
    disk.logs.write([rewrite(writer.log, 20, 30, 700, 3)])
    with pytest.raises(BytesLost, match="offset 20 "):
        await disk.logs.read(writer.log, writer.rows)
    disk.logs.write(gap_of_three(writer.log))
    with pytest.raises(BytesLost, match="offset 30 "):
        await disk.logs.read(writer.log, [writer.rows[3]])


async def test_a_row_of_a_gap_that_has_grown_does_not_serve_it(disk: Disk) -> None:
    writer = await started(disk)
    small = rewrite(writer.log, 10, 20)
    disk.logs.write([small])
    disk.logs.write(gap_of_three(writer.log))
    with pytest.raises(BytesLost, match="offset 10 "):
        await disk.logs.read(writer.log, [small.row])


async def test_a_batch_replaced_twice_in_a_group_is_the_last(disk: Disk) -> None:
    writer = await started(disk)
    first, second = rewrite(writer.log, 20, 30, 700, 3), rewrite(writer.log, 20, 30)
    disk.logs.write([first, second])
    assert rows(disk.logs, writer.log)[2] == second.row
    assert await disk.logs.read(writer.log, [second.row]) == [second.batch]


async def test_a_row_is_replaced_and_its_batch_stays(disk: Disk) -> None:
    writer = await started(disk)
    other = replace(writer.rows[3], segment_bytes=77)
    disk.logs.write([PutIndex(writer.log, other)])
    for again in (False, True):
        logs = await disk.restart() if again else disk.logs
        assert logs.floor(writer.log, Offset(35)) == other
        assert await logs.read(writer.log, [other]) == [writer.batches[30]]


async def test_a_gap_covers_the_batches_that_went(disk: Disk) -> None:
    writer = await started(disk)
    disk.logs.write(gap_of_three(writer.log))
    for again in (False, True):
        logs = await disk.restart() if again else disk.logs
        found = rows(logs, writer.log)
        assert [(row.base_offset, row.next_offset, row.record_count) for row in found] == [
            (0, 10, 10),
            (10, 40, 0),
            (40, 50, 10),
            (50, 60, 10),
        ]
        assert [logs.floor(writer.log, Offset(at)) for at in (9, 10, 25, 39, 40)] == [
            found[at] for at in (0, 1, 1, 1, 2)
        ]
        assert [row.base_offset for row in logs.index(writer.log, Offset(25), Offset(60))] == [40, 50]
        (batch,) = await logs.read(writer.log, [found[1]])
        header = read_header(batch)
        check_crc(batch, header)
        assert (header.base_offset, header.next_offset, header.record_count) == (10, 40, 0)
    assert disk.logs.report.damaged == disk.logs.report.cuts == ()


async def test_a_gap_grows(disk: Disk) -> None:
    writer = await started(disk)
    disk.logs.write(gap_of_three(writer.log))
    disk.logs.write([rewrite(writer.log, 10, 50), DropBatch(writer.log, Offset(40))])
    disk.logs.write([rewrite(writer.log, 0, 50), DropBatch(writer.log, Offset(10))])
    (found,) = (await disk.restart()).list_recovered()
    assert found.log_end == 60
    assert [(row.base_offset, row.next_offset) for row in rows(disk.logs, writer.log)] == [(0, 50), (50, 60)]


@pytest.mark.parametrize("clean_epoch", [None, 4])
async def test_a_log_that_ends_with_a_gap_ends_where_it_did(disk: Disk, clean_epoch: int | None) -> None:
    writer = await started(disk)
    await disk.logs.sync()
    disk.logs.note_synced(writer.log, Offset(60), 1)
    disk.logs.write([rewrite(writer.log, 30, 60), *(DropBatch(writer.log, Offset(at)) for at in (40, 50))])
    logs = await disk.restart(clean_epoch)
    (found,) = logs.list_recovered()
    assert (found.log_end, found.damage, found.last_row) == (60, None, rows(logs, writer.log)[-1])
    logs.write(writer.append(1))
    assert [row.base_offset for row in rows(logs, writer.log)] == [0, 10, 20, 30, 60]


@pytest.mark.parametrize("start", [10, 11, 25, 39])
async def test_a_log_starts_within_a_gap(disk: Disk, start: int) -> None:
    writer = await started(disk)
    disk.logs.write(gap_of_three(writer.log))
    state = StateRow(partition(1), Offset(start), Offset(60))
    disk.logs.write([PutState(writer.log, state), DropPrefix(writer.log, Offset(10))])
    logs = await disk.restart()
    (found,) = logs.list_recovered()
    assert (found.state.log_start, found.log_end, found.damage, logs.report.cuts) == (start, 60, None, ())
    assert [row.base_offset for row in rows(logs, writer.log)] == [10, 40, 50]
    holder = logs.floor(writer.log, Offset(start))
    assert holder is not None
    assert holder.base_offset == 10


async def test_what_was_compacted_is_cut_at_both_ends(disk: Disk) -> None:
    writer = await started(disk, 10)
    disk.logs.write([*gap_of_three(writer.log), rewrite(writer.log, 60, 70, 300, 1)])
    await disk.logs.lower_evidence([(writer.log, Offset(70), 1)])
    disk.logs.write(
        [
            DropSuffix(writer.log, Offset(70)),
            PutState(writer.log, StateRow(partition(1), Offset(40), Offset(40))),
            DropPrefix(writer.log, Offset(40)),
        ]
    )
    (found,) = (await disk.restart()).list_recovered()
    assert (found.log_end, found.damage) == (70, None)
    assert [row.base_offset for row in rows(disk.logs, writer.log)] == [40, 50, 60]


async def test_the_row_of_an_aborted_transaction_goes(disk: Disk) -> None:
    writer = await started(disk)
    there = [AbortedRow(7, Offset(at), Offset(at + 5), Offset(at + 6)) for at in (0, 10, 20)]
    disk.logs.write([PutAborted(writer.log, row) for row in there])
    disk.logs.write([DropAborted(writer.log, Offset(15)), DropAborted(writer.log, Offset(99))])
    (found,) = (await disk.restart()).list_recovered()
    assert found.aborted == (there[0], there[2])


async def test_how_far_and_when_a_log_was_compacted_comes_back(disk: Disk) -> None:
    writer = await started(disk)
    points = tuple(CleanPoint(Offset(at), 1_700_000_000_000 + at) for at in range(1, 17))
    state = StateRow(partition(1), Offset(0), Offset(60), (), Offset(40), points)
    sealed = SegmentRow(Offset(0), 1, 2, Offset(40), 777, 0, 40)
    disk.logs.write([PutSegment(writer.log, sealed), PutState(writer.log, state)])
    (found,) = (await disk.restart()).list_recovered()
    assert found.state == state
    assert found.segments == (sealed,)


async def test_what_is_rewritten_says_nothing_of_how_far_a_log_is_on_disk(disk: Disk) -> None:
    """Between the lowering of the evidence and the cut a late confirmation raises nothing, rewriting or not."""
    writer = await started(disk)
    await disk.logs.sync()
    disk.logs.note_synced(writer.log, Offset(60), 1)
    await disk.logs.lower_evidence([(writer.log, Offset(20), 1)])
    disk.logs.write([rewrite(writer.log, 0, 10, 300, 1), PutIndex(writer.log, writer.rows[1])])
    disk.logs.note_synced(writer.log, Offset(60), 1)
    disk.logs.write([DropSuffix(writer.log, Offset(20))])
    (found,) = (await disk.restart()).list_recovered()
    assert (found.log_end, found.damage) == (20, None)


async def test_a_log_that_is_compacted_can_be_deleted(disk: Disk) -> None:
    writer, other = await started(disk), await started(disk)
    for log in (writer.log, other.log):
        disk.logs.write(gap_of_three(log))
    await disk.logs.lower_evidence([(writer.log, Offset(0), -1)])
    disk.logs.write([rewrite(writer.log, 0, 10, 300, 1)])
    disk.logs.note_synced(writer.log, Offset(60), 1)
    disk.logs.write([DropLog(writer.log)])
    (found,) = (await disk.restart()).list_recovered()
    assert (found.log, found.log_end) == (other.log, 60)


# --- on the disk only ------------------------------------------------------------------------------------------


def evidence(rocks: RocksDisk, log: LogId) -> tuple[int, int]:
    entry = rocks.logs._keeper._entries[log]
    return entry.end, entry.verified


async def test_a_flush_after_rewriting_raises_the_evidence_to_the_end(rocks: RocksDisk) -> None:
    writer = await started(rocks)
    rocks.logs.write([rewrite(writer.log, 0, 10, 300, 1)])
    rocks.logs._keeper.tick()
    rocks.logs._store.flush()
    rocks.logs._keeper.tick()
    assert evidence(rocks, writer.log) == (60, 60)
    rocks.logs.write(gap_of_three(writer.log))
    rocks.logs._keeper.tick()
    rocks.logs._store.flush()
    rocks.logs._keeper.tick()
    assert evidence(rocks, writer.log) == (60, 60)
    (found,) = (await rocks.restart(clean_epoch=3)).list_recovered()
    assert (found.log_end, found.damage) == (60, None)


async def test_the_last_verified_batch_may_be_rewritten(rocks: RocksDisk) -> None:
    """Its size and checksum are others than when it was verified."""
    writer = await started(rocks)
    await rocks.restart(clean_epoch=1)
    assert evidence(rocks, writer.log) == (60, 60)
    put = rewrite(writer.log, 50, 60, 300, 2)
    rocks.logs.write([put])
    for epoch in (None, 2, None):
        logs = await rocks.restart(epoch)
        (found,) = logs.list_recovered()
        assert (found.log_end, found.last_row, found.damage, logs.report.cuts) == (60, put.row, None, ())
    rocks.logs.write([rewrite(writer.log, 40, 60), DropBatch(writer.log, Offset(50))])
    rocks.logs.write(writer.append(1))
    logs = await rocks.restart()
    assert (logs.list_recovered()[0].log_end, logs.report.cuts) == (70, ())


async def test_a_gap_over_where_a_log_is_verified_is_no_hole(rocks: RocksDisk) -> None:
    writer = await started(rocks)
    rocks.logs._keeper.note_flushed([(writer.log, Offset(30), 1)])
    rocks.logs.write([rewrite(writer.log, 0, 50), *(DropBatch(writer.log, Offset(at)) for at in (10, 20, 30, 40))])
    logs = await rocks.restart()
    (found,) = logs.list_recovered()
    assert (found.log_end, found.damage, logs.report.cuts) == (60, None, ())


async def test_an_unsound_gap_at_the_end_is_told(rocks: RocksDisk) -> None:
    writer = await started(rocks)
    put = rewrite(writer.log, 30, 60)
    wrong = bytes([*put.batch[:-1], put.batch[-1] ^ 1])
    rocks.logs.write([PutBatch(writer.log, put.row, wrong), *(DropBatch(writer.log, Offset(at)) for at in (40, 50))])
    await rocks.logs.sync()
    rocks.logs.note_synced(writer.log, Offset(60), 1)
    (found,) = (await rocks.restart()).list_recovered()
    assert found.damage is not None
    assert (found.damage.recovered_end, found.damage.evident_end) == (30, 60)
    assert "checksum" in found.damage.reason


async def test_rewriting_a_damaged_log_leaves_what_is_kept_of_it(rocks: RocksDisk) -> None:
    writer = await started(rocks)
    await rocks.logs.sync()
    rocks.logs.note_synced(writer.log, Offset(60), 1)
    rocks.logs._store._db.delete(b"\x00\x00\x00\x01\x06" + (40).to_bytes(8, "big"))
    (found,) = (await rocks.restart()).list_recovered()
    assert found.damage is not None
    assert found.log_end == 40
    sealed = SegmentRow(Offset(0), 1, 2, Offset(40), 777, 0, 40)
    rocks.logs.write([rewrite(writer.log, 0, 10, 300, 1), PutSegment(writer.log, sealed)])
    assert rocks.logs.floor(writer.log, Offset(59)) == writer.rows[5], "kept until the log is extended"
    await rocks.logs.lower_evidence([(writer.log, Offset(40), 1)])
    again = Writer(writer.log, end=40, epoch=2)
    rocks.logs.write([PutEpoch(writer.log, EpochRow(2, Offset(40))), *again.append(1)])
    assert [row.base_offset for row in rows(rocks.logs, writer.log)] == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("at", [3, 14, 16, 24, 40, 63])
async def test_a_flipped_bit_in_what_was_rewritten_is_found(rocks: RocksDisk, at: int) -> None:
    writer = await started(rocks)
    for put in (rewrite(writer.log, 20, 30, 700, 3), rewrite(writer.log, 20, 30, 5000, 3), rewrite(writer.log, 20, 30)):
        flipped = bytearray(put.batch)
        flipped[at] ^= 0x04
        rocks.logs.write([PutBatch(writer.log, put.row, bytes(flipped))])
        with pytest.raises(BytesLost, match="offset 20 "):
            await rocks.logs.read(writer.log, [put.row])
