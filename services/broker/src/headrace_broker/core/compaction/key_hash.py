"""
128 bits that stand for a key in the offset map, computed for the keys of a batch at once.

As in Kafka, which takes MD5, two keys with the same hash count as one; of a thousand million keys that happens once in
10**20 times. The two halves are made of 8 bytes of each key at a time, with the finalisers of MurmurHash3 and of
SplitMix64, which spread every bit over all, from secret beginnings, so that nobody can choose keys that collide. Few
keys are hashed one by one and very long ones by BLAKE2: numpy pays only for many short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Words = np.ndarray[Any, np.dtype[np.uint64]]

FEW: Final = 16
LONG: Final = 256
"""Keys of more bytes are hashed by BLAKE2."""
_ALL: Final = 2**64 - 1
_LANES: Final = (
    (33, 0xFF51AFD7ED558CCD, 33, 0xC4CEB9FE1A85EC53, 33),
    (30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31),
)
"""Shift, factor, shift, factor, shift."""
_OF_LENGTH: Final = 0x9E3779B97F4A7C15


def hash_one(key: bytes, seed: int) -> tuple[int, int]:
    """Both halves. ``seed`` has 128 bits."""
    if len(key) > LONG:
        digest = blake2b(key, digest_size=16, key=seed.to_bytes(16, "little")).digest()
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    halves: list[int] = []
    for lane, begin in zip(_LANES, _begins(seed), strict=True):
        first, factor, second, other, third = lane
        x = begin ^ (len(key) * _OF_LENGTH & _ALL)
        for at in range(0, max(1, len(key)), 8):
            x ^= int.from_bytes(key[at : at + 8], "little")
            x = (x ^ x >> first) * factor & _ALL
            x = (x ^ x >> second) * other & _ALL
            x ^= x >> third
        halves.append(x)
    return halves[0], halves[1]


def hash_list(keys: Sequence[bytes], seed: int) -> tuple[Words, Words]:
    """The halves of a few keys."""
    import numpy as np

    halves = np.array([hash_one(key, seed) for key in keys], np.uint64).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]


def hash_column(keys: pa.Array[Any], seed: int) -> tuple[Words, Words]:
    """The halves of all ``keys``, binary in Arrow; of a missing one they mean nothing."""
    import numpy as np

    count = len(keys)
    _, bounds, data = keys.buffers()
    assert bounds is not None, "a binary column has offsets"
    ends = np.frombuffer(memoryview(bounds), "<i4", count + 1, keys.offset * 4).astype(np.int64)
    first, size = int(ends[0]), int(ends[-1] - ends[0])
    blob = np.zeros(size + 8, np.uint8)  # the last key's last word is read past its end
    if size and data is not None:
        blob[:size] = np.frombuffer(memoryview(data), np.uint8, size, first)
    words: Words = np.ndarray((size + 1,), "<u8", buffer=blob.data, strides=(1,))
    starts, lengths = ends[:-1] - first, np.diff(ends)
    halves = tuple(
        _lane(words, starts, lengths, lane, begin) for lane, begin in zip(_LANES, _begins(seed), strict=True)
    )
    long = lengths > LONG
    if keys.null_count:  # the place of a missing key may have bytes
        long &= keys.is_valid().to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(long).tolist():
        halves[0][at], halves[1][at] = hash_one(keys[at].as_py(), seed)
    return halves[0], halves[1]


def _lane(words: Words, starts: Any, lengths: Any, lane: tuple[int, int, int, int, int], begin: int) -> Words:
    import numpy as np

    shifts = [np.uint64(each) for each in lane[::2]]
    factors = [np.uint64(each) for each in lane[1::2]]
    x: Words = lengths.astype(np.uint64) * np.uint64(_OF_LENGTH) ^ np.uint64(begin)
    masks = np.array([(1 << 8 * each) - 1 for each in range(9)], np.uint64)
    longest = int(min(LONG, lengths.max(initial=0)))
    shortest = int(lengths.min(initial=0))
    for at in range(0, max(1, longest), 8):
        here = slice(None) if at == 0 or shortest > at else np.flatnonzero(lengths > at)
        left = lengths[here] - at
        word = words[np.minimum(starts[here] + at, len(words) - 1)]
        if at + 8 > shortest:
            word = word & masks[np.clip(left, 0, 8)]
        y = x[here] ^ word
        y = (y ^ y >> shifts[0]) * factors[0]
        y = (y ^ y >> shifts[1]) * factors[1]
        x[here] = y ^ y >> shifts[2]
    return x


def _begins(seed: int) -> tuple[int, int]:
    return seed & _ALL, seed >> 64 & _ALL
