"""
Producer ids that belong to a principal: whoever has the key sees by the id alone whose it is, and nobody else can make
one. So leaders need no memory of it, and a leader that is new knows as much as the one before.

An id is bit 62, a tag of 30 bits, and the 32 low bits of the counter that the controllers keep. The tag is a keyed hash
(BLAKE2b) of the counter and the owner. Small numbers, which the counter gave out while the cluster was open and gives
to coordinators, belong to nobody: transactional ids have them, and their coordinators say whose these are.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

OWNED_BIT: Final = 1 << 62
SERIAL_BITS: Final = 32
"""The counter comes round after 4 billion ids. The same id is given out again only to the same owner."""
_SERIALS: Final = (1 << SERIAL_BITS) - 1
_TAG_BITS: Final = 62 - SERIAL_BITS
_TAG_BYTES: Final = 8


def owned_id(serial: int, owner: str, key: bytes) -> int:
    """The id that number ``serial`` of the counter becomes for this principal; ``key``: up to 64 bytes."""
    serial &= _SERIALS
    return OWNED_BIT | _tag(serial, owner, key) << SERIAL_BITS | serial


def is_owned_by(producer_id: int, owner: str, key: bytes) -> bool:
    """Whether it was made for this principal. Of the ids of others 1 in 2**30 passes, and nobody can choose which."""
    return bool(producer_id & OWNED_BIT) and producer_id == owned_id(producer_id, owner, key)


def serial_of(producer_id: int) -> int:
    """The number of the counter that an id was made of, as far as it has it."""
    return producer_id & _SERIALS if producer_id & OWNED_BIT else producer_id


def _tag(serial: int, owner: str, key: bytes) -> int:
    text = serial.to_bytes(_TAG_BYTES, "big") + owner.encode()
    digest = blake2b(text, digest_size=_TAG_BYTES, key=key, person=b"headrace-pid").digest()
    return int.from_bytes(digest, "big") >> 8 * _TAG_BYTES - _TAG_BITS
