"""
Issuers: who else may say who somebody is, by tokens that it signs (JWT).

They are the controllers' configuration and nobody else's. The active controller fetches their public keys, and both
travel as the row ``issuers/ALIAS``: so every node verifies tokens by what it has, and needs no way to an issuer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

from headrace_common.core.access.key_sets import ALGORITHMS, PublicKey, read_key
from headrace_common.core.access.names import find_fault
from headrace_common.core.errors import Rejected
from headrace_common.core.moments import TIMESTAMP_MS_MAX

ISSUERS_MAX: Final = 32
AUDIENCES_MAX: Final = 16
TEXT_CHARS_MAX: Final = 512
CLAIM_CHARS_MAX: Final = 255
WARN_AFTER_MS: Final = 7 * 86_400_000
"""Keys that nobody could confirm for so long are warned of."""
REFUSE_AFTER_MS: Final = 30 * 86_400_000
"""Keys that nobody could confirm for so long verify nothing."""
DEFAULT_ALGORITHMS: Final = frozenset({"RS256", "PS256", "ES256", "EdDSA", "Ed25519"})
SUBJECT: Final = "sub"
KUBERNETES: Final = "kubernetes"
SCOPES_MAX: Final = 32
_SCOPE: Final = re.compile(r"[!#-\[\]-~]{1,128}")
"""As RFC 6749 has it."""
_ALIAS: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class IssuerKind(Enum):
    """Whom it knows."""

    OIDC = "oidc"
    """People and programs, as ``Oidc:ALIAS/SUBJECT``."""
    KUBERNETES = KUBERNETES
    """Accounts of pods, as ``ServiceAccount:NAMESPACE/NAME``."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """What is configured of one. Making one that cannot be raises ``Rejected``."""

    alias: str
    """What it is called here."""
    iss: str
    """As its tokens name it, to the letter."""
    audiences: frozenset[str]
    """A token is for at least one of these."""
    algorithms: frozenset[str] = DEFAULT_ALGORITHMS
    """Some of ``ALGORITHMS``."""
    kind: IssuerKind = IssuerKind.OIDC
    principal_claim: str = SUBJECT
    """The claim that names the caller."""
    groups_claim: str | None = None
    """The claim that names the caller's groups, a list of texts or one text; None: its tokens name no groups."""
    groups_prefix: str = ""
    """Begins the names of its groups here: issuers share them."""

    def __post_init__(self) -> None:
        faults = [text for holds, text in self._rules() if not holds]
        if faults:
            raise Rejected(f"issuer {self.alias[:80]!r}: {'; '.join(faults)}")

    def _rules(self) -> list[tuple[bool, str]]:
        strange = ", ".join(sorted(self.algorithms - ALGORITHMS.keys()))
        claims = (self.principal_claim, self.groups_claim)
        return [
            (_ALIAS.fullmatch(self.alias) is not None, "its alias has small letters, digits and -, 63 at most"),
            (_is_text(self.iss), "iss is what its tokens name it, to the letter, such as https://login.example.com"),
            (
                0 < len(self.audiences) <= AUDIENCES_MAX and all(map(_is_text, self.audiences)),
                f"audiences has 1 to {AUDIENCES_MAX} texts: tokens of it that are for others are refused",
            ),
            (bool(self.algorithms), "algorithms names none"),
            (not strange, f"algorithms has {strange}; there are {', '.join(ALGORITHMS)}"),
            (
                all(claim is None or find_fault(claim, CLAIM_CHARS_MAX) is None for claim in claims),
                "principal_claim and groups_claim are names of claims",
            ),
            (not self.groups_prefix or _is_text(self.groups_prefix), "groups_prefix is a text"),
            (
                self.kind is IssuerKind.OIDC or (self.principal_claim, self.groups_claim) == (SUBJECT, None),
                "tokens of Kubernetes name the account in sub, and no groups",
            ),
        ]


ID_TOKEN: Final = "id_token"
ACCESS_TOKEN: Final = "access_token"


