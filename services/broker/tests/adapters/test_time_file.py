"""The file in which a broker keeps the time that retention went by."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_broker.adapters.time_file import TimeFile
from headrace_common.core.errors import StorageFailed


async def test_what_was_kept_last_is_known_to_the_next_process(tmp_path: Path) -> None:
    assert TimeFile(tmp_path).last_ms() is None
    for time_ms in (1_700_000_000_000, 1_700_000_020_000):
        await TimeFile(tmp_path).keep(time_ms)
        assert TimeFile(tmp_path).last_ms() == time_ms


@pytest.mark.parametrize("damage", [b"", b"17", b"1700000000000 00000000\n", b"x y z", b"\xff\xff \xff"])
async def test_what_is_damaged_is_as_good_as_nothing(tmp_path: Path, damage: bytes) -> None:
    await TimeFile(tmp_path).keep(1_700_000_000_000)
    (tmp_path / "retention-time").write_bytes(damage)
    assert TimeFile(tmp_path).last_ms() is None


async def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="retention-time"):
        await TimeFile(tmp_path / "not there").keep(1)
