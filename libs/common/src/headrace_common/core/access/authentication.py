"""
Who calls, by what the call has shown: a bearer, which is an API key, a token of an issuer, or a session; or the
certificate of its connection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headrace_common.core.access.api_keys import PREFIX, ApiKey, parse_key
from headrace_common.core.access.client_certificates import ClientCertificate
from headrace_common.core.access.grants import host_of
from headrace_common.core.access.key_sets import TOKEN_CHARS_MAX
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.sessions import SESSION_PREFIX, Session, Signers, VerifiedSessions, is_young
from headrace_common.core.access.signatures import Signatures
from headrace_common.core.access.state import Caller
from headrace_common.core.access.tokens import START, Identity, UnknownKey, VerifiedTokens
from headrace_common.core.errors import (
    CredentialsExpired,
    CredentialsRevoked,
    MetadataUnavailable,
    Overloaded,
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
    session: Session | None = None
    """The same, where it is a session."""
    node: NodeKey | None = None
    """The node that asks for itself."""
    certificate: ClientCertificate | None = None
    """That of its connection, where that is who it is."""
    plain: bool = False
    """It comes in plain text to a process that speaks TLS too."""

    @property
    def expires_ms(self) -> int | None:
        """Unix time from which on it is over; None: never, as far as it says itself."""
        own, certificate = self._own_expires_ms, self.certificate
        if certificate is None:
            return own
        return certificate.expires_ms if own is None else min(own, certificate.expires_ms)

    @property
    def _own_expires_ms(self) -> int | None:
        """Of the bearer."""
        if self.token is not None:
            return self.token.expires_ms
        if self.session is not None:
            return self.session.expires_ms
        return None if self.key is None else self.key.expires_ms

    def expired(self, now_ms: float) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms

    @property
    def has_password(self) -> bool:
        """Whether it is by a password, which may count for some time only that it does not tell itself."""
        return self.session is not None or (self.key is not None and bool(self.key.login))


def node_shown(node: NodeKey) -> Shown:
    """A node of the cluster that has proven to be one."""
    return Shown(Caller(Principal(PrincipalType.NODE, str(node))), node=node)


def bearer_of(authorization: str) -> str:
    """The credential in a header ``Authorization``; of another scheme an empty one, which is nobody's."""
    scheme, _, bearer = authorization.partition(" ")
    return bearer.strip() if scheme.lower() == SCHEME else ""


def check_shown(bearer: str | None) -> str:
    """
    ``bearer``, which may be a credential by how it looks.

    Raises:
        Unauthenticated: there is none, or it is of no kind that clusters take.
    """
    if bearer is None:
        raise Unauthenticated(f"this cluster is closed, and the call came without a credential; {_HOW}")
    if len(bearer) > BEARER_CHARS_MAX or not bearer.startswith((PREFIX, START, SESSION_PREFIX)):
        raise Unauthenticated(f"the credential is of no kind that is taken here; {_HOW}")
    return bearer


class Verified:
    """What a process has verified of what callers have shown, and by whom it verifies sessions. One event loop."""

    def __init__(self) -> None:
        signatures = Signatures()
        self.tokens = VerifiedTokens(signatures)
        self.sessions = VerifiedSessions(signatures)
        self.signers = Signers()
        """The newest."""


def authenticate(
    view: View,
    bearer: str | None,
    address: str,
    now_ms: float,
    verified: Verified,
    certificate: ClientCertificate | None = None,
) -> Shown:
    """
    Who shows ``bearer``, or ``certificate``, or both.

    Where the cluster is not closed, who shows nothing that is valid is ``User:ANONYMOUS``.

    Args:
        address: where the call comes from, as ``host_of`` takes it; anything else is no address, which no rule names.
        now_ms: Unix time.
        verified: what this process has verified before.
        certificate: of the connection. Its owner calls; a bearer beside it has to be the owner's too, and then narrows.

    Raises:
        Unauthenticated: nothing was shown, or nothing that is known; or a certificate, and somebody else's bearer.
        CredentialsExpired: it was good until some time ago.
        CredentialsRevoked: its owner, or one of the groups of its token, is blocked; or, of a session, as
            ``Session.check``.
        MetadataUnavailable: it may be good, and this node will know soon.
        Overloaded: too many wrong tokens come.
    """
    host = _host(address)
    try:
        if certificate is None:
            shown = _shown(view, check_shown(bearer), host, now_ms, verified)
        else:
            shown = _certified(view, certificate, bearer, host, now_ms, verified)
        _check_not_blocked(view, shown.caller)
    except (Unauthenticated, Overloaded):
        if view.mode is Mode.CLOSED:
            raise
        return Shown(Caller(ANONYMOUS, host=host), bearer)
    return shown


