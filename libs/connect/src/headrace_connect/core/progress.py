"""How far a verification is; its host tells it to the worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Of all partitions together."""

    offsets: int = 0
    """That are to be compared; 0: not known yet."""
    scanned: int = 0
    """That were read before the first is compared, to know the last record of each key. Not every sink needs it."""
    compared: int = 0
