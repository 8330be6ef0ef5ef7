"""
Whose tokens are taken by the controllers' settings, where their keys are, and the rows that make it so.

Issuers come from settings alone: who could name one by an API could have controllers call any address, and believe it.
Pure; called by ``adapters.issuers_file`` (the file) and ``engine.issuers``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from headrace_common.core.access.issuers import (
    DEFAULT_ALGORITHMS,
    ID_TOKEN,
    ISSUERS_MAX,
    KUBERNETES,
    SUBJECT,
    Issuer,
    IssuerKeys,
    IssuerKind,
    SignOn,
    is_loopback_url,
)
from headrace_common.core.access.key_sets import PublicKey
from headrace_common.core.access.rows import GONE, ISSUERS, View, write_issuer
from headrace_common.core.errors import InvalidConfig, Rejected

CONFIRM_EVERY_MS: Final = 3_600_000
"""That keys are still the same is written at most so often."""
_NOT_TOLD_YET: Final = "-"
"""The iss of an API server that was not asked yet; no row has it."""
_SIGN_ON: Final = frozenset({"client_id", "scopes", "token"})
_FIELDS: Final = _SIGN_ON | {
    *("alias", "iss", "audiences", "jwks", "ca_file", "algorithms", "principal_claim", "groups_claim", "groups_prefix")
}
_NEEDED: Final = ("alias", "iss", "audiences", "jwks")
_LISTS: Final = frozenset({"audiences", "algorithms", "scopes"})


@dataclass(frozen=True, slots=True)
class Address:
    """Keys are fetched by HTTPS."""

    host: str
    port: int
    target: str
    """Path and query."""
    ca_file: str | None = None
    """CAs of its certificate; None: those of the machine."""


@dataclass(frozen=True, slots=True)
class InFile:
    """Keys are in a file that somebody keeps right."""

    path: str


@dataclass(frozen=True, slots=True)
class ApiServerOfPod:
    """Keys are those of the Kubernetes that this process runs in, which tells its iss too."""


Source: TypeAlias = Address | InFile | ApiServerOfPod


@dataclass(frozen=True, slots=True)
class WantedIssuer:
    """One that is configured."""

    issuer: Issuer
    source: Source
    sign_on: SignOn | None = None
    """How people log in there, if they do."""

    def named(self, iss: str) -> Issuer:
        """The issuer, which is called ``iss`` where its own keys' source says so."""
        return replace(self.issuer, iss=iss) if isinstance(self.source, ApiServerOfPod) else self.issuer


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source gave."""

    keys: tuple[PublicKey, ...]
    at_ms: int
    """Unix time."""
    iss: str = ""
    """As the API server tells it; else empty."""


def due_rows(wanted: Sequence[WantedIssuer], view: View, fetched: Mapping[str, Fetched]) -> dict[str, bytes]:
    """
    The rows of issuers to write; ``GONE``: it is not configured any more, or is another one by the same alias.

    What was fetched by alias may be of some of them: the others keep the keys that they have.
    """
    due = {f"{ISSUERS}{alias}": GONE for alias in view.issuers}
    for one in wanted:
        alias = one.issuer.alias
        known = view.issuers.get(alias)
        next = _next(one, known, fetched.get(alias))
        if next is not None:
            due.pop(f"{ISSUERS}{alias}", None)
            if known is None or next != known:
                due |= [write_issuer(next)]
    return due


def _next(wanted: WantedIssuer, known: IssuerKeys | None, found: Fetched | None) -> IssuerKeys | None:
    if found is None:
        if known is None or wanted.named(known.issuer.iss).iss != known.issuer.iss:
            return None
        return replace(known, issuer=wanted.named(known.issuer.iss), sign_on=wanted.sign_on)
    issuer = wanted.named(found.iss)
    if (
        known is not None
        and known.issuer == issuer
        and known.sign_on == wanted.sign_on
        and set(known.keys) == set(found.keys)
        and abs(found.at_ms - known.confirmed_ms) < CONFIRM_EVERY_MS
    ):
        return known
    return IssuerKeys(issuer, found.keys, found.at_ms, wanted.sign_on)


def of_kubernetes(audience: str) -> WantedIssuer:
    """
    The API server of the pod, whose tokens are taken if they are for ``audience``.

    Raises:
        Rejected: that is no audience.
    """
    issuer = Issuer(KUBERNETES, _NOT_TOLD_YET, frozenset({audience}), kind=IssuerKind.KUBERNETES)
    return WantedIssuer(issuer, ApiServerOfPod())


def parse_issuers(text: str) -> tuple[WantedIssuer, ...]:
    """
    Issuers from a list in JSON.

    Raises:
        InvalidConfig: it is none, or one cannot be; it says which one and what is wrong.
    """
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"it is no JSON: {error}") from None
    if not isinstance(listed, list):
        raise InvalidConfig("it is no list of issuers")
    found = []
    for number, one in enumerate(listed, 1):
        try:
            found.append(_issuer(one))
        except Rejected as error:
            raise InvalidConfig(f"issuer {number}: {error}") from None
    return tuple(found)


def check_issuers(wanted: Sequence[WantedIssuer]) -> None:
    """
    Raises:
        InvalidConfig: two have the same alias or the same iss, so that a token would be of both; or there are too many.
    """
    for name, values in (
        ("alias", [one.issuer.alias for one in wanted]),
        ("iss", [one.issuer.iss for one in wanted]),
    ):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise InvalidConfig(f"two issuers have the {name} {twice[0]!r}")
    if len(wanted) > ISSUERS_MAX:
        raise InvalidConfig(f"there are {len(wanted)} issuers; {ISSUERS_MAX} is the most")


def _issuer(one: Any) -> WantedIssuer:
    if not isinstance(one, dict):
        raise Rejected(f"it is no object with {', '.join(_NEEDED)}")
    strange, missing = sorted(one.keys() - _FIELDS), [name for name in _NEEDED if name not in one]
    if strange:
        raise Rejected(f"there is no {', '.join(strange)}; there are {', '.join(sorted(_FIELDS))}")
    if missing:
        raise Rejected(f"it has no {', '.join(missing)}")
    for name, value in one.items():
        if name in _LISTS:
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise Rejected(f"{name} is a list of texts")
        elif not isinstance(value, str):
            raise Rejected(f"{name} is a text")
    if one["alias"] == KUBERNETES:
        raise Rejected(f"the alias {KUBERNETES} is of tokens of pods: see kubernetes_audience")
    issuer = Issuer(
        one["alias"],
        one["iss"],
        frozenset(one["audiences"]),
        frozenset(one["algorithms"]) if "algorithms" in one else DEFAULT_ALGORITHMS,
        principal_claim=one.get("principal_claim", SUBJECT),
        groups_claim=one.get("groups_claim"),
        groups_prefix=one.get("groups_prefix", ""),
    )
    return WantedIssuer(issuer, _source(one["jwks"], one.get("ca_file")), _sign_on(one, issuer))


def _sign_on(one: dict[str, Any], issuer: Issuer) -> SignOn | None:
    if "client_id" not in one:
        alone = sorted(one.keys() & _SIGN_ON)
        if alone:
            raise Rejected(f"{', '.join(alone)} is for people who log in there, which needs client_id")
        return None
    known = SignOn(one["client_id"], tuple(one.get("scopes", ("openid",))), one.get("token", ID_TOKEN))
    if known.token == ID_TOKEN and known.client_id not in issuer.audiences:
        raise Rejected(
            f"an id_token is for its client, so audiences needs {known.client_id}; or write access_token for token"
        )
    if not issuer.iss.startswith("https://") and not is_loopback_url(issuer.iss):
        raise Rejected("who logs in there asks it by iss, which has to begin with https://")
    return known


def _source(jwks: str, ca_file: str | None) -> Source:
    form = "jwks is where its keys are, https://HOST/PATH or file:///PATH"
    try:
        url = urlsplit(jwks)
        port = url.port
    except ValueError:
        raise Rejected(f"{form}, not {jwks[:80]!r}") from None
    if not jwks.isascii() or not jwks.isprintable() or " " in jwks or url.fragment or "@" in url.netloc:
        raise Rejected(f"{form}, without spaces, other letters, a user or a fragment")
    if url.scheme == "file" and not url.netloc and url.path.startswith("/") and not url.query:
        if ca_file is not None:
            raise Rejected("ca_file is for keys that are fetched; those of this one are in a file")
        return InFile(url.path)
    if url.scheme != "https" or not url.hostname:
        raise Rejected(f"{form}, not {jwks[:80]!r}")
    return Address(url.hostname, port or 443, (url.path or "/") + (f"?{url.query}" if url.query else ""), ca_file)
