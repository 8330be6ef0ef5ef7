"""
Who shows a token (JWT) of a configured issuer: everything that must hold of it before its caller is believed.

What costs nothing is looked at first, the signature then, and what the token says of its caller last.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace_common.core.access.issuers import Issuer, IssuerKeys, IssuerKind
from headrace_common.core.access.key_sets import TOKEN_CHARS_MAX, HasSigned, PublicKey
from headrace_common.core.access.names import WILDCARD
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.signatures import Signatures
from headrace_common.core.access.state import GROUPS_PER_CALLER_MAX
from headrace_common.core.errors import CredentialsExpired, CredentialsRevoked, Rejected, Unauthenticated
from headrace_common.core.moments import TIMESTAMP_MS_MAX, iso_of

START: Final = "eyJ"
"""Begins every token: an object of JSON, whose first name follows at once."""
VERIFIED_MAX: Final = 10_000
LEEWAY_MS: Final = 30_000
"""By how much the clocks of an issuer and of a node may differ."""
YOUNG_MS: Final = 60_000
"""For so long the controllers may take to have a new key: they ask an issuer every 30 s at most."""
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]+")
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Of tokens that say who calls; the same keys sign others too, such as the ends of sessions."""
_BINDING: Final = {
    "cnf": "it is only good together with a key, and calls show none",
    "events": "it tells of an event and not who calls",
}
_ACCOUNT: Final = re.compile(
    r"system:serviceaccount:([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?):([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)"
)
_SHOWN_CHARS_MAX: Final = 120


class UnknownKey(Unauthenticated):
    """A token that would be good is signed with a key that the issuer did not have when it was last asked."""

    def __init__(self, message: str = "", alias: str = "", made_ms: int | None = None) -> None:
        super().__init__(message)
        self.alias = alias
        """Of the issuer."""
        self._made_ms = made_ms

    def may_be_known_soon(self, now_ms: float) -> bool:
        """Whether the token says that it is so new that the issuer was perhaps not asked for its keys since."""
        return self._made_ms is not None and abs(now_ms - self._made_ms) < YOUNG_MS


@dataclass(frozen=True, slots=True)
class Identity:
    """What a token has proven."""

    principal: Principal
    groups: frozenset[Principal]
    expires_ms: int
    """Unix time from which on it is refused, the leeway included."""
    issuer: Issuer
    key: PublicKey
    """What it is signed with."""

    def check(self, issuers: Mapping[str, IssuerKeys], now_ms: float) -> None:
        """
        Look whether it still holds, without its signature.

        Raises:
            CredentialsExpired: it is over.
            CredentialsRevoked: the issuer is gone, or another one, or has taken back the key.
            Unauthenticated: the issuer's keys are too old.
        """
        alias = self.issuer.alias
        known = issuers.get(alias)
        if known is None or known.issuer != self.issuer:
            raise CredentialsRevoked(f"tokens of issuer {alias} are not taken any more as this one was")
        if self.key not in known.keys:
            raise CredentialsRevoked(f"issuer {alias} has taken back the key that this token is signed with")
        _check_fresh(known, now_ms)
        if now_ms >= self.expires_ms:
            raise _expired(self.expires_ms - LEEWAY_MS, now_ms)


class VerifiedTokens:
    """Verifies tokens, and remembers those that were good by the SHA-256 of their text. One event loop."""

    def __init__(self, signatures: Signatures | None = None) -> None:
        self._signatures = signatures or Signatures()
        self._identities: dict[bytes, Identity] = {}
        self.on_unknown_key: Callable[[str], None] = lambda _alias: None
        """Hears of each issuer of whose keys there may be new ones, for each such token."""

    def verify(self, token: str, issuers: Mapping[str, IssuerKeys], now_ms: float) -> Identity:
        """
        ``verify``, and for a token that is known what may have changed of it alone.

        Raises:
            Overloaded: see ``Signatures``.
        """
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        known = self._identities.get(digest)
        if known is not None:
            known.check(issuers, now_ms)
            return known
        self._signatures.check_room(token, now_ms)
        try:
            identity = verify(
                token, issuers, now_ms, lambda key, text, by: self._signatures.has_signed(key, text, by, now_ms)
            )
        except UnknownKey as unknown:
            self.on_unknown_key(unknown.alias)
            raise
        if len(self._identities) >= VERIFIED_MAX:
            del self._identities[next(iter(self._identities))]
        self._identities[digest] = identity
        return identity


