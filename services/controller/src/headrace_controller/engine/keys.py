"""
API keys, made and deleted, for one term of the active controller.

Both are one transaction that compares the row ``state``, so that whose right it was still has it. A deletion is a new
generation; a new key is not, since nothing that was decided before is decided otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace_common.core.access.api_keys import (
    KEYS_MAX,
    KEYS_PER_OWNER_MAX,
    ApiKey,
    KeyId,
    digest_of,
    parse_key,
)
from headrace_common.core.access.control import Rights
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.grants import Scope
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.review import check_keeps_keys, check_key, narrow_scope
from headrace_common.core.access.rows import KEYS, STATE, View, write_key, write_state
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import ClusterAuthorizationFailed, Denied, ErrorCode, NotFound, Rejected
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import new_api_key, new_uuid
from headrace_common.runtime.logs import logger
from headrace_controller.core import breakglass, records
from headrace_controller.core.store import CreatedAt, Delete, Put, Unchanged
from headrace_controller.engine.access import ROWS_MAX
from headrace_controller.engine.access_rows import AccessRows, RowChange, asked_by, tell_rows
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.writer import CHUNK, Decision, Writer

DAY_MS: Final = 86_400_000
YEAR_MS: Final = 365 * DAY_MS
LIFETIME_MS_MAX: Final = 100 * YEAR_MS
FOR_EVER: Final = -1
LOGINS_PER_OWNER_MAX: Final = 100
_NAMED_IN_LOG: Final = 20

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class WantedKey:
    """What a new key is to be."""

    owner: Principal | None = None
    """None: the caller."""
    lifetime_ms: int = 0
    """0: a year; ``FOR_EVER``: it does not expire."""
    scope: Scope | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was made."""

    text: str = field(repr=False)
    """What its owner shows; kept nowhere."""
    key: ApiKey


class Keys:
    """All API keys during one term."""

    def __init__(self, writer: Writer, follower: Follower, clock: Clock) -> None:
        self._writer = writer
        self._follower = follower
        self._rows = AccessRows(follower)
        self._clock = clock

    async def create(self, wanted: WantedKey, rights: Rights, with_key: ApiKey | None = None) -> NewKey:
        """
        Make a key.

        Args:
            with_key: the one that the caller shows, if it is a key. One that lasts a day or less is for an occasion,
                and those of the same owner that are made with it end with it. Longer ones are changed in this way.

        Raises:
            Rejected: nobody has such a key, or there are too many.
            Denied: the caller may not; see ``review.check_key`` and ``review.narrow_scope``.
            UnsupportedVersion: as ``AccessChanges.alter``.
            HeadraceError: as ``Writer.decide``.
        """
        owner = wanted.owner or rights.caller.principal
        if owner == ANONYMOUS or owner.type is PrincipalType.NODE:
            raise Rejected(f"{owner} has no keys; name the owner of the key, for example User:alice")
        scope = narrow_scope(wanted.scope, rights.caller)
        now_ms = round(self._clock.now_ms())
        text = new_api_key()
        id, secret = parse_key(text)
        expires_ms = _expiry(wanted.lifetime_ms, now_ms, _end_with(with_key, owner))
        key = ApiKey(id, owner, digest_of(secret), now_ms, expires_ms, scope, wanted.note)
        name, row = write_key(key)
        put = Put(records.access_key(name), row)

        def decision() -> Decision:
            view = self._rows.view()
            by = asked_by(view, rights)
            if by is not None:
                check_key(view.access, owner, scope, by)
            over = (Delete(records.access_key(f"{KEYS}{one}")) for one in make_room(view, owner, now_ms))
            return Decision((put, *over), (self._rows.unchanged(STATE), CreatedAt(put.key, 0)))

        await self._writer.decide(decision)
        extra = {"by": str(rights.caller.principal), "owner": str(owner), "key_id": id}
        log.info("a key was made", extra=extra)
        tell_rows([RowChange(name, None, row)])
        return NewKey(text, key)

    async def delete(self, ids: Sequence[KeyId], rights: Rights) -> None:
        """
        Delete keys, all or none; whoever calls with them is refused from then on.

        Raises:
            NotFound: there is no such key, or the caller may not even know of it.
            Rejected: there are too many of them, or one comes from a file.
            Denied: the caller may not delete one.
            UnsupportedVersion: as ``AccessChanges.alter``.
            HeadraceError: as ``Writer.decide``.
        """
        unique = list(dict.fromkeys(ids))
        if len(unique) > ROWS_MAX:
            raise Rejected(f"{ROWS_MAX} keys are the most that are deleted at one time, not {len(unique)}; split it")

        def decision() -> Decision | None:
            view = self._rows.view()
            _check_deletable(view, unique, asked_by(view, rights))
            if not unique:
                return None
            state = Put(records.access_key(STATE), write_state(view.mode, view.access.generation + 1, new_uuid()))
            operations = (Delete(records.access_key(f"{KEYS}{id}")) for id in unique)
            return Decision((state, *operations), (self._rows.unchanged(STATE),))

        changed = self._rows.compare({f"{KEYS}{id}": b"" for id in unique})
        if await self._writer.decide(decision):
            tell_rows(changed)
            extra = {"by": str(rights.caller.principal), "key_ids": unique[:_NAMED_IN_LOG], "keys": len(unique)}
            log.info("keys were deleted", extra=extra)

    async def forget_expired(self) -> None:
        """
        Delete keys that have been over for a day; until then who shows one is told that it is over.

        Raises:
            HeadraceError: as ``Writer.decide``.
        """
        while await self._writer.decide(self._old_keys_deletion):
            pass

    async def end_breakglass(self) -> None:
        """
        Take the role of break-glass back once its key is over, also where nobody ends it.

        Raises:
            HeadraceError: as ``Writer.decide``.
        """
        if await self._writer.decide(self._lapse):
            log.info("audit: break-glass is over, and its role was taken back")

    def _lapse(self) -> Decision | None:
        rows = self._follower.mirror.image.access
        if not breakglass.is_open(rows):
            return None
        due = breakglass.lapse(rows, self._follower.access.keys.values(), self._clock.now_ms(), new_uuid())
        if not due:
            return None
        return Decision(records.access_operations(due), (self._rows.unchanged(STATE),))

    def _old_keys_deletion(self) -> Decision | None:
        mirror = self._follower.mirror
        before_ms = self._clock.now_ms() - DAY_MS
        view = self._follower.access
        over = [id for id, key in view.keys.items() if key.expired(before_ms)]
        keys = [key for key in (records.access_key(f"{KEYS}{id}") for id in over) if key in mirror.raw][:CHUNK]
        if not keys:
            return None
        seen = Put(records.REMOVAL_KEY, records.encode_number(view.access.generation))
        compares = tuple(Unchanged(key, mirror.mod_revision(key)) for key in keys)
        return Decision((seen, *map(Delete, keys)), compares)


