"""A replication connection, as the connector ``postgres-cdc`` has one, read to a mark."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from libs.connect.tests.postgres.fake_spool import FakeSpool
from psycopg import pq

from headrace_connect.core.assembling import Assembler
from headrace_connect.core.changes import Piece, Signal
from headrace_connect.core.pgoutput import Keepalive, Protocol, XLogData, decode_frame, status_update

SESSION = "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=postgres -c bytea_output=hex -c lc_monetary=C"
READ_S = 30


class Replication:
    """What a slot sends, from where it was confirmed."""

    def __init__(self, connection: psycopg.Connection, protocol: Protocol, **limits: int) -> None:
        self._pgconn = connection.pgconn
        self.spool = FakeSpool()
        self.assembler = Assembler(protocol, self.spool, **limits)
        self.kinds: set[bytes] = set()
        """First bytes of the messages that came."""
        self.raw: list[tuple[int, bytes]] = []

    def read_to(self, mark: str) -> list[Piece | Signal]:
        """What comes up to a message outside of transactions with this content."""
        out: list[Piece | Signal] = []
        while True:
            frame = decode_frame(self._frame())
            if isinstance(frame, Keepalive):
                continue
            assert isinstance(frame, XLogData)
            self.kinds.add(frame.payload[:1])
            self.raw.append((frame.lsn, frame.payload))
            for item in self.assembler.handle(frame.lsn, frame.payload):
                if isinstance(item, Signal) and item.message.content == mark.encode():
                    return out
                out.append(item)

    def _frame(self) -> bytes:
        while True:
            size, data = self._pgconn.get_copy_data(1)
            if size > 0:
                return bytes(data)
            assert size == 0, self._pgconn.error_message
            ready, _, _ = select.select([self._pgconn.socket], [], [], READ_S)
            assert ready, f"the server sent nothing for {READ_S} s"
            self._pgconn.consume_input()

    def confirm(self, lsn: int) -> None:
        self._pgconn.put_copy_data(status_update(lsn, lsn, lsn, 1_700_000_000_000_000))
        self._pgconn.flush()


@contextmanager
def replicating(address: str, slot: str, protocol: Protocol, options: str, **limits: int) -> Iterator[Replication]:
    """Read a slot with ``publication_names`` all, and the options of pgoutput that are given."""
    with psycopg.connect(address, autocommit=True, replication="database", options=SESSION) as connection:
        command = (
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '{protocol.version}', "
            f"publication_names 'everything', messages 'true'{options})"
        )
        connection.pgconn.send_query(command.encode())
        result = connection.pgconn.get_result()
        assert result is not None
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
        yield Replication(connection, protocol, **limits)
        connection.pgconn.finish()
