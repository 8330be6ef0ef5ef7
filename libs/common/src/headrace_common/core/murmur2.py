"""
Kafka's murmur2 (``org.apache.kafka.common.utils.Utils.murmur2``), which decides the partition of a record with a key.

Producers call it: one key at a time, or a column of keys at once. Both give what every Kafka client gives, so that a
key lands in the same partition whoever writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """The hash, as an unsigned 32-bit number."""
    size = len(key)
    whole = size & ~3
    return _finish((_SEED ^ size) & _MASK, key, 0, whole, size)


def _finish(hashed: int, key: bytes, at: int, whole: int, size: int) -> int:
    """The hash of ``key``, of which the bytes before ``at`` are in ``hashed`` already."""
    for word in memoryview(key)[at:whole].cast("I"):
        mixed = word * _M & _MASK
        mixed ^= mixed >> 24
        hashed = (hashed * _M & _MASK) ^ (mixed * _M & _MASK)
    if size > whole:
        hashed ^= int.from_bytes(key[whole:size], "little")
        hashed = hashed * _M & _MASK
    hashed ^= hashed >> 13
    hashed = hashed * _M & _MASK
    return hashed ^ hashed >> 15


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of ``key`` among ``partitions``."""
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_for(keys: Sequence[bytes | None] | pa.Array[Any], partitions: int) -> np.ndarray[Any, Any]:
    """The partition of each key, int32; -1 where the key is None."""
    import numpy as np

    listed = keys.to_pylist() if hasattr(keys, "to_pylist") else keys
    return np.array([-1 if key is None else partition_for(key, partitions) for key in listed], np.int32)
