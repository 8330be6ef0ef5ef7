"""
Who may do what, and with which keys, as the image has it: told to those who may know it. Changes go to the active
controller as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from headrace_admin.core.access_pages import make_page
from headrace_common.core.access.api_keys import ApiKey
from headrace_common.core.access.changes import Rule
from headrace_common.core.access.control import Rights
from headrace_common.core.access.explain import Explanation, Holders, explain, who_can
from headrace_common.core.access.principal import Grantee, Principal, PrincipalType, parse_grantee
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.access.roles import BUILT_IN_ROLES, Binding, Role
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Caller
from headrace_common.core.access.users import User
from headrace_common.core.errors import Rejected
from headrace_common.core.quotas.entities import Entity, parse_entity
from headrace_common.core.quotas.kinds import Quota

FAULTS_MAX: Final = 100
HOLDERS_MAX: Final = 10_000
_HOLDERS: Final = 1_000
Views: TypeAlias = Callable[[], View]
"""The rows of the newest image."""


@dataclass(frozen=True, slots=True)
class Described:
    """A page of what is said of one principal, or of all that somebody may know of."""

    mode: Mode
    generation: int
    rules: tuple[Rule, ...]
    """By principal."""
    bindings: tuple[Binding, ...]
    roles: tuple[Role, ...]
    """One's own by name, then, on the first page, the built-in ones."""
    blocked: tuple[Principal, ...]
    super_users: tuple[Principal, ...]
    faults: tuple[str, ...]
    """Rows that cannot be read, and why; for those who may describe the cluster."""
    next: str = ""
    """What the next page is asked after; empty: this is the last."""


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key, and whether the controllers' files name it."""

    key: ApiKey
    configured: bool


@dataclass(frozen=True, slots=True)
class ListedUser:
    """A user with a password, and whether it is blocked."""

    user: User
    blocked: bool