@dataclass(frozen=True, slots=True)
class SignOn:
    """
    How people log in at an issuer with a program of theirs; all of it is public. Making one that cannot be raises
    ``Rejected``.
    """

    client_id: str
    """What their programs are called there: a client that has no secret."""
    scopes: tuple[str, ...] = ("openid",)
    token: str = ID_TOKEN
    """Which of the two tokens that the issuer gives is shown to the cluster."""

    def __post_init__(self) -> None:
        if not _is_text(self.client_id):
            raise Rejected("client_id is what the issuer calls the programs that people log in with")
        if not 0 < len(self.scopes) <= SCOPES_MAX or not all(map(_is_scope, self.scopes)):
            raise Rejected(f"scopes has 1 to {SCOPES_MAX} words, without spaces and quotes")
        if self.token not in {ID_TOKEN, ACCESS_TOKEN}:
            raise Rejected(f"token is {ID_TOKEN} or {ACCESS_TOKEN}")
        if self.token == ID_TOKEN and "openid" not in self.scopes:
            raise Rejected(f"scopes has no openid, and without it there is no {ID_TOKEN}")


@dataclass(frozen=True, slots=True)
class IssuerKeys:
    """An issuer, and the keys that its tokens may be signed with."""

    issuer: Issuer
    keys: tuple[PublicKey, ...]
    confirmed_ms: int
    """Unix time when it was last seen that these are its keys."""
    sign_on: SignOn | None = None
    """None: people do not log in there with their programs."""

    def is_old(self, now_ms: float) -> bool:
        """Whether nobody could tell for so long that somebody should look."""
        return now_ms - self.confirmed_ms >= WARN_AFTER_MS

    def is_stale(self, now_ms: float) -> bool:
        """Whether nobody could tell for too long that these are still its keys."""
        return now_ms - self.confirmed_ms >= REFUSE_AFTER_MS


def is_loopback_url(url: str) -> bool:
    """Whether it leads to this machine, where plain text is read by nobody else."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1", "localhost"}


def issuer_fields(known: IssuerKeys) -> dict[str, Any]:
    """Of its row; without the alias, which says where that is."""
    issuer = known.issuer
    return {
        "iss": issuer.iss,
        "audiences": sorted(issuer.audiences),
        "algorithms": sorted(issuer.algorithms),
        "kind": issuer.kind.value,
        "principal_claim": issuer.principal_claim,
        "groups_claim": issuer.groups_claim,
        "groups_prefix": issuer.groups_prefix,
        "keys": [key.fields() for key in known.keys],
        "confirmed_ms": known.confirmed_ms,
        "sign_on": None if known.sign_on is None else asdict(known.sign_on),
    }


def read_issuer(alias: str, fields: dict[str, Any]) -> IssuerKeys:
    """
    The inverse of ``issuer_fields``.

    Raises:
        Rejected, KeyError, TypeError, ValueError: it is not of the form.
    """
    issuer = Issuer(
        alias,
        fields["iss"],
        frozenset(fields["audiences"]),
        frozenset(fields["algorithms"]),
        IssuerKind(fields["kind"]),
        fields["principal_claim"],
        fields["groups_claim"],
        fields["groups_prefix"],
    )
    confirmed_ms = fields["confirmed_ms"]
    if not 0 <= confirmed_ms <= TIMESTAMP_MS_MAX:
        raise Rejected(f"its keys were confirmed at {confirmed_ms}, which is no time")
    return IssuerKeys(issuer, tuple(_readable(fields["keys"])), confirmed_ms, _sign_on(fields.get("sign_on")))


def _sign_on(fields: dict[str, Any] | None) -> SignOn | None:
    return None if fields is None else SignOn(fields["client_id"], tuple(fields["scopes"]), fields["token"])


def _readable(written: list[Any]) -> Iterator[PublicKey]:
    """A key that this version does not take verifies nothing, and takes nothing else with it."""
    for one in written:
        with suppress(Rejected):
            yield read_key(one)


def _is_scope(text: object) -> bool:
    return isinstance(text, str) and _SCOPE.fullmatch(text) is not None


def _is_text(text: object) -> bool:
    return isinstance(text, str) and find_fault(text, TEXT_CHARS_MAX) is None
