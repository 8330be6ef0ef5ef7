"""CRC-32C as the batch header carries it. The extension is loaded on first use: its package takes 40 ms to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_crc32c: Callable[[Any, int], int] | None = None


def _load() -> Callable[[Any, int], int]:
    global _crc32c  # noqa: PLW0603 - the one place that binds it
    from crc32c import crc32c

    _crc32c = crc32c
    return crc32c


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """CRC-32C of ``data``; ``value`` is the CRC of the bytes before it, so that pieces need not be joined first."""
    return (_crc32c or _load())(data, value)
