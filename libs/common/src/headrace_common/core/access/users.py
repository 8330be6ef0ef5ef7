"""
Users with passwords: what is kept of each, as the row ``users/NAME``. Their principals are ``User:NAME``.

Nothing that logs in is kept, but verifiers of SCRAM. Each user and each password has an id, so what was proven for one
of before counts nothing for one of the same name.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.scram import MECHANISMS, Verifier
from headrace_common.core.errors import Rejected

USERS_MAX: Final = 10_000
GRACE_MS_MAX: Final = 7 * 86_400_000
SALTING_BYTES: Final = 32
_ID: Final = re.compile(r"[0-9a-f]{16,32}")


@dataclass(frozen=True, slots=True)
class Password:
    """What is kept of a password."""

    id: str
    set_ms: int
    """Unix time."""
    verifiers: tuple[Verifier, ...]
    """One of each mechanism, by its name."""

    def __post_init__(self) -> None:
        if _ID.fullmatch(self.id) is None:
            raise Rejected(f"{self.id[:80]!r} is no id of a password")
        if [one.mechanism for one in self.verifiers] != sorted(MECHANISMS):
            raise Rejected(f"a password has one verifier of each mechanism: {', '.join(sorted(MECHANISMS))}")

    def has_salts_of(self, other: Password) -> bool:
        """Whether who logs in with either is asked the same."""
        return [(one.salt, one.iterations) for one in self.verifiers] == [
            (one.salt, one.iterations) for one in other.verifiers
        ]


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who logs in. Making one that cannot be raises ``Rejected``."""

    name: str
    id: str
    created_ms: int
    """Unix time."""
    password: Password
    old: Password | None = None
    """That of before, while it counts."""
    old_until_ms: int = 0
    """Unix time from which on it does not."""

    def __post_init__(self) -> None:
        principal = Principal(PrincipalType.USER, self.name)
        if principal == ANONYMOUS:
            raise Rejected(f"{principal} is who has shown nothing; choose another name")
        if _ID.fullmatch(self.id) is None:
            raise Rejected(f"{self.id[:80]!r} is no id of a user")
        if self.old is not None and not self.password.has_salts_of(self.old):
            raise Rejected("two passwords that count at the same time have the same salts")

    @property
    def principal(self) -> Principal:
        return Principal(PrincipalType.USER, self.name)

    def passwords(self, now_ms: float) -> tuple[Password, ...]:
        """Those that count."""
        if self.old is None or now_ms >= self.old_until_ms:
            return (self.password,)
        return self.password, self.old

    def end_of(self, password_id: str) -> float:
        """Unix time from which on this password does not count: 0 if it does not any more."""
        if password_id == self.password.id:
            return float("inf")
        return self.old_until_ms if self.old is not None and password_id == self.old.id else 0


def make_password(id: str, set_ms: int, verifiers: Sequence[Verifier]) -> Password:
    """One of these, in any order. Raises: Rejected: there is not one of each mechanism."""
    return Password(id, set_ms, tuple(sorted(verifiers, key=lambda one: one.mechanism)))


def user_fields(user: User) -> dict[str, Any]:
    """Of its row; without the name, which says where that is."""
    old = None if user.old is None else {**_password_fields(user.old), "until_ms": user.old_until_ms}
    return {"id": user.id, "created_ms": user.created_ms, "password": _password_fields(user.password), "old": old}


def read_user(name: str, fields: dict[str, Any]) -> User:
    """
    The inverse of ``user_fields``.

    Raises:
        Rejected, KeyError, TypeError, ValueError: it is not of the form.
    """
    old = fields["old"]
    return User(
        name,
        fields["id"],
        fields["created_ms"],
        _password(fields["password"]),
        None if old is None else _password(old),
        0 if old is None else old["until_ms"],
    )


def _password_fields(password: Password) -> dict[str, Any]:
    return {
        "id": password.id,
        "set_ms": password.set_ms,
        "scram": {
            one.mechanism: {
                "salt": _text(one.salt),
                "iterations": one.iterations,
                "stored_key": _text(one.stored_key),
                "server_key": _text(one.server_key),
            }
            for one in password.verifiers
        },
    }


def _password(fields: dict[str, Any]) -> Password:
    verifiers = [
        Verifier(
            mechanism,
            _bytes(kept["salt"]),
            kept["iterations"],
            _bytes(kept["stored_key"]),
            _bytes(kept["server_key"]),
        )
        for mechanism, kept in fields["scram"].items()
    ]
    return make_password(fields["id"], fields["set_ms"], verifiers)


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
