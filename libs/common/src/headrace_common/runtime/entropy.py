"""The only user of chance: ids that must be unique, and jitter that keeps retries from marching in step."""

from __future__ import annotations

import uuid

from headrace_common.core.access.api_keys import ID_BYTES, SECRET_BYTES, format_key
from headrace_common.core.ids import TopicId
from headrace_common.runtime.machine import MACHINE


def new_incarnation() -> bytes:
    """16 random bytes that name one start of one process."""
    return MACHINE.get().random_bytes(16)


def new_topic_id() -> TopicId:
    """16 random bytes that no other topic has; never all zero."""
    drawn = MACHINE.get().random_bytes(16)
    return TopicId(bytes([drawn[0] | 1]) + drawn[1:])


def new_uuid() -> str:
    """A UUID of version 4, as text."""
    return str(uuid.UUID(bytes=MACHINE.get().random_bytes(16), version=4))


def new_seed() -> int:
    """128 random bits, for hashes of what others choose."""
    return int.from_bytes(MACHINE.get().random_bytes(16), "little")


def new_api_key() -> str:
    """The text of an API key that nobody can guess."""
    machine = MACHINE.get()
    return format_key(machine.random_bytes(ID_BYTES), machine.random_bytes(SECRET_BYTES))


def new_secret(bytes_count: int) -> bytes:
    """A key for nodes alone; nobody can guess it."""
    return MACHINE.get().random_bytes(bytes_count)


def new_nonce() -> str:
    """What tells a login from all others, and nobody can guess."""
    return MACHINE.get().random_bytes(24).hex()


def new_id() -> str:
    """64 random bits, as text: of something that there may be again under its name."""
    return MACHINE.get().random_bytes(8).hex()


def jitter(ms: float, *, ratio: float = 0.2) -> float:
    """``ms`` changed by at most ``ratio`` of it, up or down, evenly."""
    assert 0 <= ratio <= 1, "a wait cannot become negative"
    return ms * (1 + ratio * (2 * MACHINE.get().random() - 1))


def backoff_ms(attempt: int, *, first_ms: float = 100, ms_max: float = 1_000) -> float:
    """How long to wait before try number ``attempt`` (1 is the first repetition): doubling, bounded, with jitter."""
    assert attempt >= 1, "the first try does not wait"
    return jitter(min(ms_max, first_ms * 2.0 ** min(attempt - 1, 30)))
