"""The frames of a replication connection: what is inside CopyData, both ways."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from headrace_connect.core.pgoutput.errors import MessageDamaged

EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01, from which PostgreSQL counts, in Unix microseconds."""
_DATA: Final = Struct(">cQQq")
_KEEPALIVE: Final = Struct(">cQqB")
_STATUS: Final = Struct(">cQQQqB")


@dataclass(frozen=True, slots=True)
class XLogData:
    """One message of pgoutput."""

    lsn: int
    """Where in the WAL the message begins; 0 for messages that have no place of their own."""
    end_lsn: int
    """The end of the WAL at the server."""
    time_us: int
    """The server's clock, Unix microseconds."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server is alive, and has sent everything below ``end_lsn`` that there is to send."""

    end_lsn: int
    time_us: int
    """The server's clock, Unix microseconds."""
    reply: bool
    """A status update is wanted at once, else the server closes the connection."""


def decode_frame(data: bytes | memoryview) -> XLogData | Keepalive:
    """
    Read the content of one CopyData.

    Raises:
        MessageDamaged: it is cut short, too long, or of an unknown kind.
    """
    match bytes(data[:1]):
        case b"w":
            if len(data) < _DATA.size:
                raise MessageDamaged("XLogData", None, f"is cut short: {len(data)} bytes")
            _, lsn, end, time = _DATA.unpack_from(data)
            return XLogData(lsn, end, time + EPOCH_US, bytes(data[_DATA.size :]))
        case b"k":
            if len(data) != _KEEPALIVE.size:
                raise MessageDamaged("Primary keepalive", None, f"has {len(data)} bytes, not {_KEEPALIVE.size}")
            _, end, time, reply = _KEEPALIVE.unpack(data)
            if reply > 1:
                raise MessageDamaged("Primary keepalive", None, f"has {reply} where 0 or 1 belongs")
            return Keepalive(end, time + EPOCH_US, bool(reply))
        case kind:
            raise MessageDamaged(repr(kind), None, "is neither XLogData nor a keepalive")


def status_update(written: int, flushed: int, applied: int, time_us: int, *, reply: bool = False) -> bytes:
    """
    Tell the server up to which LSN (exclusive) all is received, durable, and visible to readers.

    What lies below ``flushed`` is never sent again.

    Args:
        time_us: this machine's clock, Unix microseconds.
        reply: ask for a keepalive.
    """
    return _STATUS.pack(b"r", written, flushed, applied, time_us - EPOCH_US, reply)
