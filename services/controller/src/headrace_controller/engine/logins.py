"""
Logins at the active controller, for one term: two steps of SCRAM for an API key of some hours, which the controller
makes itself, so that nobody vouches for it. Admin services pass the steps on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from headrace_common.core.access.api_keys import ApiKey, digest_of, parse_key
from headrace_common.core.access.logging_in import EXCHANGE_MS_MAX, Login, Proven
from headrace_common.core.access.rows import KEYS, STATE, write_key
from headrace_common.core.access.slowing import FailedLogins
from headrace_common.core.access.users import SALTING_BYTES
from headrace_common.core.errors import CredentialsRevoked, Unauthenticated
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import new_api_key, new_nonce, new_secret, new_uuid
from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.core.store import CreatedAt, Delete, Put
from headrace_controller.engine.access_rows import AccessRows
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.keys import NewKey, make_room
from headrace_controller.engine.writer import Decision, Writer

LOGIN_MS: Final = 12 * 3_600_000
PENDING_MAX: Final = 1_000
PENDING_PER_ADDRESS_MAX: Final = 20
NOTE: Final = "login"

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is answered."""

    message: bytes
    exchange_id: str = ""
    """For the second."""
    made: NewKey | None = None
    """After the second."""


@dataclass(slots=True)
class _Pending:
    login: Login
    address: str
    until_ms: float


class Logins:
    """Those under way, and those that failed. One event loop."""

    def __init__(self, writer: Writer, follower: Follower, clock: Clock) -> None:
        self._writer = writer
        self._rows = AccessRows(follower)
        self._follower = follower
        self._clock = clock
        self._failures = FailedLogins()
        self._unknown = new_secret(SALTING_BYTES)
        self._pending: dict[str, _Pending] = {}
        """By their id, in the order in which they began."""

    def begin(self, mechanism: str, message: bytes, address: str) -> Step:
        """
        The answer to a client's first message.

        Raises:
            Unauthenticated: it is none; or this user or address has to wait.
            UnsupportedVersion: below the level of access, or rows are there that this version cannot read.
        """
        view, now_ms = self._rows.view(), self._clock.monotonic_ms()
        self._pending = {id: one for id, one in self._pending.items() if one.until_ms > now_ms}
        if Counter(one.address for one in self._pending.values())[address] >= PENDING_PER_ADDRESS_MAX:
            raise Unauthenticated(
                f"{PENDING_PER_ADDRESS_MAX} logins from {address} are under way; try again in a minute"
            )
        login = Login(mechanism, address, self._failures, new_nonce(), self._unknown)
        answer = login.first(message, view, self._clock.now_ms(), now_ms)
        if len(self._pending) >= PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        id = new_uuid()
        self._pending[id] = _Pending(login, address, now_ms + EXCHANGE_MS_MAX)
        return Step(answer, id)

    async def finish(self, id: str, message: bytes) -> Step:
        """
        Make a key for who has a password. Each exchange is good for one try.

        Raises:
            Unauthenticated: it does not, or this exchange is not known.
            UnsupportedVersion, HeadraceError: as ``Keys.create``.
        """
        pending, now_ms = self._pending.pop(id, None), self._clock.monotonic_ms()
        if pending is None or pending.until_ms <= now_ms:
            raise Unauthenticated("this login was not begun here, or too long ago; begin it again")
        proven = pending.login.last(message, self._rows.view(), self._clock.now_ms(), now_ms)
        made = await self._make_key(proven)
        extra = {"user": proven.user.name, "key_id": made.key.id, "address": pending.address}
        log.info("audit: a user logged in", extra=extra)
        return Step(proven.message, made=made)

    async def _make_key(self, proven: Proven) -> NewKey:
        owner, now_ms = proven.user.principal, round(self._clock.now_ms())
        text = new_api_key()
        id, secret = parse_key(text)
        key = ApiKey(id, owner, digest_of(secret), now_ms, now_ms + LOGIN_MS, None, NOTE, proven.password.id)
        name, row = write_key(key)
        put = Put(records.access_key(name), row)

        def decision() -> Decision:
            view = self._rows.view()
            user = view.users.get(proven.user.name)
            if user is None or now_ms >= user.end_of(proven.password.id):
                raise CredentialsRevoked(f"the password of {owner} was changed just now; log in with the new one")
            over = (Delete(records.access_key(f"{KEYS}{one}")) for one in make_room(view, owner, now_ms, login=True))
            return Decision((put, *over), (self._rows.unchanged(STATE), CreatedAt(put.key, 0)))

        await self._writer.decide(decision)
        return NewKey(text, key)
