"""The read end of a pipe that a process writes into: what is there can be taken though others hold the pipe open."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios

from headrace_common.runtime.clock import give_way


class Output:
    """
    Of one process. A pipe of asyncio ends when everybody has closed it, and a process that has ended may have left
    others that do not.
    """

    def __init__(self) -> None:
        self._end, self.given = os.pipe()
        """``given``: the end for the process."""
        os.set_blocking(self._end, False)

    def give_away(self) -> None:
        """The process has its end by now; it is the only one."""
        if self.given >= 0:
            os.close(self.given)
            self.given = -1

    async def read(self, bytes_max: int) -> bytes:
        """What is written next; nothing: everybody has closed it. Others run before that in any case."""
        await give_way()
        while (data := self.read_now(bytes_max)) is None:
            await self.wait()
        return data

    def read_now(self, bytes_max: int) -> bytes | None:
        """What is there; None: nothing yet."""
        try:
            return os.read(self._end, bytes_max)
        except BlockingIOError:
            return None

    def take(self) -> tuple[bytes, bool]:
        """All that is there at this moment, and whether more may come. What is written meanwhile stays."""
        (left,) = struct.unpack("i", fcntl.ioctl(self._end, termios.FIONREAD, bytes(4)))
        parts: list[bytes] = []
        while left > 0:
            parts.append(os.read(self._end, left))
            left -= len(parts[-1])
        return b"".join(parts), self.read_now(1) != b""

    async def wait(self) -> None:
        """Until there is something to read, or everybody has closed it."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._end, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._end)

    def close(self) -> None:
        """Nobody reads any more: who still writes is ended by that."""
        self.give_away()
        os.close(self._end)