def check_signed(view: View, shown: Shown, now_ms: float, signers: Signers) -> None:
    """
    Look whether a token or session that was good still is, without its signature.

    Raises:
        Unauthenticated: it is not; as ``authenticate``.
    """
    if shown.session is not None:
        shown.session.check(view.users, signers, now_ms)
    else:
        assert shown.token is not None, "who asks has one of them"
        shown.token.check(view.issuers, now_ms)
    _check_not_blocked(view, shown.caller)


def _shown(view: View, bearer: str, host: str | None, now_ms: float, verified: Verified) -> Shown:
    if bearer.startswith(PREFIX):
        key = _key(view, bearer, now_ms)
        return Shown(Caller(key.owner, host=host, scope=key.scope), bearer, key)
    if bearer.startswith(SESSION_PREFIX):
        session = _session(view, bearer, now_ms, verified)
        caller = Caller(session.principal, host=host, vouched=not view.vouched_full)
        return Shown(caller, bearer, session=session)
    identity = _identity(view, bearer, now_ms, verified)
    return Shown(Caller(identity.principal, identity.groups, host), bearer, token=identity)


def _certified(
    view: View, certificate: ClientCertificate, bearer: str | None, host: str | None, now_ms: float, verified: Verified
) -> Shown:
    owner = certificate.check(now_ms)
    if bearer is None:
        return Shown(Caller(owner, host=host, vouched=not view.vouched_full), certificate=certificate)
    shown = _shown(view, check_shown(bearer), host, now_ms, verified)
    if shown.caller.principal != owner:
        raise Unauthenticated(
            f"the certificate is of {owner}, and the credential beside it of {shown.caller.principal}: leave the "
            "credential out, or show it alone, at the listener for clients without certificates"
        )
    return replace(shown, certificate=certificate)


def _identity(view: View, bearer: str, now_ms: float, verified: Verified) -> Identity:
    try:
        return verified.tokens.verify(bearer, view.issuers, now_ms)
    except UnknownKey as unknown:
        if view.mode is Mode.CLOSED and unknown.may_be_known_soon(now_ms):
            raise MetadataUnavailable(str(unknown)) from None  # clients try again by themselves
        raise


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
        how = (
            f"log in again: headrace login --user {key.owner.name}"
            if key.login
            else "make another: headrace key create"
        )
        raise CredentialsExpired(f"API key {id} is over; {how}")
    if key.login and now_ms >= _login_end_ms(view, key):
        raise CredentialsRevoked(
            f"the password of {key.owner} was changed or taken away since it logged in; log in again"
        )
    return key


def _login_end_ms(view: View, key: ApiKey) -> float:
    """Unix time until which the password counts that a login was begun with."""
    user = view.users.get(key.owner.name)
    return 0 if user is None else user.end_of(key.login)


def end_ms(view: View, shown: Shown) -> float | None:
    """Unix time from which on what was shown is over, as things are: a password may have been changed. None: never."""
    if shown.session is not None:
        return shown.session.end_ms(view.users)
    if shown.key is not None and shown.key.login:
        return min(shown.key.expires_ms or 0, _login_end_ms(view, shown.key))
    return shown.expires_ms


def _session(view: View, bearer: str, now_ms: float, verified: Verified) -> Session:
    try:
        return verified.sessions.verify(bearer, view.users, verified.signers, now_ms)
    except CredentialsRevoked:
        if is_young(bearer, now_ms):
            raise MetadataUnavailable(
                "this node has not heard yet of the node that began the session, or of its user; try again in a second"
            ) from None
        if view.faults:
            raise MetadataUnavailable(
                f"this node cannot read all that is said of access ({view.faults[0]}), so it lets in nobody whose "
                "password it does not know; run the newer version there"
            ) from None
        raise


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
