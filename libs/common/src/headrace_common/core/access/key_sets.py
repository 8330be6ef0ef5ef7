"""
Public keys of issuers, as they publish them (JWKS, RFC 7517), and whether one of them has signed something.

Signatures are joserfc's. It is imported when the first key is used: that takes 0.1 s, and most processes meet none.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from headrace_common.core.errors import Rejected

if TYPE_CHECKING:
    from joserfc.jwk import Key
    from joserfc.jws import JWSRegistry

TOKEN_CHARS_MAX: Final = 8_192
KEY_SET_BYTES_MAX: Final = 256 << 10
KEYS_MAX: Final = 100
KEY_ID_CHARS_MAX: Final = 255
NUMBER_CHARS_MAX: Final = 1_400
"""The modulus of an RSA key of 8,192 bits has 1,366."""
RSA_BITS_MIN: Final = 2_048
EXPONENT_CHARS_MAX: Final = 8
"""Of RSA. Nearly all have 4 (65537), and a long one makes each verification slow."""


class Kind(NamedTuple):
    """The keys that an algorithm takes."""

    kty: str
    crv: str | None = None


_RSA: Final = Kind("RSA")
_ED25519: Final = Kind("OKP", "Ed25519")
ALGORITHMS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), _RSA),
        "ES256": Kind("EC", "P-256"),
        "ES384": Kind("EC", "P-384"),
        "ES512": Kind("EC", "P-521"),
        "EdDSA": _ED25519,
        "Ed25519": _ED25519,
    }
)
"""All that are taken: with a public key each. One that has a secret is never taken, nor ``none``."""
_NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {"RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",)}


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key, without what RFC 7517 lets stand beside it and nobody needs. Made by ``read_key``."""

    kind: Kind
    numbers: tuple[str, ...]
    """In base64url, in the order of ``_NUMBERS``."""
    id: str | None = None
    """Its ``kid``, which is compared and nothing else."""
    algorithm: str | None = None
    """The only one that it is for; None: each that fits."""

    def fields(self) -> dict[str, str]:
        """As RFC 7517 writes it."""
        named = {
            "kty": self.kind.kty,
            "crv": self.kind.crv,
            **dict(zip(_NUMBERS[self.kind.kty], self.numbers, strict=True)),
            "kid": self.id,
            "alg": self.algorithm,
        }
        return {name: value for name, value in named.items() if value is not None}

    def fits(self, algorithm: str) -> bool:
        """Whether signatures of this algorithm may be this key's."""
        return self.kind == ALGORITHMS[algorithm] and self.algorithm in {None, algorithm}

    def has_signed(self, token: str, algorithm: str) -> bool:
        """
        Whether the signature of a token in compact form is this key's, by ``algorithm``, which is the token's.

        Nothing in the token's header but ``alg`` counts.
        """
        from joserfc.errors import JoseError
        from joserfc.jws import deserialize_compact

        assert self.fits(algorithm), "a key is used for what it is for"
        try:
            deserialize_compact(token, _library_key(self), registry=_registry(algorithm))
        except (JoseError, ValueError, TypeError):
            return False
        return True


HasSigned: TypeAlias = Callable[[PublicKey, str, str], bool]
"""``PublicKey.has_signed``, or what asks it."""


def sign_compact(private: Any, header: dict[str, Any], payload: bytes) -> str:
    """A token in compact form, signed with a private key of ``cryptography`` by the header's ``alg``."""
    from joserfc.jwk import OKPKey
    from joserfc.jws import serialize_compact

    return serialize_compact(header, payload, OKPKey.import_key(private), registry=_registry(header["alg"]))