class Accesses:
    """Any number of calls at one time on one event loop; none of them waits."""

    def __init__(self, views: Views) -> None:
        self._views = views

    @property
    def mode(self) -> Mode:
        return self._views().mode

    def is_super(self, caller: Caller) -> bool:
        """Whether it may do everything: a super user, by a key or token for everything."""
        return caller.scope is None and not caller.vouched and self._views().access.is_super(caller.grantees)

    def describe(self, rights: Rights, principal: str = "", *, limit: int = 0, after: str = "") -> Described:
        """
        A page of all that the caller may know; or of what is said of one principal, group, or everyone of a type.

        Args:
            limit, after: as ``make_page`` takes them.

        Raises:
            Rejected: this is no principal, or no page.
            Denied: the caller may not know of this one.
        """
        view, of = self._views(), None
        if principal:
            of = parse_grantee(principal)
            rights.check(Operation.DESCRIBE, ResourceType.PRINCIPAL, str(of))
        page = make_page(view.access, lambda one: _shows(rights, one), of, limit, after)
        told = _beside(view, rights, of) if not after else _Beside()
        return Described(
            view.mode,
            view.access.generation,
            tuple(one for one in page.entries if isinstance(one, Rule)),
            tuple(one for one in page.entries if isinstance(one, Binding)),
            (*(one for one in page.entries if isinstance(one, Role)), *told.roles),
            tuple(one for one in page.entries if isinstance(one, Principal)),
            told.super_users,
            told.faults,
            page.next,
        )

    def keys(self, rights: Rights, owner: str = "") -> list[ListedKey]:
        """
        The keys of one owner, or of all whose keys the caller may see; by owner and id.

        Raises:
            Denied: the caller may not see those of this one.
        """
        view = self._views()
        if owner:
            rights.check_any(
                (Operation.DESCRIBE, ResourceType.PRINCIPAL, owner),
                (Operation.DESCRIBE_TOKENS, ResourceType.PRINCIPAL, owner),
            )
        found = [key for key in view.keys.values() if _shows_keys(rights, key.owner) and owner in {"", str(key.owner)}]
        return [
            ListedKey(key, key.id in view.configured) for key in sorted(found, key=lambda key: (str(key.owner), key.id))
        ]

    def quotas(self, entity: str = "") -> list[tuple[Entity, Quota, float]]:
        """
        What is set for one entity, or for all; by entity and name.

        Raises:
            Rejected: there can be no such entity.
        """
        values = self._views().quotas.values
        if entity:
            only = parse_entity(entity)
            values = {only: values.get(only, {})}
        found = [(of, quota, value) for of, given in values.items() for quota, value in given.items()]
        return sorted(found, key=lambda one: (str(one[0]), one[1].value))

    def users(self, rights: Rights, name: str = "") -> list[ListedUser]:
        """
        Users with passwords: one, or all that the caller may see; by name.

        Raises:
            Denied: the caller may not see this one.
        """
        view = self._views()
        if name:
            owner = str(Principal(PrincipalType.USER, name))
            rights.check_any(
                (Operation.DESCRIBE, ResourceType.PRINCIPAL, owner),
                (Operation.DESCRIBE_TOKENS, ResourceType.PRINCIPAL, owner),
            )
        found = [
            user for user in view.users.values() if name in {"", user.name} and _shows_keys(rights, user.principal)
        ]
        blocked = view.access.blocked
        return [ListedUser(user, user.principal in blocked) for user in sorted(found, key=lambda user: user.name)]

    def explain(
        self, principal: str, operation: Operation, type: ResourceType, name: str, host: str | None
    ) -> Explanation:
        """
        Why somebody may do something or not, by the rules, whatever the mode.

        Raises:
            Rejected: nobody calls as this, or from there.
        """
        asked = parse_grantee(principal)
        if not isinstance(asked, Principal) or asked.type is PrincipalType.NODE:
            raise Rejected(f"{asked} is decided about by no rule; name who calls, for example User:alice")
        name = CLUSTER_NAME if type is ResourceType.CLUSTER else name
        return explain(self._views().access, Caller(asked, host=host), operation, type, name)

    def who_can(self, rights: Rights, operation: Operation, type: ResourceType, name: str, limit: int = 0) -> Holders:
        """
        Who may do something by the rules, whatever the mode: those of whom the caller may know.

        Args:
            limit: at most so many; 0: 1,000.

        Raises:
            Rejected: these are too many.
        """
        if not 0 <= limit <= HOLDERS_MAX:
            raise Rejected(f"limit takes 0 ({_HOLDERS}) to {HOLDERS_MAX}, not {limit}")
        name = CLUSTER_NAME if type is ResourceType.CLUSTER else name
        access = self._views().access
        return who_can(access, operation, type, name, shows=lambda one: _shows(rights, one), limit=limit or _HOLDERS)


def _shows(rights: Rights, one: Grantee | Role) -> bool:
    return rights.shows(Operation.DESCRIBE, ResourceType.PRINCIPAL, str(one))


def _shows_keys(rights: Rights, owner: Principal) -> bool:
    return _shows(rights, owner) or rights.shows(Operation.DESCRIBE_TOKENS, ResourceType.PRINCIPAL, str(owner))


class _Beside(NamedTuple):
    """What stands on the first page, beside the entries."""

    roles: tuple[Role, ...] = ()
    super_users: tuple[Principal, ...] = ()
    faults: tuple[str, ...] = ()


def _beside(view: View, rights: Rights, of: Grantee | None) -> _Beside:
    access = view.access
    if of is not None:
        named = {binding.role for binding in access.bindings.get(of, ())}
        roles = tuple(role for name, role in BUILT_IN_ROLES.items() if name in named)
        return _Beside(roles, tuple(access.super_users & {of}))
    super_users = tuple(sorted((one for one in access.super_users if _shows(rights, one)), key=str))
    sees_faults = rights.shows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return _Beside(tuple(BUILT_IN_ROLES.values()), super_users, view.faults[:FAULTS_MAX] if sees_faults else ())
