"""Who calls, by what the call has shown: a bearer, which is an API key so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.core.access.api_keys import PREFIX, ApiKey, parse_key
from headrace_common.core.access.grants import host_of
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import CredentialsExpired, CredentialsRevoked, Rejected, Unauthenticated
from headrace_common.core.image import NodeKey

SCHEME: Final = "bearer"
BEARER_CHARS_MAX: Final = 8_192
_HOW: Final = "show an API key: HEADRACE_API_KEY, api_key= of the SDK, or --profile of the command"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a call has shown, and who that is."""

    caller: Caller
    bearer: str | None = None
    """None: it came without one, or from a node."""
    key: ApiKey | None = None
    node: NodeKey | None = None
    """The node that asks for itself."""


def node_shown(node: NodeKey) -> Shown:
    """A node of the cluster that has proven to be one."""
    return Shown(Caller(Principal(PrincipalType.NODE, str(node))), node=node)


def bearer_of(authorization: str) -> str:
    """The credential in a header ``Authorization``; of another scheme an empty one, which is nobody's."""
    scheme, _, bearer = authorization.partition(" ")
    return bearer.strip() if scheme.lower() == SCHEME else ""


def authenticate(view: View, bearer: str | None, address: str, now_ms: float) -> Shown:
    """
    Who shows ``bearer``.

    Where the cluster is not closed, who shows nothing that is valid is ``User:ANONYMOUS``.

    Args:
        address: where the call comes from, as ``host_of`` takes it; anything else is no address, which no rule names.
        now_ms: Unix time.

    Raises:
        Unauthenticated: nothing was shown, or nothing that is known.
        CredentialsExpired: it was good until some time ago.
        CredentialsRevoked: its owner is blocked.
    """
    host = _host(address)
    try:
        if bearer is None:
            raise Unauthenticated(f"this cluster is closed, and the call came without a credential; {_HOW}")
        key = _key(view, bearer, now_ms)
    except Unauthenticated:
        if view.mode is Mode.CLOSED:
            raise
        return Shown(Caller(ANONYMOUS, host=host), bearer)
    return Shown(Caller(key.owner, host=host, scope=key.scope), bearer, key)


def _key(view: View, bearer: str, now_ms: float) -> ApiKey:
    if len(bearer) > BEARER_CHARS_MAX or not bearer.startswith(PREFIX):
        raise Unauthenticated(f"the credential is of no kind that is taken here; {_HOW}")
    try:
        id, secret = parse_key(bearer)
    except Rejected as error:
        raise Unauthenticated(str(error)) from None
    key = view.keys.get(id)
    if key is None or not key.matches(secret):
        raise Unauthenticated(f"there is no API key {id} with this secret: it was deleted, or is of another cluster")
    if key.expired(now_ms):
        raise CredentialsExpired(f"API key {id} is over; make another with: headrace key create")
    if key.owner in view.access.blocked:
        raise CredentialsRevoked(f"{key.owner} is blocked")
    return key


def _host(address: str) -> str | None:
    try:
        return host_of(address)
    except Rejected:
        return None
