"""
The fencing token of one log: the largest that a fence record in it has set, whatever became of the log's ends.

A fence record is a control batch with a token; from it on only appends that carry that token are taken, so whoever
writes under an older one writes no more (01-architecture §5). The token is part of the log: followers learn it from
what they copy, and a log that is cut has the token of what is left. The partition machine asks; the newest fences are
kept, which is all that a cut can ever reach: what is committed is not cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace_broker.core.rows import NO_TOKEN, FenceRow
from headrace_common.core.batch import FENCE_BATCH_BYTES_MAX, BatchHeader, decode_batch, read_control, read_fence
from headrace_common.core.errors import FencedWriter, InvalidRecord, UnsupportedVersion
from headrace_common.core.ids import Offset

FENCES_MAX: Final = 16
"""Fences kept with their offsets; of those before only the largest token."""
BEFORE: Final = Offset(-1)
"""The offset of a fence of which only the token is known; no cut reaches it."""
_REQUIRED: Final = (
    "the topic has fencing.required=true and the append carries no fencing token: set a token for the partition with a"
    " fence record (Producer.fence), then send it with each append"
)


class Fences:
    """Fence records, offsets and tokens both ascending."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterable[FenceRow] = ()) -> None:
        self._rows = list(rows)

    @property
    def token(self) -> int:
        """What an append has to carry; -1: no fence was ever set."""
        return self._rows[-1].token if self._rows else NO_TOKEN

    @property
    def newest(self) -> FenceRow | None:
        """The fence that has set the token; None: none was ever set."""
        return self._rows[-1] if self._rows else None

    def token_below(self, offset: Offset) -> int:
        """The token as it was before ``offset``; never one that is too low. -1: none."""
        return max((row.token for row in self._rows if row.offset < offset), default=NO_TOKEN)

    def refusal(self, carried: int | None, fence: int | None, *, required: bool = False) -> FencedWriter | None:
        """
        Why a writer may not append now; None: it may.

        Args:
            carried: the token that the append carries; None: none.
            fence: the token that the batch sets, if it is a fence record; then ``carried`` is ignored.
            required: the topic's ``fencing.required``: an append has to carry one.
        """
        token = self.token
        if fence is not None:
            if fence > token:
                return None
            return FencedWriter(f"the fencing token is {token}; a new one must be above it, and {fence} is not")
        if carried is None:
            return FencedWriter(_REQUIRED) if required else None
        if token == NO_TOKEN:
            return FencedWriter(f"no fencing token is set; set {carried} with a fence record first")
        if carried == token:
            return None
        return FencedWriter(
            f"the fencing token is {token} and the append carries {carried}: another writer has taken over, or this "
            "one has not set its token yet"
        )

    def note_appended(self, offset: Offset, token: int) -> bool:
        """A fence record was appended or copied; whether it changes the token, which never falls."""
        if token <= self.token:
            return False
        self._rows.append(FenceRow(offset, token))
        if len(self._rows) > FENCES_MAX:
            self._rows[:2] = [FenceRow(BEFORE, self._rows[1].token)]
        return True

    def truncate(self, end: Offset) -> None:
        """The log ends at ``end`` now."""
        while self._rows and self._rows[-1].offset >= end:
            self._rows.pop()

    def rows(self) -> tuple[FenceRow, ...]:
        """As they are stored."""
        return tuple(self._rows)


def fences_of(token: int) -> Fences:
    """Those of a log that begins after a fence of which only the token is known; -1: after none."""
    return Fences() if token < 0 else Fences([FenceRow(BEFORE, token)])


def token_in(header: BatchHeader, batch: bytes) -> int | None:
    """
    The token that a batch of the log sets; None: none.

    Raises:
        CorruptBatch: a control batch that says nothing valid.
        UnsupportedVersion: a fence of a newer version.
    """
    if not header.control:
        return None
    decoded = decode_batch(batch, verify_crc=False)
    try:
        read_control(decoded)
    except UnsupportedVersion:
        return None  # a kind of control record that says nothing of fences
    return read_fence(decoded)


def token_from_client(header: BatchHeader, batch: bytes) -> int | None:
    """
    The token of a fence that a client sent; None: it sent records.

    Raises:
        InvalidRecord: a control batch that clients may not write.
        CorruptBatch, UnsupportedVersion: as ``token_in``.
    """
    if not header.control:
        return None
    plain = header.magic == 3 and not header.attributes & 0x07 and header.size <= FENCE_BATCH_BYTES_MAX
    token = token_in(header, batch) if plain and header.producer_id < 0 else None
    if token is None:
        raise InvalidRecord(
            "of control batches clients may only write fences: magic 3, not compressed, without a producer id, at most "
            f"{FENCE_BATCH_BYTES_MAX} bytes"
        )
    return token
