"""
API keys: ``hrk_ID_SECRET``, the credential of programs and of whoever logs in.

The secret is 256 random bits, so its SHA-256 is all that is kept: nobody finds it by trying, and a slow hash would only
cost us. A checksum tells a key that was cut or mistyped from one that is unknown, and finds keys in places where none
should be.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType
from zlib import crc32

from headrace_common.core.access.grants import Scope
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.errors import Rejected

KeyId = NewType("KeyId", str)

PREFIX: Final = "hrk_"
ID_BYTES: Final = 10
SECRET_BYTES: Final = 32
KEYS_MAX: Final = 100_000
KEYS_PER_OWNER_MAX: Final = 1_000
NOTE_CHARS_MAX: Final = 255
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_CHARS: Final = 14
_SECRET_CHARS: Final = 43
_CHECK_CHARS: Final = 6
_FORM: Final = re.compile(
    f"{PREFIX}(?P<id>[0-9A-Za-z]{{{_ID_CHARS}}})_(?P<secret>[0-9A-Za-z]{{{_SECRET_CHARS}}})"
    f"(?P<check>[0-9A-Za-z]{{{_CHECK_CHARS}}})"
)
_ID_FORM: Final = re.compile(f"[0-9A-Za-z]{{{_ID_CHARS}}}")
_OWNERS: Final = frozenset({PrincipalType.USER, PrincipalType.SERVICE_ACCOUNT, PrincipalType.OIDC, PrincipalType.CERT})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key. Making one that cannot be raises ``Rejected``."""

    id: KeyId
    owner: Principal
    """Who calls with it."""
    digest: bytes
    """SHA-256 of the secret."""
    created_ms: int
    """Unix time."""
    expires_ms: int | None = None
    """Unix time from which on it is over; None: never."""
    scope: Scope | None = None
    """What it may be used for at most; None: all that its owner may do."""
    note: str = ""
    """What for, in its owner's words."""
    login: str = ""
    """The id of the password with which its owner has logged in, and got it so: it goes with that. Empty: it was made
    as a key."""

    def __post_init__(self) -> None:
        if _ID_FORM.fullmatch(self.id) is None:
            raise Rejected(f"{self.id[:80]!r} is no id of a key")
        if self.owner.type not in _OWNERS:
            raise Rejected(f"{self.owner} has no keys; users and service accounts have")
        if len(self.digest) != hashlib.sha256().digest_size:
            raise Rejected("the digest of a key is its SHA-256, 32 bytes")
        if len(self.note) > NOTE_CHARS_MAX or not (self.note.isprintable() or not self.note):
            raise Rejected(f"the note of a key has at most {NOTE_CHARS_MAX} printable characters")
        if self.expires_ms is not None and self.expires_ms <= self.created_ms:
            raise Rejected("a key expires after it was made")

    def matches(self, secret: str) -> bool:
        """Whether the secret is this key's; the answer takes the same time for every wrong one."""
        return hmac.compare_digest(digest_of(secret), self.digest)

    def expired(self, now_ms: float) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


class Parts(NamedTuple):
    """What a key's text says."""

    id: KeyId
    secret: str


def digest_of(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def format_key(id_bytes: bytes, secret_bytes: bytes) -> str:
    """The text of a new key, from ``ID_BYTES`` and ``SECRET_BYTES`` random bytes; its owner sees it this once."""
    assert (len(id_bytes), len(secret_bytes)) == (ID_BYTES, SECRET_BYTES), "all of the randomness"
    body = f"{PREFIX}{_base62(id_bytes, _ID_CHARS)}_{_base62(secret_bytes, _SECRET_CHARS)}"
    return body + _check(body)


def parse_key(text: str) -> Parts:
    """
    The id and the secret of a key.

    Raises:
        Rejected: it is not of the form, or was cut or mistyped. The text is not in the error.
    """
    found = _FORM.fullmatch(text)
    if found is None or _check(text[:-_CHECK_CHARS]) != found["check"]:
        raise Rejected("this is no API key: it has been cut or mistyped; keys are like hrk_ID_SECRET")
    return Parts(KeyId(found["id"]), found["secret"])


def verifier_of(key: str) -> str:
    """
    ``ID SHA256HEX``: the line by which controllers know a key of the administrator, and by which nobody finds it.

    Raises:
        Rejected: as ``parse_key``.
    """
    id, secret = parse_key(key)
    return f"{id} {digest_of(secret).hex()}"


def _check(body: str) -> str:
    return _base62(crc32(body.encode()).to_bytes(4, "big"), _CHECK_CHARS)


def _base62(raw: bytes, chars: int) -> str:
    number, digits = int.from_bytes(raw, "big"), ""
    for _ in range(chars):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    assert number == 0, "the width holds the bytes"
    return digits
