"""The pipe between a worker and a host process, as either end has it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from headrace_connect.core.host_messages import Command, Report
from headrace_connect.core.host_protocol import LINE_BYTES_MAX, NotAMessage, decode_command, decode_report, encode

Sent = TypeVar("Sent", bound=Command | Report)
Received = TypeVar("Received", bound=Command | Report)
UNREAD_BYTES_MAX: Final = 4 * LINE_BYTES_MAX
"""What the other end has not read yet; beyond, it is given up."""


class LinkLost(Exception):
    """The other end has closed the pipe, or reads nothing any more."""


class Link(Generic[Sent, Received]):
    """One end. One task receives; sending never waits."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decode: Callable[[bytes], Received]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decode = decode

    async def receive(self) -> Received | None:
        """
        The next message; None: the other end has closed the pipe.

        Raises:
            NotAMessage: the other end says what nobody understands; nothing can follow.
        """
        try:
            line = await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, OSError):  # a line without its end is of one who died over it
            return None
        except asyncio.LimitOverrunError:
            raise NotAMessage(f"a line of more than {LINE_BYTES_MAX} bytes") from None
        return self._decode(line)

    def send(self, message: Sent) -> None:
        """
        Hand a message to the system.

        Raises:
            LinkLost: it reaches nobody.
            MessageTooLarge: nothing of it was sent.
            TypeError: a value in it is no JSON; nothing of it was sent.
        """
        line = encode(message)
        if self._writer.is_closing():
            raise LinkLost("the pipe is closed")
        if self._writer.transport.get_write_buffer_size() + len(line) > UNREAD_BYTES_MAX:
            self._writer.transport.abort()
            raise LinkLost(f"the other end has left {UNREAD_BYTES_MAX} bytes unread")
        self._writer.write(line)

    def close(self) -> None:
        """Tell the other end that nothing will follow; what was sent still reaches it."""
        with suppress(OSError):
            self._writer.close()


async def open_worker_end(own: socket.socket) -> Link[Command, Report]:
    """The end of a worker; ``own`` belongs to it from now on."""
    reader, writer = await asyncio.open_connection(sock=own, limit=LINE_BYTES_MAX)
    return Link(reader, writer, decode_report)


async def open_host_end(own: socket.socket) -> Link[Report, Command]:
    """The end of a host; ``own`` belongs to it from now on."""
    reader, writer = await asyncio.open_connection(sock=own, limit=LINE_BYTES_MAX)
    return Link(reader, writer, decode_command)
