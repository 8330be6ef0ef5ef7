"""Blocks of transactions on disk."""

from __future__ import annotations

from pathlib import Path

from headrace_connect.connectors.postgres_cdc.spool import DiskSpool


def test_blocks_come_back_in_order_and_nothing_stays(tmp_path: Path) -> None:
    spool = DiskSpool(str(tmp_path))
    spool.drop(7)
    spool.close()
    assert not list(tmp_path.iterdir()), "one that is never needed leaves nothing where a process is killed"
    for block in (b"one", b"", b"x" * 100_000):
        spool.append(7, block)
    spool.append(8, b"other")
    assert list(spool.read(7)) == [b"one", b"", b"x" * 100_000]
    spool.drop(7)
    spool.drop(7)
    assert list(spool.read(8)) == [b"other"]
    spool.close()
    assert not list(tmp_path.iterdir())
