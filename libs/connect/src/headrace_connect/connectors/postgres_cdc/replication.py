"""A replication connection: frames come out of it, and LSNs that are safe go into it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import psycopg
from psycopg import pq

from headrace_common.runtime.clock import Clock, call_later_ms, limit_ms
from headrace_connect.connectors.postgres_cdc.session import TEXTS, connect, fault_of, faults, literal, quote
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.core.pgoutput import (
    Keepalive,
    Protocol,
    XLogData,
    decode_frame,
    format_lsn,
    parse_lsn,
    status_update,
)
from headrace_connect.plugin import RetriableError

PROTOCOL: Final = Protocol(2)
"""Of PostgreSQL 14 and newer: large transactions come while they are open."""
_OPTIONS: Final = {**TEXTS, "idle_in_transaction_session_timeout": "0", "idle_session_timeout": "0"}
"""A connection that keeps a snapshot is idle in a transaction."""
_NO_OBJECT: Final = b"42704"
BEAT_MS: Final = 10_000.0
TAKE_BYTES: Final = 4 << 20
SILENCE_MS: Final = 60_000.0
"""A server that does not answer for so long is taken as lost."""


class Replication:
    """
    One connection. The server is told every ``BEAT_MS`` that it is alive, also while nobody reads.

    All methods belong to one event loop.
    """

    def __init__(self, connection: psycopg.AsyncConnection[tuple[Any, ...]], clock: Clock) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._confirmed = 0
        self._heard_ms = clock.monotonic_ms()
        self.is_empty = False
        """The last ``take`` has taken all there was."""
        self.received = 0
        """All below was sent by the server, as far as its frames say."""

    @classmethod
    async def open(cls, settings: SourceSettings, application: str, clock: Clock) -> Replication:
        """
        Connect; ``start`` comes next.

        Raises:
            RetriableError: the server cannot be reached, or does not let us in.
            InvalidConfig: the user may not replicate.
        """
        return cls(await connect(settings, application, _OPTIONS, replication="database"), clock)

    async def identify(self) -> tuple[str, int]:
        """The server's name for itself, and the end of its WAL."""
        with faults():
            cursor = await self._connection.execute(b"IDENTIFY_SYSTEM")
            row = await cursor.fetchone()
            assert row is not None, "there is an answer"
            return str(row[0]), parse_lsn(str(row[2]))

    async def export(self, slot: str, *, failover: bool) -> tuple[str, int]:
        """
        Make a slot; waits until all transactions have ended that are open now.

        Returns:
            The snapshot of all that committed before the slot's first change, which ends with the next call of this
            connection but ``check_held``; and the LSN where the slot begins.

        Raises:
            RetriableError: there are too many slots, or the server is away.
            InvalidConfig: the user may not, or there is a slot of that name.
        """
        options = "(SNAPSHOT 'export', FAILOVER)" if failover else "EXPORT_SNAPSHOT"
        with faults():
            cursor = await self._connection.execute(f"CREATE_REPLICATION_SLOT {quote(slot)} LOGICAL pgoutput {options}")
            row = await cursor.fetchone()
            assert row is not None, "there is an answer"
            return str(row[2]), parse_lsn(str(row[1]))

    async def check_held(self, ms: float) -> None:
        """
        Wait so long, while the snapshot is kept.

        Raises:
            RetriableError: the connection is lost, and the snapshot with it.
        """
        await self._ready(ms)
        with faults():
            self._pgconn.consume_input()

    async def start(self, slot: str, publication: str, lsn: int, confirmed: int) -> None:
        """
        Have the slot's changes sent, of transactions that commit at ``lsn`` or later.

        Args:
            confirmed: what the slot was told before; less is never confirmed.

        Raises:
            RetriableError: somebody else reads the slot, or the server is away.
            InvalidConfig: the slot or publication is not there, or the user may not read it.
        """
        self._confirmed, self._heard_ms = confirmed, self._clock.monotonic_ms()  # while it was idle, nothing came
        # The name of the publication is an identifier within a literal.
        options = (
            f"proto_version '{PROTOCOL.version}', streaming 'on', messages 'true', "
            f"publication_names {literal(quote(publication))}"
        )
        command = f"START_REPLICATION SLOT {quote(slot)} LOGICAL {format_lsn(lsn)} ({options})"
        with faults():
            self._pgconn.send_query(command.encode())
            while self._pgconn.flush():
                await self._ready(BEAT_MS)
            while self._pgconn.is_busy():
                await self.wait(BEAT_MS)
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._fault(result)
        self._beat()

    def take(self, frames_max: int) -> list[tuple[int, bytes]]:
        """
        Messages that are there, with their LSNs; at most so many, and not much more than ``TAKE_BYTES``. ``received``
        counts when all of them are handled.

        Raises:
            RetriableError: the connection is lost, or the server ended it.
            InvalidConfig: the server cannot decode the changes.
        """
        frames: list[tuple[int, bytes]] = []
        left, self.is_empty = TAKE_BYTES, False
        with faults():
            self._pgconn.consume_input()
            while len(frames) < frames_max and left > 0:
                size, data = self._pgconn.get_copy_data(1)
                if size == 0:
                    self.is_empty = True
                    break
                if size < 0:
                    raise self._fault(self._pgconn.get_result())
                frame = decode_frame(data)
                self._heard_ms = self._clock.monotonic_ms()
                if isinstance(frame, XLogData):
                    frames.append((frame.lsn, frame.payload))
                    left -= size
                else:
                    self._take_keepalive(frame)
        return frames

    def _take_keepalive(self, frame: Keepalive) -> None:
        self.received = max(self.received, frame.end_lsn)
        if frame.reply:
            self._send(reply=False)

    async def wait(self, ms: float) -> None:
        """
        Until something can be read, or ``ms`` have passed.

        Raises:
            RetriableError: the server has been silent for too long.
        """
        await self._ready(ms)
        self._check_silence()

    def confirm(self, lsn: int) -> None:
        """All below is safe; the server may forget it. Never goes back."""
        if lsn > self._confirmed:
            self._confirmed = lsn
            self._send(reply=False)

    def ask(self) -> None:
        """Ask for a keepalive: it says how far the server has come."""
        self._send(reply=True)

    async def close(self) -> None:
        """Disconnect; the slot is free as soon as the server has noticed it."""
        if self._timer is not None:
            self._timer.cancel()
        await self._connection.close()

    async def _ready(self, ms: float) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        with faults():
            socket = self._pgconn.socket
        loop.add_reader(socket, ready.set)
        try:
            async with limit_ms(ms):
                await ready.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(socket)

    def _check_silence(self) -> None:
        silent_ms = self._clock.monotonic_ms() - self._heard_ms
        if silent_ms > SILENCE_MS:
            raise RetriableError(f"PostgreSQL has sent nothing for {silent_ms / 1_000:.0f} s")

    def _beat(self) -> None:
        self._timer = call_later_ms(BEAT_MS, self._beat)
        try:
            self._send(reply=True)
        except RetriableError:
            self._timer.cancel()  # who reads finds the same

    def _send(self, *, reply: bool) -> None:
        now_us = self._clock.now_ms() * 1_000
        received = max(self.received, self._confirmed)
        with faults():
            self._pgconn.put_copy_data(status_update(received, self._confirmed, self._confirmed, now_us, reply=reply))
            self._pgconn.flush()

    def _fault(self, result: pq.abc.PGresult | None) -> Exception:
        if result is None:
            return RetriableError(f"PostgreSQL has closed the connection: {self._pgconn.get_error_message()}")
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        message = result.get_error_message() or "the server ended the replication"
        if state == _NO_OBJECT:
            message += (
                "; what is missing must have been there when the changes were made: if it is there now, drop the slot"
            )
        return fault_of(state.decode() if state else None, message)
