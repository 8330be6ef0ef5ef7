"""How much is measured. ``--quick`` shrinks it, to see that everything runs; its figures mean nothing."""

from __future__ import annotations

_QUICK = [False]


def shrink() -> None:
    """From now on sizes are the small ones."""
    _QUICK[0] = True


def sized(full: int, quick: int) -> int:
    """``full``, or ``quick`` after ``shrink``."""
    return quick if _QUICK[0] else full
