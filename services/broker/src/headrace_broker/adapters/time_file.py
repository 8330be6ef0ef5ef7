"""
Keeps the time that retention last went by, in the file ``retention-time`` of the data directory.

``main`` makes it, upkeep reads it once and writes it about every twenty seconds. It only makes retention later, so a
file that is missing or damaged is as good as none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace_broker.adapters.data_directory import write_durably
from headrace_common.core.batch.checksum import crc32c
from headrace_common.core.errors import StorageFailed
from headrace_common.runtime.threads import run_in_thread

_FILE: Final = "retention-time"


class TimeFile:
    """``TimeMemory`` in a data directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE

    def last_ms(self) -> int | None:
        try:
            words = self._path.read_bytes().split()
        except OSError:
            return None
        sound = len(words) == 2 and words[0].isdigit() and f"{crc32c(words[0]):08x}".encode() == words[1]
        return int(words[0]) if sound else None

    async def keep(self, time_ms: int) -> None:
        text = str(max(0, time_ms)).encode()
        try:
            await run_in_thread(write_durably, self._path, text + f" {crc32c(text):08x}\n".encode())
        except OSError as error:
            raise StorageFailed(f"{self._path} cannot be written: {error}") from error
