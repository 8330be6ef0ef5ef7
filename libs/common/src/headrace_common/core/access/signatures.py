"""
Looks at the signatures of what callers show, so that wrong ones, which anybody may send, take a bounded part of a core.
"""

from __future__ import annotations

import hashlib
from typing import Final

from headrace_common.core.access.key_sets import PublicKey
from headrace_common.core.errors import Overloaded

WRONG_MAX: Final = 10_000
"""Wrong ones that are remembered."""
WRONG_PER_S_MAX: Final = 500
"""Signatures that turn out wrong, of all callers of a process: each costs what a right one does. They take 8 % of a
core."""


class Signatures:
    """Of one process, on one event loop. A token that is wrong is remembered by its SHA-256, with the key."""

    def __init__(self) -> None:
        self._wrong: dict[bytes, PublicKey] = {}
        self._room = float(WRONG_PER_S_MAX)
        """For wrong ones; it fills up with time."""
        self._room_ms = 0.0

    def has_signed(self, key: PublicKey, token: str, algorithm: str, now_ms: float) -> bool:
        """
        See ``PublicKey.has_signed``.

        Raises:
            Overloaded: so many wrong ones came that nothing new is looked at for a moment.
        """
        digest = _digest(token)
        if self._wrong.get(digest) == key:
            return False
        self._check_room(now_ms)
        good = key.has_signed(token, algorithm)
        if not good:
            self._room -= 1
            if len(self._wrong) >= WRONG_MAX:
                del self._wrong[next(iter(self._wrong))]
            self._wrong[digest] = key
        return good

    def check_room(self, token: str, now_ms: float) -> None:
        """
        To be asked before anything is read of a token that nobody knows: that costs a fifth of a signature.

        Raises:
            Overloaded: as ``has_signed``.
        """
        if _digest(token) not in self._wrong:
            self._check_room(now_ms)

    def _check_room(self, now_ms: float) -> None:
        self._room = min(WRONG_PER_S_MAX, self._room + max(0.0, now_ms - self._room_ms) * WRONG_PER_S_MAX / 1_000)
        self._room_ms = now_ms
        if self._room < 1:
            raise Overloaded("too many wrong tokens come to this node, so it looks at no new one; try again soon")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
