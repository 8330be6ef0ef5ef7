"""Random values, made before the clock starts."""

from __future__ import annotations

import os
import random


def random_values(size: int, distinct: int = 4096) -> list[bytes]:
    """``distinct`` random values of ``size`` bytes; clients cycle through them."""
    return [os.urandom(size) for _ in range(distinct)]


def key_values(distinct: int = 1000) -> list[bytes]:
    """Keys as users have them: short, of few lengths."""
    return [str(random.randrange(10**6)).encode() for _ in range(distinct)]
