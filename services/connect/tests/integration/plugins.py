"""Connectors that hurt the process that they are in, each in its own way; and one that waits."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from headrace_connect import RetriableError, Source, Split


class Waits(Source):
    """Hurts nobody; its splits are the lines of a file beside this one's."""

    async def start(self) -> None:
        print("waits", flush=True)

    def splits(self) -> Sequence[Split]:
        return [Split("a"), Split("b")]


class Logs(Source):
    """In its own thread, and in one that nobody knows."""

    def start(self) -> None:
        log = logging.getLogger(__name__)
        log.warning("from its thread\nin two lines")
        thread = threading.Thread(target=log.warning, args=("from another thread",))
        thread.start()
        thread.join()
        print("printed", flush=True)

    def splits(self) -> Sequence[Split]:
        logging.getLogger(__name__).warning("from the watch")
        return [Split("a")]


class Sleeps(Source):
    """In its own thread, and does not end."""

    def start(self) -> None:
        print("sleeps")
        time.sleep(600)


class Lacks(Source):
    """The system that it reads."""

    def start(self) -> None:
        raise RetriableError("the desk does not answer")


class Blocks(Source):
    async def start(self) -> None:
        print("blocks")
        self.stand_still()

    def stand_still(self) -> None:
        time.sleep(600)


class Prints(Source):
    def start(self) -> None:
        for number in range(200_000):
            print("a line that nobody wants to read, number", number)
        raise KeyError("done with printing")


class Exits(Source):
    def start(self) -> None:
        print("exits")
        os._exit(3)


class ExitsKindly(Source):
    async def start(self) -> None:
        sys.exit("no licence")


class Crashes(Source):
    def start(self) -> None:
        os.kill(os.getpid(), 11)
        time.sleep(600)


class Forks(Source):
    """The child would go on for ever."""

    def start(self) -> None:
        child = os.fork()
        if not child:
            time.sleep(600)
        print("forked", child)
        os._exit(4)


class ForksItsLoop(Source):
    """The child would be a second host."""

    async def start(self) -> None:
        child = os.fork()
        if not child:
            return
        _, status = os.waitpid(child, 0)
        print("the child ended with", os.waitstatus_to_exitcode(status))
        os._exit(5)


class Eats(Source):
    async def start(self) -> None:
        print("eats")
        self.kept = []
        while True:
            self.kept.append(b"x" * (16 << 20))
            await asyncio.sleep(0.005)


class Closes(Source):
    """Everything that is open, the pipe to the worker too."""

    def start(self) -> None:
        os.closerange(3, 1_000)
        time.sleep(600)


class Writes(Source):
    """Rubbish to whatever is open."""

    def start(self) -> None:
        for fd in map(int, os.listdir("/proc/self/fd")):  # the pipe has the number that it had in the worker
            if fd > 2 and Path(f"/proc/self/fd/{fd}").is_socket():
                os.write(fd, b"rubbish\n")
        time.sleep(600)


class ForksAndStays(Source):
    """And goes on beside the child."""

    def start(self) -> None:
        if not os.fork():
            time.sleep(600)
        print("forked")
        time.sleep(600)