def verify(
    token: str,
    issuers: Mapping[str, IssuerKeys],
    now_ms: float,
    has_signed: HasSigned = PublicKey.has_signed,
) -> Identity:
    """
    Who shows ``token``; about 0.1 ms.

    Args:
        issuers: by alias.
        now_ms: Unix time.
        has_signed: whether a key has signed the token by an algorithm; it is asked last.

    Raises:
        Unauthenticated: it is nobody's. The text says why, and both times where a clock may be wrong.
        UnknownKey: the same, and the issuer may have new keys.
        CredentialsExpired: it was good until some time ago.
    """
    parts = _parse(token)
    known = _find_issuer(parts.claims, issuers)
    issuer = known.issuer
    algorithm = _check_algorithm(parts.header, issuer)
    _check_fresh(known, now_ms)
    _check_audience(parts.claims, issuer)
    expires_ms = _check_times(parts.claims, now_ms)
    key = _find_key(parts, algorithm, known)
    if not has_signed(key, token, algorithm):
        raise Unauthenticated(f"the token's signature is not that of issuer {issuer.alias}")
    try:
        principal, groups = _principal(parts.claims, issuer), _groups(parts.claims, issuer)
    except Rejected as error:
        raise Unauthenticated(f"the token of issuer {issuer.alias} names nobody who can be: {error}") from None
    return Identity(principal, groups, expires_ms, issuer, key)


class Parts(NamedTuple):
    """What a token says, whoever signed it."""

    header: dict[str, Any]
    claims: dict[str, Any]


def split_token(token: str) -> Parts:
    """
    The two objects of a token in compact form.

    Raises:
        Unauthenticated: it is none.
    """
    segments = token.split(".")
    if len(segments) != 3 or not all(map(_SEGMENT.fullmatch, segments)):
        raise Unauthenticated("this is no signed token: it has three parts between dots, in base64url")
    return Parts(_object(segments[0], "header"), _object(segments[1], "body"))


def _parse(token: str) -> Parts:
    if len(token) > TOKEN_CHARS_MAX:
        raise Unauthenticated(f"the token has {len(token)} characters; {TOKEN_CHARS_MAX} is the most")
    header, claims = split_token(token)
    type = header.get("typ")
    if type is not None and not (isinstance(type, str) and type.lower() in _TYPES):
        raise Unauthenticated(f"the token is of type {_shown(type)}, which says nothing of who calls")
    if "crit" in header or "b64" in header:
        raise Unauthenticated("the token's header asks for an extension (crit, b64); none is known")
    for claim, why in _BINDING.items():
        if claim in claims:
            raise Unauthenticated(f"the token has the claim {claim}: {why}")
    return Parts(header, claims)


def _object(segment: str, what: str) -> dict[str, Any]:
    try:
        raw = urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
        found = json.loads(raw, parse_constant=_refuse, object_pairs_hook=_without_twice)
    except (ValueError, RecursionError):
        raise Unauthenticated(f"the token's {what} is no JSON that is taken") from None
    if not isinstance(found, dict):
        raise Unauthenticated(f"the token's {what} is no object")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _without_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _find_issuer(claims: dict[str, Any], issuers: Mapping[str, IssuerKeys]) -> IssuerKeys:
    iss = claims.get("iss")
    for known in issuers.values():
        if known.issuer.iss == iss:
            return known
    raise Unauthenticated(f"the token is of issuer {_shown(iss)}, which is none of this cluster's")


def _check_algorithm(header: dict[str, Any], issuer: Issuer) -> str:
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
        taken = ", ".join(sorted(issuer.algorithms))
        raise Unauthenticated(f"the token is signed by {_shown(algorithm)}; of issuer {issuer.alias} are taken {taken}")
    return algorithm


def _check_fresh(known: IssuerKeys, now_ms: float) -> None:
    if known.is_stale(now_ms):
        raise Unauthenticated(
            f"the keys of issuer {known.issuer.alias} were last seen at {iso_of(known.confirmed_ms)}, and it is "
            f"{_time(now_ms)}: they are too old. The controllers' logs say why they cannot be read"
        )


