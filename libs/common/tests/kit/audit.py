"""Starts of nodes with keys of their own, events, and the lines of whole journals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from headrace_common.core.access.grants import Effect as RuleEffect
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.audit.chain import Start
from headrace_common.core.audit.events import Actor, Decision, Event, Method, Resource
from headrace_common.core.audit.journal import Bounds, Effect, Journal, Write
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.audit.verification import Announced
from headrace_common.core.errors import ErrorCode
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role

NOW_MS: Final = 1_790_000_000_000
ALICE: Final = Actor("User:alice", Method.API_KEY, "0123456789ABCD")
BROKER: Final = NodeKey(Role.BROKER, NodeId(1))
ADMIN: Final = NodeKey(Role.ADMIN, NodeId(2))


def key_of(start: Start) -> Ed25519PrivateKey:
    """The session key of a start: always the same."""
    return Ed25519PrivateKey.from_private_bytes(str(start).encode().ljust(32, b".")[:32])


def public_key_of(start: Start) -> bytes:
    return key_of(start).public_key().public_bytes_raw()


@cache
def check(key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def announce(*starts: Start) -> Mapping[Start, Announced]:
    return {start: Announced(public_key_of(start), NOW_MS) for start in starts}


def event(kind: Kind = Kind.ADMINISTERED, name: str = "orders", time_ms: int = NOW_MS, actor: Actor = ALICE) -> Event:
    refused = kind is Kind.OPERATION_REFUSED
    return Event(
        kind,
        time_ms,
        actor,
        "10.0.0.1",
        "Controller/DeleteTopics",
        Operation.DELETE,
        Resource(ResourceType.TOPIC, name),
        Decision(RuleEffect.DENY if refused else RuleEffect.ALLOW, "allow DELETE TOPIC *"),
        ErrorCode.TOPIC_AUTHORIZATION_FAILED if refused else ErrorCode.NONE,
    )


def journal_of(start: Start, bounds: Bounds | None = None) -> Journal:
    return Journal(start, key_of(start).sign, bounds)


def lines_of(effects: Iterable[Effect]) -> list[bytes]:
    return [effect.line for effect in effects if isinstance(effect, Write)]


def announced(public_key: bytes) -> Announced:
    return Announced(public_key, NOW_MS)
