"""
Summaries of many values in little room.

Each is a state that MessagePack keeps, and functions that take a value in and another summary in. How rows are shared
among summaries is not seen.

Quantiles: values are counted in buckets whose bounds grow by a constant factor, so a quantile is wrong by a part of
itself (DDSketch, Masson, Rim and Lee, 2019). Distinct values: of a hash of each value, the longest run of leading zeros
in each of 4,096 shares (HyperLogLog, Flajolet, Fusy, Gandouet and Meunier, 2007).
"""

from __future__ import annotations

import math
import sys
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import ormsgpack

ACCURACY: Final = 0.01
"""By how much of itself a quantile may be wrong."""
_GROWTH: Final = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_GROWTH: Final = math.log(_GROWTH)
_LOG_LARGEST: Final = math.log(sys.float_info.max)
_BEYOND: Final = 1 << 20
"""The bucket of infinity; no finite value comes near it."""

_SHARE_BITS: Final = 12
_SHARES: Final = 1 << _SHARE_BITS
_EXACT_MAX: Final = 256
"""So many different values are kept as hashes, and counted exactly."""

Buckets = dict[int, int]
Quantiles = list[Any]
"""Buckets of what is below zero by its size, the number of zeros, buckets of what is above."""
Distinct = dict[int, None] | bytearray
"""Hashes, or the longest run of each share."""


def no_quantiles() -> Quantiles:
    """Of no values."""
    return [{}, 0, {}]


def take_number(state: Quantiles, value: float) -> Quantiles:
    """One more value; NaN is none."""
    if math.isnan(value):
        return state
    if value == 0:
        state[1] += 1
        return state
    size = abs(value)
    bucket = _BEYOND if math.isinf(size) else math.ceil(math.log(size) / _LOG_GROWTH)
    buckets: Buckets = state[2 if value > 0 else 0]
    buckets[bucket] = buckets.get(bucket, 0) + 1
    return state


def add_quantiles(state: Quantiles, other: Quantiles) -> Quantiles:
    """All values of both."""
    for side in (0, 2):
        for bucket, count in other[side].items():
            state[side][bucket] = state[side].get(bucket, 0) + count
    state[1] += other[1]
    return state


def copy_quantiles(state: Quantiles) -> Quantiles:
    """One that changes apart from this."""
    return [dict(state[0]), state[1], dict(state[2])]


def quantile_of(state: Quantiles, share: float) -> float | None:
    """The value that ``share`` of the others are not above; None of no values."""
    below, zeros, above = state
    total = sum(below.values()) + zeros + sum(above.values())
    if not total:
        return None
    left = share * (total - 1)
    for bucket in sorted(below, reverse=True):
        left -= below[bucket]
        if left < 0:
            return -_middle(bucket)
    left -= zeros
    if left < 0:
        return 0.0
    for bucket in sorted(above):
        left -= above[bucket]
        if left < 0:
            return _middle(bucket)
    return _middle(max(above)) if above else 0.0


def _middle(bucket: int) -> float:
    if bucket == _BEYOND:
        return math.inf
    return 2 / (1 + _GROWTH) * math.exp(min(bucket * _LOG_GROWTH, _LOG_LARGEST))


def take_value(state: Any, value: Any) -> Distinct:
    """One more value of a column."""
    if isinstance(value, float):
        value = math.nan if math.isnan(value) else value + 0.0  # minus zero is zero
    digest = blake2b(ormsgpack.packb(value), digest_size=8).digest()
    return _take_hash(_open(state), int.from_bytes(digest, "big"))


def _open(state: dict[int, None] | bytes | bytearray) -> Distinct:
    return bytearray(state) if isinstance(state, bytes) else state


def _take_hash(state: Distinct, hashed: int) -> Distinct:
    if isinstance(state, dict):
        state[hashed] = None
        if len(state) <= _EXACT_MAX:
            return state
        runs = bytearray(_SHARES)
        for one in state:
            _mark(runs, one)
        return runs
    _mark(state, hashed)
    return state


def _mark(runs: bytearray, hashed: int) -> None:
    share, rest = hashed >> (64 - _SHARE_BITS), hashed & ((1 << (64 - _SHARE_BITS)) - 1)
    run = 64 - _SHARE_BITS - rest.bit_length() + 1
    runs[share] = max(runs[share], run)


def add_distinct(state: Any, other: Any) -> Distinct:
    """The values of both."""
    if isinstance(other, dict):
        added = _open(state)
        for hashed in other:
            added = _take_hash(added, hashed)
        return added
    if isinstance(state, dict):
        return add_distinct(bytearray(other), state)
    return bytearray(np.maximum(np.frombuffer(state, np.uint8), np.frombuffer(other, np.uint8)).tobytes())


def copy_distinct(state: Any) -> Distinct:
    """One that changes apart from this."""
    return bytearray(state) if isinstance(state, (bytes, bytearray)) else dict(state)


def distinct_of(state: Any) -> int:
    """About how many different values."""
    if isinstance(state, dict):
        return len(state)
    runs = np.frombuffer(state, np.uint8)
    estimate = 0.7213 / (1 + 1.079 / _SHARES) * _SHARES**2 / float(np.exp2(-runs.astype(np.float64)).sum())
    empty = int((runs == 0).sum())
    if estimate <= 2.5 * _SHARES and empty:
        estimate = _SHARES * math.log(_SHARES / empty)
    return round(estimate)
