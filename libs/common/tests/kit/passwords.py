"""Users with passwords: what a cluster keeps of them, and clients that log in."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from headrace_common.core.access.scram import ITERATIONS_MIN, MECHANISMS, ClientExchange, Verifier, make_verifier
from headrace_common.core.access.users import User, make_password

SALT: Final = b"salt of twenty-four byte"
CORRECT: Final = "correct horse battery"


@lru_cache
def verifiers(password: str = CORRECT, salt: bytes = SALT) -> tuple[Verifier, ...]:
    """One of each mechanism; hashed as seldom as is taken, for tests have little time."""
    return tuple(make_verifier(mechanism, password, salt, ITERATIONS_MIN) for mechanism in MECHANISMS)


def make_user(name: str = "alice", password: str = CORRECT, *, user_id: str = "a" * 16, id: str = "1" * 16) -> User:
    """One, whose password was just set."""
    return User(name, user_id, 5, make_password(id, 5, verifiers(password)))


def client(user: str = "alice", password: str = CORRECT, mechanism: str = "SCRAM-SHA-256") -> ClientExchange:
    return ClientExchange(mechanism, user, password, "nonceofclient")
