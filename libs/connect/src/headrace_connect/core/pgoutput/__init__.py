"""PostgreSQL's logical replication: the frames of a replication connection, and the messages of pgoutput in them."""

from __future__ import annotations

from headrace_connect.core.pgoutput.decoder import decode, xid_of
from headrace_connect.core.pgoutput.errors import MessageDamaged, UnknownRelation
from headrace_connect.core.pgoutput.frames import Keepalive, XLogData, decode_frame, status_update
from headrace_connect.core.pgoutput.lsn import format_lsn, parse_lsn
from headrace_connect.core.pgoutput.reader import Protocol

__all__ = [
    "Keepalive",
    "MessageDamaged",
    "Protocol",
    "UnknownRelation",
    "XLogData",
    "decode",
    "decode_frame",
    "format_lsn",
    "parse_lsn",
    "status_update",
    "xid_of",
]
