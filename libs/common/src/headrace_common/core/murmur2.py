"""
Kafka's murmur2 (``org.apache.kafka.common.utils.Utils.murmur2``), which decides the partition of a record with a key.

Producers call it: one key at a time, a list of keys, or an Arrow column. All give what every Kafka client gives, so
that a key lands in the same partition whoever writes it. A list is hashed without numpy: a producer of lists does not
load that.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_VECTOR_MIN: Final = 16
"""With fewer keys than this one numpy call per step costs more than plain Python."""
_TOGETHER_MIN: Final = 6
"""With fewer keys than this hashing each by itself is quicker."""


def murmur2(key: bytes) -> int:
    """The hash, as an unsigned 32-bit number."""
    return _absorb(key, 0, (_SEED ^ len(key)) & _MASK)


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of ``key`` among ``partitions``."""
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_for_list(keys: Sequence[bytes | None], partitions: int) -> list[int]:
    """The partition of each key; -1 where the key is None."""
    whole = cast("Sequence[bytes]", keys)
    try:
        lengths = list(map(len, whole))
    except TypeError:  # there is a None, which has no length
        return _partitions_with_nulls(keys, partitions)
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return _place(whole, partitions)
    placed = [-1] * len(keys)
    for rows in _group_alike(lengths):
        for row, partition in zip(rows, _place([whole[row] for row in rows], partitions), strict=True):
            placed[row] = partition
    return placed


def _partitions_with_nulls(keys: Sequence[bytes | None], partitions: int) -> list[int]:
    found = iter(partitions_for_list([key for key in keys if key is not None], partitions))
    return [-1 if key is None else next(found) for key in keys]


def _group_alike(lengths: list[int]) -> Iterable[list[int]]:
    """The rows of those that ``_hash_together`` takes together."""
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for row, length in enumerate(lengths):
        by_length[length].append(row)
    alike: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for length, rows in by_length.items():
        alike[length >> 2, length & 3 > 0] += rows
    return alike.values()


def _place(keys: Sequence[bytes], partitions: int) -> list[int]:
    """
    The partition of each key; the keys are alike as ``_hash_together`` needs them.

    The remainder of all hashes at once: a division by multiplying, exact for numbers of 31 bits (Granlund and
    Montgomery, "Division by Invariant Integers using Multiplication", 1994, theorem 4.2).
    """
    if len(keys) < _TOGETHER_MIN:
        return [partition_for(key, partitions) for key in keys]
    ones = _ones(len(keys))
    hashes = _hash_together(keys) & ones * _POSITIVE
    shift = 31 + (partitions - 1).bit_length()
    quotients = hashes * ((1 << shift) // partitions + 1) >> shift & ones * ((1 << 64 - shift) - 1)
    rests = (hashes - quotients * partitions).to_bytes(8 * len(keys), "little")
    return list(rests[::8] if partitions <= 256 else struct.unpack(f"<{len(keys)}Q", rests))


def partitions_for(keys: pa.Array[Any], partitions: int) -> np.ndarray[Any, Any]:
    """The partition of each key of an Arrow array, binary or text of any width; int32, -1 where the key is null."""
    import numpy as np

    array = _as_binary(keys)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(memoryview(offsets), "<i4", len(array) + 1, array.offset * 4)
    first, last = (int(ends[0]), int(ends[-1])) if len(array) else (0, 0)
    blob = memoryview(data)[first:last] if last > first else memoryview(b"")
    chosen = _choose_partitions(_hashes(blob, ends.astype(np.int64) - first), partitions)
    if array.null_count:
        chosen[~array.is_valid().to_numpy(zero_copy_only=False)] = -1
    return chosen


def _choose_partitions(hashes: np.ndarray[Any, Any], partitions: int) -> np.ndarray[Any, Any]:
    import numpy as np

    return ((hashes & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int32)


def _as_binary(keys: Any) -> Any:
    """``keys`` as one Arrow array with 32-bit offsets."""
    import pyarrow as pa

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


def _hash_together(keys: Sequence[bytes]) -> int:
    """
    The hash of each key, of which all have as many words of four bytes, and all or none have bytes beyond these.

    One long number holds all of them, 64 bits for each, of which the low 32 are used: a product fills the others, and
    is cut back. So a step of the hash is one operation for all keys, at the speed of C.
    """
    lengths = list(map(len, keys))
    width = max(lengths)
    alike = lengths.count(width) == len(keys)
    data = b"".join(keys if alike else [key.ljust(width, b"\0") for key in keys])
    words, rest = divmod(width, 4)
    ones = _ones(len(keys))
    low, top = ones * _MASK, ones * (_MASK >> 24)
    sizes = ones * width if alike else int.from_bytes(struct.pack(f"<{len(keys)}Q", *lengths), "little")
    hashed = ones * _SEED ^ sizes
    for at in range(0, 4 * words, 4):
        mixed = _spread(data, width, at, 4) * _M & low
        mixed ^= mixed >> 24 & top
        hashed = (hashed * _M & low) ^ (mixed * _M & low)
    if rest:
        hashed = (hashed ^ _spread(data, width, 4 * words, rest)) * _M & low
    hashed = (hashed ^ hashed >> 13 & ones * (_MASK >> 13)) * _M & low
    return hashed ^ hashed >> 15 & ones * (_MASK >> 15)


def _ones(count: int) -> int:
    """``count`` times a one in 64 bits."""
    return int.from_bytes(b"\1\0\0\0\0\0\0\0" * count, "little")


def _spread(data: bytes, width: int, at: int, size: int) -> int:
    """The ``size`` bytes from ``at`` on of each key of ``width`` bytes, in 64 bits each."""
    lanes = bytearray(8 * (len(data) // width))
    for byte in range(size):
        lanes[byte::8] = data[at + byte :: width]
    return int.from_bytes(lanes, "little")


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