def _check_audience(claims: dict[str, Any], issuer: Issuer) -> None:
    found = claims.get("aud")
    audiences = [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, str)]
    if issuer.audiences.isdisjoint(audiences):
        ours, theirs = " or ".join(sorted(issuer.audiences)), _shown(" or ".join(audiences) or None)
        raise Unauthenticated(f"the token is for {theirs}; one of issuer {issuer.alias} has to be for {ours}")


def _check_times(claims: dict[str, Any], now_ms: float) -> int:
    expires_ms = _moment(claims, "exp")
    if expires_ms is None:
        raise Unauthenticated("the token has no end (exp), and such are not taken")
    if now_ms >= expires_ms + LEEWAY_MS:
        raise _expired(expires_ms, now_ms)
    for claim, said in (("nbf", "is good from"), ("iat", "was made at")):
        moment_ms = _moment(claims, claim)
        if moment_ms is not None and now_ms < moment_ms - LEEWAY_MS:
            raise Unauthenticated(
                f"the token {said} {iso_of(moment_ms)} ({claim}), and here it is {_time(now_ms)}; "
                "one of the two clocks is wrong if that lies ahead"
            )
    return expires_ms + LEEWAY_MS


def _moment(claims: dict[str, Any], claim: str) -> int | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= TIMESTAMP_MS_MAX // 1_000:
        raise Unauthenticated(f"the token's {claim} is no time between 1970 and 9999, in seconds")
    return int(value * 1_000)


def _expired(moment_ms: int, now_ms: float) -> CredentialsExpired:
    return CredentialsExpired(
        f"the token was good until {iso_of(moment_ms)} (exp), and here it is {_time(now_ms)}; get a new one, and if "
        "this one is new, one of the two clocks is wrong"
    )


def _find_key(parts: Parts, algorithm: str, known: IssuerKeys) -> PublicKey:
    """The one that the token names, or the only one that fits; a name is compared and nothing else."""
    id, alias = parts.header.get("kid"), known.issuer.alias
    keys = [key for key in known.keys if key.fits(algorithm) and (id is None or key.id == id)]
    if len(keys) == 1:
        return keys[0]
    if id is None:
        raise Unauthenticated(f"the token names no key (kid), and issuer {alias} has {len(keys)} for {algorithm}")
    seen = iso_of(known.confirmed_ms)
    said = (
        f"the token is signed with key {_shown(id)}; issuer {alias} has {len(keys)} of that name for {algorithm} among "
        f"those that the controllers know, last seen at {seen}"
    )
    if keys:
        raise Unauthenticated(said)
    raise UnknownKey(
        f"{said}. They ask it for new ones now, at most every 30 s: try again soon", alias, _moment(parts.claims, "iat")
    )


def _principal(claims: dict[str, Any], issuer: Issuer) -> Principal:
    subject = claims.get(issuer.principal_claim)
    if not isinstance(subject, str) or not subject or subject == WILDCARD:
        raise Rejected(f"its claim {issuer.principal_claim} is {_shown(subject)}")
    if issuer.kind is IssuerKind.OIDC:
        return Principal(PrincipalType.OIDC, f"{issuer.alias}/{subject}")
    account = _ACCOUNT.fullmatch(subject)
    if account is None:
        raise Rejected(f"its claim sub is {_shown(subject)}, and no account of a pod")
    return Principal(PrincipalType.SERVICE_ACCOUNT, f"{account[1]}/{account[2]}")


def _groups(claims: dict[str, Any], issuer: Issuer) -> frozenset[Principal]:
    found = None if issuer.groups_claim is None else claims.get(issuer.groups_claim)
    names = found if isinstance(found, list) else [] if found is None else [found]
    if len(names) > GROUPS_PER_CALLER_MAX:
        raise Rejected(f"it has {len(names)} groups; {GROUPS_PER_CALLER_MAX} is the most")
    if any(not isinstance(name, str) or name in {"", WILDCARD} for name in names):
        raise Rejected(f"its claim {issuer.groups_claim} has something that is the name of no group")
    return frozenset(Principal(PrincipalType.GROUP, f"{issuer.groups_prefix}{name}") for name in names)


def _time(now_ms: float) -> str:
    return iso_of(int(now_ms))


def _shown(value: object) -> str:
    """What a token says, in an error: short, on one line."""
    if value is None:
        return "none"
    return ascii(value)[:_SHOWN_CHARS_MAX] if isinstance(value, (str, int, float)) else "a list or an object"
