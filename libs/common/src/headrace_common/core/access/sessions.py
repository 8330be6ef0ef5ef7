"""
Sessions: what who has logged in with a password shows at all nodes, ``hrs_`` and a JWT (EdDSA).

The node that saw the login signs it, with a key that is its own for as long as it runs; the public half is in its
registration, so every node verifies by what it has. Another node could sign too what nobody has proven to it: so a
session is *vouched*, and carries no right to change who may what (``Caller.vouched``).
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from headrace_common.core.access.key_sets import TOKEN_CHARS_MAX, HasSigned, Kind, PublicKey, sign_compact
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.signatures import Signatures
from headrace_common.core.access.tokens import VERIFIED_MAX, split_token
from headrace_common.core.access.users import User
from headrace_common.core.errors import CredentialsExpired, CredentialsRevoked, Rejected, Unauthenticated
from headrace_common.core.image import ClusterImage, NodeKey, Role
from headrace_common.core.moments import iso_of
from headrace_common.core.node_rules import node_key_of

SESSION_PREFIX: Final = "hrs_"
LIFETIME_MS: Final = 3_600_000
YOUNG_MS: Final = 3_000
"""A session may reach a node so long before the node has the newest image."""
SESSION_KEY_BYTES: Final = 32
ALGORITHM: Final = "Ed25519"
"""EdDSA, by its newer name (RFC 9864)."""
TYPE: Final = "headrace-session+jwt"
ISSUER: Final = "headrace"
SIGNERS: Final = frozenset({Role.BROKER, Role.ADMIN})
"""Whom users log in at."""
_KIND: Final = Kind("OKP", "Ed25519")
_AGAIN: Final = "log in again"


@dataclass(frozen=True, slots=True)
class Signers:
    """Which nodes of which cluster sign sessions, and their public keys."""

    cluster_id: str = ""
    keys: Mapping[NodeKey, bytes] = field(default_factory=lambda: MappingProxyType({}))


def signers_of(image: ClusterImage) -> Signers:
    """Those that are registered."""
    keys = {key: node.session_key for key, node in image.nodes.items() if node.session_key and key.role in SIGNERS}
    return Signers(image.cluster_id, keys)


@dataclass(frozen=True, slots=True)
class Session:
    """What a session's text has proven."""

    principal: Principal
    user_id: str
    password_id: str
    node: NodeKey
    """Who signed it."""
    key: bytes
    """With what."""
    expires_ms: int
    """Unix time from which on it is refused."""

    def end_ms(self, users: Mapping[str, User]) -> float:
        """Unix time from which on it is over, as things are: its password may have been changed."""
        user = users.get(self.principal.name)
        return 0 if user is None or user.id != self.user_id else min(self.expires_ms, user.end_of(self.password_id))

    def check(self, users: Mapping[str, User], signers: Signers, now_ms: float) -> None:
        """
        Look whether it still holds, without its signature.

        Raises:
            CredentialsRevoked: its user was removed, or the password changed, or its node left or started anew.
            CredentialsExpired: it is over.
        """
        if signers.keys.get(self.node) != self.key:
            raise CredentialsRevoked(
                f"the session was begun at {self.node}, which has left the cluster or started anew since; {_AGAIN}"
            )
        user = users.get(self.principal.name)
        if user is None or user.id != self.user_id:
            raise CredentialsRevoked(f"{self.principal} has no password any more")
        if now_ms >= user.end_of(self.password_id):
            raise CredentialsRevoked(f"the password of {self.principal} was changed; log in with the new one")
        if now_ms >= self.expires_ms:
            raise CredentialsExpired(f"the session was good until {iso_of(self.expires_ms)}; {_AGAIN}")


