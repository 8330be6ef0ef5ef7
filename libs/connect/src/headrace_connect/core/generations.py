"""Numbers of generations of a source's tasks: a higher one fences all lower ones, whoever began them."""

from __future__ import annotations

from typing import Final

CHANCE_BITS: Final = 20
"""Below the time in ms: two that begin in the same ms are not the same."""


def next_generation(before: int, now_ms: int, chance: int) -> int:
    """
    Above ``before``, and by the clock above what others have drawn earlier.

    Args:
        before: the highest that is known; 0: none.
        chance: random bits.
    """
    return max(before + 1, (now_ms << CHANCE_BITS) | (chance & ((1 << CHANCE_BITS) - 1)))