def read_key_set(raw: bytes) -> tuple[PublicKey, ...]:
    """
    The keys of a JWKS that tokens may be signed with, without those for something else.

    Raises:
        Rejected: it is none, or has no such key; the error says what is the matter with each.
    """
    if len(raw) > KEY_SET_BYTES_MAX:
        raise Rejected(f"it has {len(raw)} bytes; {KEY_SET_BYTES_MAX} is the most")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"it is no JSON ({type(error).__name__})") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise Rejected("it is no set of keys: an object with a list named keys (RFC 7517)")
    if len(listed) > KEYS_MAX:
        raise Rejected(f"it has {len(listed)} keys; {KEYS_MAX} is the most")
    keys, faults = [], []
    for at, one in enumerate(listed):
        try:
            keys.append(read_key(one))
        except Rejected as fault:
            faults.append(f"key {at} {fault}")
    if not keys:
        raise Rejected(f"it has no key that signs tokens: {'; '.join(faults[:5]) or 'the list is empty'}")
    return tuple(dict.fromkeys(keys))


def read_key(one: Any) -> PublicKey:
    """
    One key of a set, from its JSON.

    Raises:
        Rejected: tokens are not verified with it; the rest of a sentence that says why.
    """
    if not isinstance(one, dict):
        raise Rejected("is no object")
    kty = one.get("kty")
    if not isinstance(kty, str) or kty not in _NUMBERS:
        raise Rejected(f"is of type {str(kty)[:40]!r}; RSA, EC and OKP are taken")
    if one.get("d") is not None:
        raise Rejected("has its private half beside it, so anybody may sign with it")
    uses = one.get("key_ops")
    if one.get("use") not in (None, "sig") or not (uses is None or (isinstance(uses, list) and "verify" in uses)):
        raise Rejected("is for something else than signatures")
    kind = Kind(kty, None if kty == "RSA" else _text(one, "crv"))
    id, algorithm = (None if one.get(name) is None else _text(one, name) for name in ("kid", "alg"))
    if id is not None and not (len(id) <= KEY_ID_CHARS_MAX and id.isprintable()):
        raise Rejected(f"has a kid that is not of at most {KEY_ID_CHARS_MAX} printable characters")
    key = PublicKey(kind, tuple(_text(one, name) for name in _NUMBERS[kty]), id, algorithm)
    if not any(map(key.fits, ALGORITHMS)):
        raise Rejected("is of a curve, or for an algorithm, that is not taken")
    _library_key(key)
    return key


def _text(one: dict[str, Any], name: str) -> str:
    value = one.get(name)
    if not isinstance(value, str) or len(value) > NUMBER_CHARS_MAX:
        raise Rejected(f"has no {name} that is a text of at most {NUMBER_CHARS_MAX} characters")
    return value


@lru_cache(maxsize=1_024)
def _library_key(key: PublicKey) -> Key:
    """
    What the library makes of it; it takes 0.1 ms.

    Raises:
        Rejected: it is not whole, or too weak.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    try:
        if key.kind == _RSA:
            _check_rsa(*key.numbers)
        return JWKRegistry.import_key(dict(key.fields()))
    except (JoseError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Rejected(f"is not whole ({type(error).__name__})") from None


def _check_rsa(modulus: str, exponent: str) -> None:
    bits = int.from_bytes(urlsafe_b64decode(modulus + "=="), "big").bit_length()
    if bits < RSA_BITS_MIN:
        raise Rejected(f"has {bits} bits; {RSA_BITS_MIN} is the least")
    if len(exponent) > EXPONENT_CHARS_MAX:
        raise Rejected(f"has an exponent of more than {EXPONENT_CHARS_MAX} characters")


@lru_cache
def _registry(algorithm: str) -> JWSRegistry:
    """Of one algorithm alone: another one in a token's header is unknown."""
    from joserfc.errors import UnsupportedAlgorithmError
    from joserfc.jws import JWSRegistry

    class One(JWSRegistry):
        max_header_length = max_payload_length = max_signature_length = TOKEN_CHARS_MAX

        def get_alg(self, name: str) -> Any:
            """The library warns of EdDSA, whose name says no curve; the curve is fixed here."""
            if name != algorithm:
                raise UnsupportedAlgorithmError(name)
            return self.algorithms[algorithm]

    return One(algorithms=[algorithm], strict_check_header=False)
