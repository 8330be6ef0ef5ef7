"""
Changes of who may do what: batches, whole or not at all, as the next ``Access``. Whether somebody may make one, and
what it means for people, is ``review``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

from headrace_common.core.access.grants import Grant
from headrace_common.core.access.principal import Grantee, Principal, PrincipalType
from headrace_common.core.access.roles import BUILT_IN_ROLES, Binding, Role
from headrace_common.core.access.state import Access
from headrace_common.core.errors import Conflict, ErrorCode, NotFound, Rejected

T = TypeVar("T")

BATCH_MAX: Final = 1_000
GRANTS_MAX: Final = 100_000
"""Rules and bindings of all."""
GRANTS_PER_GRANTEE_MAX: Final = 10_000
"""Its rules, and what its roles come down to."""
HOSTS_PER_GRANTEE_MAX: Final = 100
ROLES_MAX: Final = 1_000
BLOCKS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Rule:
    """A grant for somebody: one of Kafka's ACLs."""

    grantee: Grantee
    grant: Grant


@dataclass(frozen=True, slots=True)
class Block:
    """Somebody may do nothing, whatever else is said of it; of a group, all who have it."""

    principal: Principal


Item: TypeAlias = Rule | Binding | Role | Block


@dataclass(frozen=True, slots=True)
class Put:
    """Make something so. What is so already stays; a role takes the place of the one of its name."""

    item: Item


@dataclass(frozen=True, slots=True)
class Remove:
    """Undo something that is so, given exactly; of a role the name counts."""

    item: Item
    cascade: bool = False
    """Of a role: its bindings go with it."""


Change: TypeAlias = Put | Remove


class _Draft:
    """An ``Access`` under way."""

    def __init__(self, access: Access) -> None:
        self.rules = dict(access.rules)
        self.bindings = dict(access.bindings)
        self.roles = dict(access.roles)
        self.blocked = set(access.blocked)

    def put(self, item: Item) -> None:
        match item:
            case Rule(grantee, grant):
                _check_grantee(grantee)
                self.rules[grantee] = self.rules.get(grantee, frozenset()) | {grant}
            case Binding(grantee):
                _check_grantee(grantee)
                self._role(item.role).check_targets(item.targets)
                self.bindings[grantee] = self.bindings.get(grantee, frozenset()) | {item}
            case Role(name):
                if name in BUILT_IN_ROLES:
                    raise Rejected(f"role {name!r} is built in; give yours another name")
                if item.fixed or item.everything:
                    raise Rejected("roles of one's own give operations on what they are bound to, nothing else")
                for binding in self._bindings_of(name):
                    item.check_targets(binding.targets)
                self.roles[name] = item
            case Block(principal):
                _check_grantee(principal)
                self.blocked.add(principal)

    def remove(self, item: Item, cascade: bool) -> None:
        match item:
            case Rule(grantee, grant):
                _take_out(self.rules, grantee, grant, f"{grantee} has no rule: {grant}")
            case Binding(grantee):
                _take_out(self.bindings, grantee, item, f"{grantee} does not have {item}")
            case Role(name):
                if self.roles.pop(name, None) is None:
                    raise NotFound(f"there is no role {name!r} of one's own")
                bindings = self._bindings_of(name)
                if bindings and not cascade:
                    raise Conflict(
                        f"role {name!r} is bound to {bindings[0].grantee}; unbind it, or remove with --cascade"
                    )
                for binding in bindings:
                    _take_out(self.bindings, binding.grantee, binding, "")
            case Block(principal):
                if principal not in self.blocked:
                    raise NotFound(f"{principal} is not blocked")
                self.blocked.remove(principal)

    def _role(self, name: str) -> Role:
        role = BUILT_IN_ROLES.get(name) or self.roles.get(name)
        if role is None:
            raise NotFound(
                f"there is no role {name[:80]!r}; there are {', '.join([*BUILT_IN_ROLES, *self.roles][:30])}"
            )
        return role

    def _bindings_of(self, role: str) -> list[Binding]:
        return [one for bindings in self.bindings.values() for one in bindings if one.role == role]


def apply(access: Access, batch: Sequence[Change]) -> Access:
    """
    What is so after a batch, in its order; the generation is the next one.

    Raises:
        Rejected: something of it cannot be, or is over a bound.
        NotFound: something that it removes, or a role that it gives, is not there.
        Conflict: a role that it removes is bound.
    """
    if len(batch) > BATCH_MAX:
        raise _too_many("a batch", "changes", len(batch), BATCH_MAX)
    draft = _Draft(access)
    for change in batch:
        match change:
            case Put(item):
                draft.put(item)
            case Remove(item, cascade):
                draft.remove(item, cascade)
    after = replace(
        access,
        generation=access.generation + 1,
        rules=draft.rules,
        bindings=draft.bindings,
        roles=draft.roles,
        blocked=frozenset(draft.blocked),
    )
    _check_bounds(after, find_touched(access, after))
    return after


def find_touched(before: Access, after: Access) -> list[Grantee]:
    """Whose rights the step from the one to the other is about, by their text."""
    changed = {
        one
        for old, new in ((before.rules, after.rules), (before.bindings, after.bindings))
        for one in old.keys() | new.keys()
        if old.get(one) is not new.get(one)
    }
    roles = {name for name in before.roles.keys() | after.roles.keys() if before.role(name) != after.role(name)}
    if roles:
        bound = (binding for bindings in after.bindings.values() for binding in bindings)
        changed |= {binding.grantee for binding in bound if binding.role in roles}
    return sorted(changed | (before.blocked ^ after.blocked), key=str)


def _check_grantee(grantee: Grantee) -> None:
    if grantee.type is PrincipalType.NODE:
        raise Rejected(f"{grantee} is a node; what nodes may do is fixed, and no rule is about them")


def _check_bounds(after: Access, touched: Iterable[Grantee]) -> None:
    for grantee in touched:
        grants = list(after.given_to(grantee))
        if len(grants) > GRANTS_PER_GRANTEE_MAX:
            raise _too_many(str(grantee), "grants", len(grants), GRANTS_PER_GRANTEE_MAX)
        hosts = {grant.host for grant in grants}
        if len(hosts) > HOSTS_PER_GRANTEE_MAX:
            raise _too_many(str(grantee), "hosts in its rules", len(hosts), HOSTS_PER_GRANTEE_MAX)
    total = sum(map(len, after.rules.values())) + sum(map(len, after.bindings.values()))
    for what, count, most in (
        ("rules and bindings", total, GRANTS_MAX),
        ("roles", len(after.roles), ROLES_MAX),
        ("blocked principals", len(after.blocked), BLOCKS_MAX),
    ):
        if count > most:
            raise _too_many("the cluster", what, count, most)


def _too_many(who: str, what: str, count: int, most: int) -> Rejected:
    return Rejected(f"{who} would have {count} {what}; {most} is the most", code=ErrorCode.POLICY_VIOLATION)


def _take_out(held: dict[Grantee, frozenset[T]], grantee: Grantee, one: T, missing: str) -> None:
    rest = held.get(grantee, frozenset())
    if one not in rest:
        raise NotFound(missing)
    if len(rest) == 1:
        del held[grantee]
    else:
        held[grantee] = rest - {one}
