"""Who calls, by what the call has shown: a bearer, which is an API key or a token of an issuer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.core.access.api_keys import PREFIX, ApiKey, parse_key
from headrace_common.core.access.grants import host_of
from headrace_common.core.access.key_sets import TOKEN_CHARS_MAX
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Caller
from headrace_common.core.access.tokens import START, Identity, VerifiedTokens
from headrace_common.core.errors import (
    CredentialsExpired,
    CredentialsRevoked,
    MetadataUnavailable,
    Rejected,
    Unauthenticated,
)
from headrace_common.core.image import NodeKey

SCHEME: Final = "bearer"
BEARER_CHARS_MAX: Final = TOKEN_CHARS_MAX
_HOW: Final = (
    "show an API key: HEADRACE_API_KEY, api_key= of the SDK, or --profile of the command; or a token of an issuer that "
    "this cluster takes"
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a call has shown, and who that is."""

    caller: Caller
    bearer: str | None = None
    """None: it came without one, or from a node."""
    key: ApiKey | None = None
    token: Identity | None = None
    """What the bearer has proven, where it is a token."""
    node: NodeKey | None = None
    """The node that asks for itself."""

    @property
    def expires_ms(self) -> int | None:
        """Unix time from which on it is over; None: never, as far as it says itself."""
        if self.token is not None:
            return self.token.expires_ms
        return None if self.key is None else self.key.expires_ms

    def expired(self, now_ms: float) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


def node_shown(node: NodeKey) -> Shown:
    """A node of the cluster that has proven to be one."""
    return Shown(Caller(Principal(PrincipalType.NODE, str(node))), node=node)


def bearer_of(authorization: str) -> str:
    """The credential in a header ``Authorization``; of another scheme an empty one, which is nobody's."""
    scheme, _, bearer = authorization.partition(" ")
    return bearer.strip() if scheme.lower() == SCHEME else ""


def authenticate(view: View, bearer: str | None, address: str, now_ms: float, tokens: VerifiedTokens) -> Shown:
    """
    Who shows ``bearer``.

    Where the cluster is not closed, who shows nothing that is valid is ``User:ANONYMOUS``.

    Args:
        address: where the call comes from, as ``host_of`` takes it; anything else is no address, which no rule names.
        now_ms: Unix time.
        tokens: those that this process has verified.

    Raises:
        Unauthenticated: nothing was shown, or nothing that is known.
        CredentialsExpired: it was good until some time ago.
        CredentialsRevoked: its owner, or one of the groups of its token, is blocked.
    """
    host = _host(address)
    try:
        if bearer is None:
            raise Unauthenticated(f"this cluster is closed, and the call came without a credential; {_HOW}")
        shown = _shown(view, bearer, host, now_ms, tokens)
        _check_not_blocked(view, shown.caller)
    except Unauthenticated:
        if view.mode is Mode.CLOSED:
            raise
        return Shown(Caller(ANONYMOUS, host=host), bearer)
    return shown


def check_token(view: View, shown: Shown, now_ms: float) -> None:
    """
    Look whether a token that was good still is, without its signature.

    Raises:
        Unauthenticated: it is not; as ``authenticate``.
    """
    assert shown.token is not None, "who asks has one"
    shown.token.check(view.issuers, now_ms)
    _check_not_blocked(view, shown.caller)


def _shown(view: View, bearer: str, host: str | None, now_ms: float, tokens: VerifiedTokens) -> Shown:
    if len(bearer) > BEARER_CHARS_MAX or not bearer.startswith((PREFIX, START)):
        raise Unauthenticated(f"the credential is of no kind that is taken here; {_HOW}")
    if bearer.startswith(PREFIX):
        key = _key(view, bearer, now_ms)
        return Shown(Caller(key.owner, host=host, scope=key.scope), bearer, key)
    identity = tokens.verify(bearer, view.issuers, now_ms)
    return Shown(Caller(identity.principal, identity.groups, host), bearer, token=identity)


def _key(view: View, bearer: str, now_ms: float) -> ApiKey:
    try:
        id, secret = parse_key(bearer)
    except Rejected as error:
        raise Unauthenticated(str(error)) from None
    key = view.keys.get(id)
    if key is None and view.faults:
        raise MetadataUnavailable(
            f"this node cannot read all that is said of access ({view.faults[0]}), so it lets in no API key that it "
            "does not know; run the newer version there"
        )
    if key is None or not key.matches(secret):
        raise Unauthenticated(f"there is no API key {id} with this secret: it was deleted, or is of another cluster")
    if key.expired(now_ms):
        raise CredentialsExpired(f"API key {id} is over; make another with: headrace key create")
    return key


def _check_not_blocked(view: View, caller: Caller) -> None:
    blocked = view.access.blocked
    if caller.principal in blocked:
        raise CredentialsRevoked(f"{caller.principal} is blocked")
    if not blocked.isdisjoint(caller.groups):
        raise CredentialsRevoked(f"{min(blocked & caller.groups, key=str)} is blocked")


def _host(address: str) -> str | None:
    try:
        return host_of(address)
    except Rejected:
        return None
