"""
The key with which this process signs what it has seen: sessions of users, and seals of its audit.

It is made when it is first needed, lives in memory, and dies with the process; its public half is in the node's
registration.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace_common.core.access.sessions import SESSION_KEY_BYTES, sign_session
from headrace_common.runtime.machine import MACHINE


class SessionKey:
    """Made by ``make_session_key``."""

    def __init__(self, private: Any) -> None:
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()
        """32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """The signature, 64 bytes of Ed25519."""
        signature: bytes = self._private.sign(message)
        return signature

    def sign_session(self, header: dict[str, Any], claims: dict[str, Any]) -> str:
        """What a user shows; see ``core.access.sessions``."""
        return sign_session(self._private, header, claims)


def make_session_key() -> SessionKey:
    """
    A new one. The first time in a process it takes 0.2 s for what it imports, the libraries of a first login too: call
    it in a thread.
    """
    for library in ("joserfc.jws", "scramp"):
        import_module(library)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return SessionKey(Ed25519PrivateKey.from_private_bytes(MACHINE.get().random_bytes(SESSION_KEY_BYTES)))
