"""What opening makes of single faults, planted into the store itself."""

from __future__ import annotations

import struct

import pytest
from storage_batches import Writer, make_batch, make_row, partition

from headrace_broker.core.rows import LogId, PutBatch, PutState, StateRow
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset

from .conftest import RocksDisk


def tampered(batch: bytes, at: int, layout: str, value: int) -> bytes:
    whole = bytearray(batch)
    struct.pack_into(layout, whole, at, value)
    return bytes(whole)


FIELDS = {
    "base offset": (0, ">q", 11),
    "length": (8, ">i", 4096),
    "leader epoch": (12, ">i", 7),
    "magic": (16, ">b", 9),
    "last offset delta": (23, ">i", 8),
}


@pytest.mark.parametrize("field", FIELDS)
async def test_a_header_that_differs_from_its_row_is_not_served(rocks: RocksDisk, field: str) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(3)])
    rocks.logs.write([PutBatch(writer.log, writer.rows[1], tampered(writer.batches[10], *FIELDS[field]))])
    with pytest.raises(StorageFailed, match=f"log {writer.log} at offset 10 .*it says"):
        await rocks.logs.read(writer.log, writer.rows)
    assert await rocks.logs.read(writer.log, [writer.rows[0], writer.rows[2]]) == [
        writer.batches[0],
        writer.batches[20],
    ]


@pytest.mark.parametrize(("at", "reason"), [(100, "its checksum is wrong"), (15, "it says leader epoch")])
async def test_unsound_batches_at_the_tail_are_cut_one_by_one(rocks: RocksDisk, at: int, reason: str) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(6)])
    for row in writer.rows[-2:]:
        batch = bytearray(writer.batches[row.base_offset])
        batch[at] ^= 1
        rocks.logs.write([PutBatch(writer.log, row, bytes(batch))])
    logs = await rocks.restart()
    (found,) = logs.list_recovered()
    assert (found.log_end, found.last_row, found.damage) == (40, writer.rows[3], None)
    assert f"the batch at 40 is not sound: {reason}" in logs.report.cuts[0]
    assert logs.report.bytes_checked >= 3 * 4096
    assert list(logs.index(writer.log, Offset(0), Offset(99))) == writer.rows[:4]


async def test_an_unsound_tail_that_was_promised_is_damage_and_keeps_its_rows(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(6)])
    rocks.logs.write([PutBatch(writer.log, writer.rows[5], tampered(writer.batches[50], 200, ">q", 1))])
    await rocks.logs.sync()
    rocks.logs.note_synced(writer.log, Offset(60), 1)
    for _ in range(2):
        logs = await rocks.restart()
        (found,) = logs.list_recovered()
        assert found.damage is not None
        assert (found.damage.recovered_end, found.damage.evident_end, found.log_end) == (50, 60, 50)
        assert "checksum" in found.damage.reason
        assert logs.report.damaged == (found.damage,)
        assert logs.floor(writer.log, Offset(59)) == writer.rows[5]


@pytest.mark.parametrize("what", ["checksum", "hole"])
async def test_damage_outlives_clean_stops(rocks: RocksDisk, what: str) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(6)])
    await rocks.logs.sync()
    rocks.logs.note_synced(writer.log, Offset(60), 1)
    at, end = (50, 50) if what == "checksum" else (30, 30)
    if what == "checksum":
        rocks.logs.write([PutBatch(writer.log, writer.rows[5], tampered(writer.batches[50], 200, ">q", 1))])
    else:
        rocks.logs._store._db.delete(b"\x00\x00\x00\x01\x06" + at.to_bytes(8, "big"))
    for epoch in (None, 7, 8, None, 9):
        logs = await rocks.restart(clean_epoch=epoch)
        (found,) = logs.list_recovered()
        assert found.damage is not None, f"after a stop with {epoch}"
        assert (found.damage.recovered_end, found.log_end) == (end, end)
        assert logs.floor(writer.log, Offset(59)) == writer.rows[5], "kept for a human"


async def test_a_hole_at_the_start_leaves_nothing(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(3)])
    rocks.logs._store._db.delete(b"\x00\x00\x00\x01\x06" + (0).to_bytes(8, "big"))
    (found,) = (await rocks.restart()).list_recovered()
    assert (found.log_end, found.last_row) == (0, None)
    assert [row.base_offset for row in found.segments] == []


async def test_a_log_start_within_a_batch_is_no_hole(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(3)])
    rocks.logs.write([PutState(writer.log, StateRow(partition(1), Offset(14), Offset(14)))])
    logs = await rocks.restart()
    assert logs.report.cuts == ()
    assert logs.list_recovered()[0].log_end == 30


async def test_overlapping_batches_are_cut(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(3)])
    stray = make_batch(25, 10)
    rocks.logs.write([PutBatch(writer.log, make_row(25, stray), stray)])
    (found,) = (await rocks.restart()).list_recovered()
    assert (found.log_end, found.last_row) == (30, writer.rows[-1])


async def test_only_what_is_not_verified_is_walked_again(rocks: RocksDisk) -> None:
    """A hole below the verified offset is not looked for: what is in table files does not vanish with a WAL."""
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(10)])
    await rocks.restart(clean_epoch=1)
    rocks.logs._store._db.delete(b"\x00\x00\x00\x01\x06" + (20).to_bytes(8, "big"))
    rocks.logs.write(writer.append(2, size=5000))
    logs = await rocks.restart()
    assert (logs.report.cuts, logs.list_recovered()[0].log_end) == ((), 120)
    assert logs.report.bytes_checked == 5000, "the last batch; closing flushed, so there was no WAL to walk"


async def test_a_log_without_state_is_named_and_not_served(rocks: RocksDisk) -> None:
    batch = make_batch(0, 10)
    rocks.logs.write([PutBatch(LogId(9), make_row(0, batch), batch)])
    logs = await rocks.restart()
    assert logs.list_recovered() == []
    assert "log 9 has rows but no state" in logs.report.cuts[0]
    assert logs.new_log_id() == 10, "its rows must not become those of a new log"