class VerifiedSessions:
    """Verifies sessions, and remembers those that were good by the SHA-256 of their text. One event loop."""

    def __init__(self, signatures: Signatures | None = None) -> None:
        self._signatures = signatures or Signatures()
        self._sessions: dict[bytes, Session] = {}

    def verify(self, bearer: str, users: Mapping[str, User], signers: Signers, now_ms: float) -> Session:
        """
        As ``verify``, and for one that is known what may have changed of it alone.

        Raises:
            Overloaded: see ``Signatures``.
        """
        digest = hashlib.sha256(bearer.encode(errors="replace")).digest()
        session = self._sessions.get(digest)
        if session is None:
            session = verify(bearer, signers, lambda key, text, by: self._signatures.has_signed(key, text, by, now_ms))
            if len(self._sessions) >= VERIFIED_MAX:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[digest] = session
        session.check(users, signers, now_ms)
        return session


def session_header(node: NodeKey, epoch: int) -> dict[str, Any]:
    """Of a session that ``node`` signs."""
    return {"alg": ALGORITHM, "typ": TYPE, "kid": f"{node}/{epoch}"}


def session_claims(cluster_id: str, user: User, password_id: str, now_ms: float) -> dict[str, Any]:
    """Of a session that ``user`` begins now. It ends when the password does that it was begun with."""
    expires_ms = min(now_ms + LIFETIME_MS, user.end_of(password_id))
    return {
        "iss": ISSUER,
        "aud": cluster_id,
        "sub": user.name,
        "user": user.id,
        "password": password_id,
        "iat": int(now_ms) // 1_000,
        "exp": int(expires_ms) // 1_000,
    }


def sign_session(private: Any, header: dict[str, Any], claims: dict[str, Any]) -> str:
    """What a user shows, signed with the private half of a node's key."""
    return SESSION_PREFIX + sign_compact(private, header, json.dumps(claims, separators=(",", ":")).encode())


def verify(bearer: str, signers: Signers, has_signed: HasSigned = PublicKey.has_signed) -> Session:
    """
    What ``bearer`` says, if a node of this cluster has signed it; about 0.1 ms. Whether it still holds is ``check``.

    Raises:
        Unauthenticated: nobody has.
        CredentialsRevoked: it is of a node that has left, or has another key now.
    """
    assert bearer.startswith(SESSION_PREFIX), "who asks has looked"
    if len(bearer) > TOKEN_CHARS_MAX:
        raise Unauthenticated(f"the session has {len(bearer)} characters; {TOKEN_CHARS_MAX} is the most")
    token = bearer.removeprefix(SESSION_PREFIX)
    header, claims = split_token(token)
    if (header.get("alg"), header.get("typ")) != (ALGORITHM, TYPE) or claims.get("aud") != signers.cluster_id:
        raise Unauthenticated("this is no session of this cluster")
    node = _node(header)
    key = signers.keys.get(node)
    if key is None or not has_signed(public_key(key), token, ALGORITHM):
        raise CredentialsRevoked(
            f"the session is not signed by {node} as that is now: it has left the cluster, or started anew; {_AGAIN}"
        )
    try:
        principal = Principal(PrincipalType.USER, claims["sub"])
        return Session(principal, str(claims["user"]), str(claims["password"]), node, key, int(claims["exp"]) * 1_000)
    except (Rejected, KeyError, TypeError, ValueError):
        raise Unauthenticated(f"the session is signed by {node}, and says nothing that is understood") from None


def is_young(bearer: str, now_ms: float) -> bool:
    """Whether a session, as it says itself, was just begun: other nodes may not know all yet that it is verified by."""
    begun = split_token(bearer.removeprefix(SESSION_PREFIX)).claims.get("iat")
    return isinstance(begun, int) and now_ms - begun * 1_000 < YOUNG_MS


def public_key(raw: bytes) -> PublicKey:
    """A node's, from its registration."""
    return PublicKey(_KIND, (urlsafe_b64encode(raw).decode().rstrip("="),))


def _node(header: dict[str, Any]) -> NodeKey:
    named = header.get("kid")
    try:
        return node_key_of(named.partition("/")[0] if isinstance(named, str) else "")
    except Rejected:
        raise Unauthenticated("the session names no node that has signed it") from None
