"""
Users with passwords, made, changed and taken away, for one term of the active controller. Passwords never come here:
who sets one sends verifiers.

Each is one transaction that compares the row ``state``, as for keys. What takes something from somebody is a new
generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace_common.core.access.changes import Block, Change, Remove, Rule
from headrace_common.core.access.control import Rights
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.review import check_key, plan
from headrace_common.core.access.rows import (
    KEYS,
    SALTING,
    STATE,
    USERS,
    View,
    changed_rows,
    write_salting,
    write_state,
    write_user,
)
from headrace_common.core.access.scram import Verifier, check_user_name
from headrace_common.core.access.state import Caller
from headrace_common.core.access.users import GRACE_MS_MAX, SALTING_BYTES, USERS_MAX, User, make_password
from headrace_common.core.errors import ClusterAuthorizationFailed, Conflict, ErrorCode, NotFound, Rejected
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import new_id, new_secret, new_uuid
from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.core.store import CreatedAt, Delete, Put
from headrace_controller.core.store import Operation as Write
from headrace_controller.engine.access import ROWS_MAX, check_fits
from headrace_controller.engine.access_rows import AccessRows, asked_by
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.writer import CHUNK, Decision, Writer

log = logger(__name__)


class Users:
    """All of them during one term."""

    def __init__(self, writer: Writer, follower: Follower, clock: Clock) -> None:
        self._writer = writer
        self._follower = follower
        self._rows = AccessRows(follower)
        self._clock = clock

    async def create(self, name: str, verifiers: Sequence[Verifier], rights: Rights) -> None:
        """
        Make a user.

        Raises:
            Rejected: nobody can be called so, or there are too many.
            Conflict: there is one of this name.
            Denied: the caller may not: a password is a way to act as that user.
            UnsupportedVersion: as ``AccessChanges.alter``.
            HeadraceError: as ``Writer.decide``.
        """
        now_ms = round(self._clock.now_ms())
        user = User(name, new_id(), now_ms, make_password(new_id(), now_ms, verifiers))
        check_user_name(name)
        key, row = write_user(user)
        put = Put(records.access_key(key), row)

        def decision() -> Decision:
            view = self._rows.view()
            _check_keeper(view, user.principal, asked_by(view, rights), Operation.ALTER)
            if name in view.users:
                raise Conflict(f"there is a user {name!r}; headrace user passwd {name} gives it another password")
            if len(view.users) >= USERS_MAX:
                raise Rejected(f"there are {USERS_MAX} users, which is the most", code=ErrorCode.POLICY_VIOLATION)
            salting = records.access_key(SALTING)
            secret = [] if view.salting else [Put(salting, write_salting(new_secret(SALTING_BYTES)))]
            new = (CreatedAt(one.key, 0) for one in (put, *secret))
            return Decision((put, *secret), (self._rows.unchanged(STATE), *new))

        await self._writer.decide(decision)
        log.info("audit: a user was made", extra={"by": str(rights.caller.principal), "user": name})

    async def change_password(self, name: str, verifiers: Sequence[Verifier], grace_ms: int, rights: Rights) -> None:
        """
        Give a user another password. Sessions and logins that the old one began end with it.

        Args:
            name: empty: of the caller.
            grace_ms: how long the old one still counts.

        Raises:
            NotFound: there is no such user.
            Rejected: the grace is out of bounds, or the new verifiers have other salts than those of before.
            Denied, UnsupportedVersion, HeadraceError: as ``create``.
        """
        if not 0 <= grace_ms <= GRACE_MS_MAX:
            raise Rejected(f"grace_ms takes 0 to {GRACE_MS_MAX}, a week, not {grace_ms}")
        principal = Principal(PrincipalType.USER, name) if name else rights.caller.principal
        now_ms = round(self._clock.now_ms())
        password = make_password(new_id(), now_ms, verifiers)

        def decision() -> Decision:
            view = self._rows.view()
            _check_keeper(view, principal, asked_by(view, rights), Operation.CREATE_TOKENS)
            before = _find(view, principal)
            if grace_ms and not password.has_salts_of(before.password):
                raise Rejected(
                    "with a grace the new password has the salts of the one of before, which ListUsers tells: who logs "
                    "in is sent one salt, whichever it has"
                )
            old = before.password if grace_ms else None
            user = replace(before, password=password, old=old, old_until_ms=now_ms + grace_ms if grace_ms else 0)
            return self._decide(view, [_put_user(user)])

        await self._writer.decide(decision)
        extra = {"by": str(rights.caller.principal), "user": principal.name, "grace_ms": grace_ms}
        log.info("audit: a password was changed", extra=extra)

    async def delete(self, name: str, rights: Rights, *, cascade: bool) -> None:
        """
        Take a user away; with ``cascade`` all that is said of it too, so that one of the same name has nothing of it.

        Raises:
            NotFound: there is no such user.
            Conflict: something is said of it, and ``cascade`` is False.
            Rejected: there is too much of it, or nobody could change rules any more.
            Denied, UnsupportedVersion, HeadraceError: as ``create``.
        """
        principal = Principal(PrincipalType.USER, name)

        def decision() -> Decision:
            view = self._rows.view()
            by = asked_by(view, rights)
            _check_keeper(view, principal, by, Operation.ALTER)
            _find(view, principal)
            keys = [key for key in view.keys.values() if key.owner == principal and not key.login]
            changes = list(_said_of(view, principal))
            if (changes or keys) and not cascade:
                raise Conflict(
                    f"{principal} has {len(changes)} rules, roles or blocks and {len(keys)} API keys, which one of the "
                    "same name would have; take them away first, or all at once with --cascade"
                )
            if any(key.id in view.configured for key in keys):
                raise Rejected(f"{principal} has keys of the controllers' admin_key_file; take them out there first")
            if len(keys) > ROWS_MAX // 2:
                raise Rejected(f"{principal} has {len(keys)} API keys; delete them first, with headrace key delete")
            after = plan(view.access, changes, by).after if changes else view.access
            rows = changed_rows(view.access, after)
            check_fits(rows)
            gone = [Delete(records.access_key(f"{KEYS}{key.id}")) for key in keys]
            user = Delete(records.access_key(f"{USERS}{name}"))
            return self._decide(view, [user, *gone, *records.access_operations(rows)])

        await self._writer.decide(decision)
        extra = {"by": str(rights.caller.principal), "user": name, "cascade": cascade}
        log.info("audit: a user was taken away", extra=extra)

    async def forget_old(self) -> None:
        """
        Delete what is kept of passwords that do not count any more.

        Raises:
            HeadraceError: as ``Writer.decide``.
        """
        while await self._writer.decide(self._old_passwords_deletion):
            pass

    def _old_passwords_deletion(self) -> Decision | None:
        view, now_ms = self._follower.access, self._clock.now_ms()
        over = [user for user in view.users.values() if user.old is not None and now_ms >= user.old_until_ms][:CHUNK]
        if not over or view.faults:
            return None
        compares = [self._rows.unchanged(f"{USERS}{user.name}") for user in over]
        return Decision(tuple(_put_user(replace(user, old=None, old_until_ms=0)) for user in over), tuple(compares))

    def _decide(self, view: View, operations: Sequence[Write]) -> Decision:
        state = Put(records.access_key(STATE), write_state(view.mode, view.access.generation + 1, new_uuid()))
        return Decision((state, *operations), (self._rows.unchanged(STATE),))


def _put_user(user: User) -> Put:
    name, row = write_user(user)
    return Put(records.access_key(name), row)


def _find(view: View, principal: Principal) -> User:
    user = view.users.get(principal.name) if principal.type is PrincipalType.USER else None
    if user is None:
        raise NotFound(f"{principal} has no password; headrace user list shows who has")
    return user


def _check_keeper(view: View, owner: Principal, by: Caller | None, own: Operation) -> None:
    """
    Who sets a password can act as its user. ``own``: what is asked of the user itself.

    Raises:
        ClusterAuthorizationFailed: it may not.
    """
    if by is None:
        return
    if by.scope is not None:
        raise ClusterAuthorizationFailed(
            f"a key of {by.principal} with a scope sets no passwords, which have none; nothing was changed"
        )
    check_key(view.access, owner, None, by)
    operation = own if owner == by.principal else Operation.ALTER
    if not Decisions(view.access).standing(by).decide(operation, ResourceType.PRINCIPAL, str(owner)):
        raise ClusterAuthorizationFailed(f"{by.principal} may not {operation.value} PRINCIPAL {owner}")


def _said_of(view: View, principal: Principal) -> Iterable[Change]:
    access = view.access
    for grant in access.rules.get(principal, ()):
        yield Remove(Rule(principal, grant))
    for binding in access.bindings.get(principal, ()):
        yield Remove(binding)
    if principal in access.blocked:
        yield Remove(Block(principal))