def _check_deletable(view: View, ids: Sequence[KeyId], by: Caller | None) -> None:
    owners: dict[Principal, KeyId] = {}
    for id in ids:
        if id not in view.keys:
            raise _unknown(id)
        owners.setdefault(view.keys[id].owner, id)
    for owner, id in owners.items():
        if by is not None:
            _check_keeper(view, owner, id, by)
    for id in ids:
        if id in view.configured:
            raise Rejected(f"API key {id} comes from the controllers' admin_key_file; take it out there")


def _unknown(id: KeyId) -> NotFound:
    return NotFound(f"there is no API key {id[:80]!r}; nothing was deleted")


def _check_keeper(view: View, owner: Principal, id: KeyId, by: Caller) -> None:
    """Whether it may delete keys of this owner; who may not even list them is told that there is none."""
    try:
        check_keeps_keys(view.access, owner, by)
    except Denied:
        sees = Decisions(view.access).standing(by)
        if sees.decide(Operation.DESCRIBE_TOKENS, ResourceType.PRINCIPAL, str(owner)):
            raise
        raise _unknown(id) from None


def _end_with(shown: ApiKey | None, owner: Principal) -> int | None:
    """When a key of ``owner`` that is made with another ends at the latest; None: whenever is wanted."""
    if shown is None or shown.expires_ms is None or shown.owner != owner:
        return None
    return shown.expires_ms if shown.expires_ms - shown.created_ms <= DAY_MS else None


def _expiry(lifetime_ms: int, now_ms: int, end_ms: int | None) -> int | None:
    if end_ms is not None:
        if lifetime_ms == 0:
            return max(end_ms, now_ms + 1)
        if lifetime_ms == FOR_EVER or now_ms + lifetime_ms > end_ms:
            raise ClusterAuthorizationFailed(
                f"the key that is shown ends in {max(0, end_ms - now_ms)} ms, and another of the same owner that is "
                "made with it ends no later; no key was made"
            )
    if lifetime_ms == FOR_EVER:
        return None
    if not 0 <= lifetime_ms <= LIFETIME_MS_MAX:
        raise Rejected(f"lifetime_ms takes 1 to {LIFETIME_MS_MAX}, 0 for a year or -1 for ever, not {lifetime_ms}")
    return now_ms + (lifetime_ms or YEAR_MS)


def make_room(view: View, owner: Principal, now_ms: int, *, login: bool = False) -> Iterable[KeyId]:
    """
    Keys that go for a new one: those of the owner that are over, where it has as many as it may.

    Args:
        login: the new one is of a login, of which somebody has fewer: the oldest goes.

    Raises:
        Rejected: there are too many.
    """
    if len(view.keys) >= KEYS_MAX:
        raise Rejected(
            f"there are {KEYS_MAX} API keys, which is the most; delete some", code=ErrorCode.POLICY_VIOLATION
        )
    owned = [key for key in view.keys.values() if key.owner == owner]
    logins = sorted((key for key in owned if key.login), key=lambda key: key.created_ms)
    if login and len(logins) >= LOGINS_PER_OWNER_MAX:
        return [key.id for key in logins[: len(logins) - LOGINS_PER_OWNER_MAX + 1]][:CHUNK]
    if len(owned) < KEYS_PER_OWNER_MAX:
        return ()
    over = [key.id for key in owned if key.expired(now_ms)]
    if not over:
        raise Rejected(
            f"{owner} has {len(owned)} API keys, which is the most; delete some", code=ErrorCode.POLICY_VIOLATION
        )
    return over[:CHUNK]
