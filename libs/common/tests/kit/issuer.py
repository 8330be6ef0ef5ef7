"""An issuer of a test: it signs what it is given, good tokens and others."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from headrace_common.core.access.issuers import Issuer, IssuerKeys, IssuerKind
from headrace_common.core.access.key_sets import ALGORITHMS, read_key_set

NOW_MS: Final = 1_790_000_000_000
"""2026-09-21T14:13:20Z."""
NOW: Final = NOW_MS // 1_000
ISS: Final = "https://login.example.com"
AUDIENCE: Final = "headrace"
IDP_ISSUER: Final = Issuer("idp", ISS, frozenset({AUDIENCE}), groups_claim="groups")
Part: TypeAlias = "Mapping[str, Any] | str"
"""Of a token; a text as it is."""


@cache
def make_key(algorithm: str, name: str = "1") -> Key:
    """A pair for an algorithm, with the id ``ALGORITHM-NAME``; the same one each time."""
    kind, parameters = ALGORITHMS[algorithm], {"kid": f"{algorithm}-{name}"}
    if kind.kty == "RSA":
        return RSAKey.generate_key(2048, parameters)  # type: ignore[arg-type]
    made = ECKey if kind.kty == "EC" else OKPKey
    return made.generate_key(kind.crv, parameters)  # type: ignore[arg-type]


def jwk(key: Key, **more: Any) -> dict[str, Any]:
    """The public half; None takes something away."""
    fields = {**key.as_dict(private=False), **more}
    return {name: value for name, value in fields.items() if value is not None}


def key_set(*keys: Mapping[str, Any]) -> bytes:
    """As an issuer publishes it."""
    return json.dumps({"keys": keys}).encode()


def sign(algorithm: str, key: Key) -> Callable[[bytes], bytes]:
    """What signs by an algorithm that the key is for."""
    return lambda text: JWSRegistry.algorithms[algorithm].sign(text, key)


def segment(part: Part | bytes) -> str:
    raw = part if isinstance(part, bytes) else (part if isinstance(part, str) else json.dumps(part)).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def compact(header: Part, claims: Part, signer: Callable[[bytes], bytes]) -> str:
    """A token of these parts, whatever they are."""
    text = f"{segment(header)}.{segment(claims)}"
    return f"{text}.{segment(signer(text.encode()))}"


class SigningIssuer:
    """One that signs by RS256, with one key, until it is told otherwise."""

    def __init__(self, issuer: Issuer | None = None, algorithms: Iterable[str] = ("RS256",)) -> None:
        self.issuer = issuer or IDP_ISSUER
        self.keys = {algorithm: make_key(algorithm) for algorithm in algorithms}
        self.confirmed_ms = NOW_MS

    @property
    def known(self) -> IssuerKeys:
        """What a node has of it."""
        keys = read_key_set(key_set(*map(jwk, self.keys.values())))
        return IssuerKeys(self.issuer, keys, self.confirmed_ms)

    @property
    def all(self) -> dict[str, IssuerKeys]:
        """What a node has that knows this one alone."""
        return {self.issuer.alias: self.known}

    def claims(self, now_ms: int = NOW_MS, **others: Any) -> dict[str, Any]:
        """Of a good token of alice; None takes one away."""
        now, kubernetes = now_ms // 1_000, self.issuer.kind is IssuerKind.KUBERNETES
        found = {
            "iss": self.issuer.iss,
            "aud": min(self.issuer.audiences),
            "sub": "system:serviceaccount:shop:web" if kubernetes else "alice",
            "iat": now,
            "exp": now + 3_600,
            **others,
        }
        return {name: value for name, value in found.items() if value is not None}

    def token(
        self,
        *,
        header: Mapping[str, Any] | None = None,
        claims: Part | None = None,
        algorithm: str = "RS256",
        now_ms: int = NOW_MS,
        **others: Any,
    ) -> str:
        """Signed with its key for ``algorithm``; ``header``, and ``others`` among claims, add to a good one."""
        key = self.keys[algorithm]
        head = {"alg": algorithm, "kid": key.kid, "typ": "JWT", **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return compact(head, self.claims(now_ms, **others) if claims is None else claims, sign(algorithm, key))


def kubernetes_issuer(audience: str = "headrace:streams/main") -> Issuer:
    """The API server of a cluster."""
    return Issuer("kubernetes", "https://kubernetes.default.svc", frozenset({audience}), kind=IssuerKind.KUBERNETES)
