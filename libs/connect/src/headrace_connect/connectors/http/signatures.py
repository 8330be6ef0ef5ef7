"""Whether a request is from somebody who knows the secret: HMACs of bodies, and plain tokens; in constant time."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Literal

Form = Literal["hub", "hex", "base64", "token"]
Algorithm = Literal["sha256", "sha512", "sha1"]


class Verifier:
    """Of one web hook."""

    def __init__(self, form: Form, algorithm: Algorithm, secrets: Sequence[str]) -> None:
        """``secrets``: any of them will do."""
        self._form = form
        self._algorithm = algorithm
        self._secrets = [secret.encode() for secret in secrets]

    @property
    def needs_body(self) -> bool:
        """Whether it can only be told when the body is there."""
        return self._form != "token"

    def accepts(self, value: str | None, body: bytes = b"") -> bool:
        """Whether a header with this value proves it."""
        if value is None:
            return False
        if self._form == "token":
            given: bytes | None = value.encode(errors="replace")
            wanted = self._secrets
        else:
            given = self._digest_in(value.strip())
            wanted = [hmac.digest(secret, body, self._algorithm) for secret in self._secrets]
        if given is None:
            return False
        return sum(hmac.compare_digest(given, one) for one in wanted) > 0  # all, so that it always takes as long

    def _digest_in(self, value: str) -> bytes | None:
        """None: it has not the form of one."""
        if self._form == "hub":
            name, separator, value = value.partition("=")
            if name != self._algorithm or not separator:
                return None
        try:
            return base64.b64decode(value, validate=True) if self._form == "base64" else bytes.fromhex(value)
        except (binascii.Error, ValueError):
            return None
