"""
What the control batches of a log say, read once when a follower takes them in; a leader knows what it writes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace_broker.core.fences import token_in
from headrace_common.core.batch import BatchHeader, read_marker


class Said(NamedTuple):
    """Both None: records, or a kind of control batch that means nothing here."""

    token: int | None
    """The fencing token that it sets."""
    commit: bool | None
    """What it says of the transaction that it ends."""


NOTHING: Final = Said(None, None)


def read_control_batch(header: BatchHeader, batch: bytes) -> Said:
    """
    What a batch of the log says to the log.

    Raises:
        CorruptBatch: a control batch that says nothing valid.
        UnsupportedVersion: a fence or a marker of a newer version.
    """
    if not header.control:
        return NOTHING
    marker = read_marker(batch, header)
    return Said(token_in(header, batch), None) if marker is None else Said(None, marker.commit)
