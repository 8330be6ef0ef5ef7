"""The ids of the last requests, as they are kept in positions, so that a repeat is known after a restart too."""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_BYTES: Final = 8
SIZE_MAX: Final = 320
"""So many fit into a position: 4 KiB, as text."""


def digest_of(id_: str) -> bytes:
    """What is kept of an id: two have the same one in 1 of 2^64 cases."""
    return blake2b(id_.encode(errors="surrogateescape"), digest_size=_BYTES).digest()


class Window:
    """Digests of the last ``size`` ids, oldest first."""

    def __init__(self, size: int, digests: Iterable[bytes] = ()) -> None:
        self._size = size
        self._order: deque[bytes] = deque()
        self._known: set[bytes] = set()
        for digest in digests:
            self.add(digest)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def add(self, digest: bytes) -> None:
        """As the newest, if it is not known; the oldest is forgotten."""
        if digest in self._known or not self._size:
            return
        if len(self._order) == self._size:
            self._known.discard(self._order.popleft())
        self._order.append(digest)
        self._known.add(digest)

    def to_text(self) -> str:
        """As a position has it."""
        return base64.b64encode(b"".join(self._order)).decode()

    @classmethod
    def from_text(cls, size: int, text: str) -> Window:
        """
        Raises:
            ValueError: it is none.
        """
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"the ids are no base64: {error}") from None
        if len(data) % _BYTES:
            raise ValueError("an id is not whole")
        return cls(size, (data[start : start + _BYTES] for start in range(0, len(data), _BYTES)))
