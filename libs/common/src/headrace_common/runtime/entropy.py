"""The only place for chance: ids that must be unique, and jitter that keeps retries from marching in step."""

from __future__ import annotations

import os
import random

from headrace_common.core.ids import TopicId


def new_incarnation() -> bytes:
    """16 random bytes that name one start of one process."""
    return os.urandom(16)


def new_topic_id() -> TopicId:
    """16 random bytes that no other topic has; never all zero."""
    return TopicId(bytes([os.urandom(1)[0] | 1]) + os.urandom(15))


def new_seed() -> int:
    """128 random bits, for hashes of what others choose."""
    return int.from_bytes(os.urandom(16), "little")


def jitter(ms: float, *, ratio: float = 0.2) -> float:
    """``ms`` changed by at most ``ratio`` of it, up or down, evenly."""
    assert 0 <= ratio <= 1, "a wait cannot become negative"
    return ms * (1 + ratio * (2 * random.random() - 1))


def backoff_ms(attempt: int, *, first_ms: float = 100, ms_max: float = 1_000) -> float:
    """How long to wait before try number ``attempt`` (1 is the first repetition): doubling, bounded, with jitter."""
    assert attempt >= 1, "the first try does not wait"
    return jitter(min(ms_max, first_ms * 2.0 ** min(attempt - 1, 30)))
