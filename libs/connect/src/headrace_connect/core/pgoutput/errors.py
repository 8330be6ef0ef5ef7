"""What can be wrong with what a replication connection delivers."""

from __future__ import annotations

from headrace_common.core.errors import ErrorCode, Internal
from headrace_connect.core.pgoutput.lsn import format_lsn


class MessageDamaged(Internal, code=ErrorCode.CORRUPT_MESSAGE):
    """
    A message does not follow the protocol. Nothing of it was used. The task ends and starts again at its last
    committed position; the server then sends the message again.
    """

    def __init__(self, message: str, lsn: int | None, cause: str) -> None:
        self.message = message
        """Its name in PostgreSQL's documentation, or its first byte."""
        self.lsn = lsn
        """Where in the WAL; None: the frame that says where is itself damaged."""
        at = f" at LSN {format_lsn(lsn)}" if lsn is not None else ""
        super().__init__(f"the replication message {message}{at} {cause}")


class UnknownRelation(MessageDamaged):
    """A change belongs to a table that the server has not described on this connection."""

    def __init__(self, message: str, lsn: int, oid: int) -> None:
        self.oid = oid
        super().__init__(message, lsn, f"refers to relation {oid}, which no Relation message has described")
