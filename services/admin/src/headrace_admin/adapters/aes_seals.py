"""
The ``Seals`` port by AES-256-GCM, under keys made of the secrets of a file, or of one that dies with this process.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

from headrace_admin.ports import Opened
from headrace_common.runtime.entropy import new_secret

if TYPE_CHECKING:  # it takes 20 ms, and most processes never seal anything
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_PURPOSE: Final = b"headrace browser session 1"
"""The file may be for something else too."""


class AesSeals:
    """One event loop. Processes with the same secrets open what any of them has sealed."""

    def __init__(self, secrets: Callable[[], tuple[bytes, ...]]) -> None:
        """
        Args:
            secrets: as they are now, nobody can guess them. The first one seals, all of them open.
        """
        self._secrets = secrets
        self._made_of: tuple[bytes, ...] = ()
        self._ciphers: list[AESGCM] = []

    @staticmethod
    def of_this_process() -> AesSeals:
        """Nobody else opens what these seal, and nobody after the process ends."""
        return AesSeals(cache(lambda: (new_secret(SECRET_BYTES),)))

    def seal(self, text: str) -> str:
        nonce = new_secret(_NONCE_BYTES)
        sealed = nonce + self._present()[0].encrypt(nonce, text.encode(), _PURPOSE)
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def open(self, sealed: str) -> Opened | None:
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        for number, cipher in enumerate(self._present()):
            try:
                text = cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _PURPOSE).decode()
                return Opened(text, number > 0)
            except (InvalidTag, ValueError):  # the latter: it is too short
                continue
        return None

    def _present(self) -> list[AESGCM]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        secrets = self._secrets()
        if secrets != self._made_of:
            self._made_of = secrets
            self._ciphers = [AESGCM(hmac.digest(secret, _PURPOSE, "sha256")) for secret in secrets]
        return self._ciphers
