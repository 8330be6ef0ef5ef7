"""One login with a password, at whoever sees it: a node, for a session, or the active controller, for a key."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace_common.core.access.rows import View
from headrace_common.core.access.scram import ServerExchange
from headrace_common.core.access.slowing import FailedLogins
from headrace_common.core.access.users import Password, User
from headrace_common.core.errors import CredentialsRevoked, Unauthenticated

EXCHANGE_MS_MAX: Final = 30_000
"""How long a client may take between its two messages."""


class Proven(NamedTuple):
    """Who has logged in."""

    user: User
    password: Password
    """By which of its passwords."""
    message: bytes
    """The server's last, for the client."""


class Login:
    """One, of two steps. Each asks for the rows as they are then."""

    def __init__(
        self,
        mechanism: str,
        address: str,
        failures: FailedLogins,
        nonce: str,
        unknown: bytes,
    ) -> None:
        """
        Args:
            address: where the client is.
            unknown: for ``ServerExchange`` where the rows have no secret, since there never was a user.

        Raises:
            Unauthenticated: there is no such mechanism.
        """
        self._mechanism = mechanism
        self._address = address
        self._failures = failures
        self._nonce = nonce
        self._unknown = unknown
        self._exchange: ServerExchange | None = None
        self._passwords: tuple[Password, ...] = ()
        self._user_id = ""

    def first(self, message: bytes, view: View, now_ms: float, monotonic_ms: float) -> bytes:
        """
        The answer to the client's first message.

        Raises:
            Unauthenticated: it is none, or the user has to wait.
        """
        exchange = self._exchange = ServerExchange(self._mechanism, self._nonce, view.salting or self._unknown)
        name = exchange.read_user(message)
        self._failures.check(name, self._address, monotonic_ms)
        user = view.users.get(name)
        if user is not None:
            self._user_id, self._passwords = user.id, user.passwords(now_ms)
        return exchange.first(message, (one for password in self._passwords for one in password.verifiers))

    def last(self, message: bytes, view: View, now_ms: float, monotonic_ms: float) -> Proven:
        """
        Who has logged in.

        Raises:
            Unauthenticated: nobody; the text says no more.
            CredentialsRevoked: the password is right, and its user blocked.
        """
        exchange = self._exchange
        assert exchange is not None, "the first message comes first"
        assert exchange.user is not None, "and has a name"
        name = exchange.user
        self._failures.check(name, self._address, monotonic_ms)
        try:
            answer, at = exchange.last(message)
        except Unauthenticated:
            self._failures.failed(name, self._address, monotonic_ms)
            raise
        self._failures.succeeded(name, self._address)
        user, password = view.users.get(name), self._passwords[at]
        if user is None or user.id != self._user_id or now_ms >= user.end_of(password.id):
            raise CredentialsRevoked(f"the password of User:{name} was changed just now; log in with the new one")
        if user.principal in view.access.blocked:
            raise CredentialsRevoked(f"{user.principal} is blocked")
        return Proven(user, password, answer)
