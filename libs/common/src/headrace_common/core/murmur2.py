"""
Kafka's murmur2 (``org.apache.kafka.common.utils.Utils.murmur2``), which decides the partition of a record with a key.

Producers call it: one key at a time, or a column of keys at once. Both give what every Kafka client gives, so that a
key lands in the same partition whoever writes it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.arrow import has_arrow

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_VECTOR_MIN: Final = 16
"""With fewer keys than this one numpy call per step costs more than plain Python."""


def murmur2(key: bytes) -> int:
    """The hash, as an unsigned 32-bit number."""
    return _absorb(key, 0, (_SEED ^ len(key)) & _MASK)


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of ``key`` among ``partitions``."""
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_for(keys: Sequence[bytes | None] | pa.Array[Any], partitions: int) -> np.ndarray[Any, Any]:
    """The partition of each key, int32; -1 where the key is None. Arrow keys may be binary or text of any width."""
    import numpy as np

    if isinstance(keys, list | tuple) and len(keys) < _VECTOR_MIN:
        found = [-1 if key is None else partition_for(key, partitions) for key in keys]
        return np.array(found, np.int32)
    if isinstance(keys, list | tuple) and not has_arrow():
        return _partitions_for_list(keys, partitions)
    array = _as_binary(keys)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(memoryview(offsets), "<i4", len(array) + 1, array.offset * 4)
    first, last = (int(ends[0]), int(ends[-1])) if len(array) else (0, 0)
    blob = memoryview(data)[first:last] if last > first else memoryview(b"")
    chosen = _choose_partitions(_hashes(blob, ends.astype(np.int64) - first), partitions)
    if array.null_count:
        chosen[~array.is_valid().to_numpy(zero_copy_only=False)] = -1
    return chosen


def _partitions_for_list(keys: Sequence[bytes | None], partitions: int) -> np.ndarray[Any, Any]:
    """As ``partitions_for``, of many keys where there is no pyarrow."""
    import numpy as np

    present = [key for key in keys if key is not None]
    ends = np.zeros(len(present) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, present), np.int64, len(present)), out=ends[1:])
    found = _choose_partitions(_hashes(memoryview(b"".join(present)), ends), partitions)
    if len(present) == len(keys):
        return found
    chosen = np.full(len(keys), -1, np.int32)
    chosen[np.fromiter((key is not None for key in keys), np.bool_, len(keys))] = found
    return chosen


def _choose_partitions(hashes: np.ndarray[Any, Any], partitions: int) -> np.ndarray[Any, Any]:
    import numpy as np

    return ((hashes & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int32)


def _as_binary(keys: Any) -> Any:
    """``keys`` as one Arrow array with 32-bit offsets."""
    import pyarrow as pa

    if not hasattr(keys, "type"):
        return pa.array(keys, pa.binary())
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if pa.types.is_binary(keys.type) or pa.types.is_string(keys.type):
        return keys
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    return keys.cast(pa.binary())


def _absorb(key: bytes | memoryview, at: int, hashed: int) -> int:
    """The hash of ``key`` when ``hashed`` holds what is before ``at``, a multiple of 4."""
    words, rest = divmod(len(key) - at, 4)
    for word in struct.unpack_from(f"<{words}I", key, at):
        mixed = word * _M & _MASK
        mixed ^= mixed >> 24
        hashed = (hashed * _M ^ mixed * _M) & _MASK
    if rest:
        hashed = (hashed ^ int.from_bytes(key[len(key) - rest :], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def _hashes(data: memoryview, ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """
    The hash of each key, ``data[ends[i] : ends[i + 1]]``.

    The keys are ordered by length, longest first, so that one step takes the next four bytes of all keys that have
    them. The few longest are finished one by one: a single long key must not take a numpy call per word.
    """
    import numpy as np

    starts, lengths = ends[:-1], np.diff(ends)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    hashed = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    steps = lengths >> 2
    padded = np.frombuffer(b"".join((data, b"\0\0\0\0")), np.uint8)
    words = np.lib.stride_tricks.sliding_window_view(padded, 4)
    vector_steps = int(steps[_VECTOR_MIN - 1]) if len(steps) >= _VECTOR_MIN else 0
    # how many keys have more than ``step`` words; ``steps`` falls, so look in its negative, which grows
    having = np.searchsorted(-steps, -np.arange(1, vector_steps + 1), side="right")
    multiplier = np.uint32(_M)
    for step, count in enumerate(having.tolist()):
        mixed = words[starts[:count] + 4 * step].view("<u4").ravel() * multiplier
        mixed ^= mixed >> np.uint32(24)
        hashed[:count] = (hashed[:count] * multiplier) ^ (mixed * multiplier)
    _finish(hashed, lengths, words[starts + 4 * steps].view("<u4").ravel())
    for index in np.flatnonzero(steps > vector_steps).tolist():
        start, length = int(starts[index]), int(lengths[index])
        hashed[index] = murmur2(bytes(data[start : start + length]))
    hashes = np.empty_like(hashed)
    hashes[order] = hashed
    return hashes


def _finish(hashed: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], tails: np.ndarray[Any, Any]) -> None:
    """Take in the last one to three bytes of each key (the low bytes of ``tails``) and mix, in place."""
    import numpy as np

    rest = lengths & 3
    multiplier = np.uint32(_M)
    kept = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)[rest]
    absorbed = (hashed ^ (tails & kept)) * multiplier
    np.copyto(hashed, absorbed, where=rest > 0)
    hashed ^= hashed >> np.uint32(13)
    hashed *= multiplier
    hashed ^= hashed >> np.uint32(15)
