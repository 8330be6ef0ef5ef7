"""A spool in memory."""

from __future__ import annotations

from collections.abc import Iterator


class FakeSpool:
    def __init__(self) -> None:
        self.blocks: dict[int, list[bytes]] = {}
        self.appended = 0

    def append(self, xid: int, block: bytes) -> None:
        self.appended += 1
        self.blocks.setdefault(xid, []).append(block)

    def read(self, xid: int) -> Iterator[bytes]:
        yield from self.blocks[xid]

    def drop(self, xid: int) -> None:
        self.blocks.pop(xid, None)
