"""
What a batch of changes means before it is made: whether somebody may make it, who gains and who loses, and that there
is still somebody who can change rules afterwards. The controller calls ``plan`` for each batch, and for dry runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

from headrace_common.core.access.changes import Block, Change, Rule, apply, find_touched
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.gains import Shift, find_shifts
from headrace_common.core.access.grants import Effect, Grant, Scope
from headrace_common.core.access.policy import Policy, allows, compile_policy
from headrace_common.core.access.principal import ANONYMOUS, Everyone, Grantee, Principal
from headrace_common.core.access.resources import (
    EVERY_NAME,
    INTERNAL_PREFIX,
    MEANINGLESS,
    OPERATIONS,
    Operation,
    PatternKind,
    ResourceType,
    literal,
    operations_in,
)
from headrace_common.core.access.roles import Binding, Role
from headrace_common.core.access.state import Access, Caller, grantees_of
from headrace_common.core.errors import ClusterAuthorizationFailed, ErrorCode, Rejected

SHIFTS_MAX: Final = 1_000
_O: Final = Operation


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch that may be made."""

    after: Access
    shifts: tuple[Shift, ...]
    """Who gains and who loses what."""
    more: bool
    """There are more shifts than ``SHIFTS_MAX``."""


def plan(access: Access, batch: Sequence[Change], by: Caller | None) -> Plan:
    """
    What is so after a batch that ``by`` wants to make.

    Args:
        by: None: the system itself, which is asked for no rights: break-glass, and what the chart declares.

    Raises:
        Rejected: something of it cannot be, is over a bound, or nobody could change rules any more.
        NotFound, Conflict: as ``changes.apply``.
        ClusterAuthorizationFailed: ``by`` may not change this, or would give more than it has.
    """
    if by is not None:
        _check_right(access, batch, by)  # before all else, which tells what there is
    after = apply(access, batch)
    if by is not None:
        _check_unbinding(access, after, batch, by)
        _check_giving(access, after, by)
    _check_not_locked_out(after)
    shifts = tuple(islice(find_shifts(access, after), SHIFTS_MAX + 1))
    return Plan(after, shifts[:SHIFTS_MAX], more=len(shifts) > SHIFTS_MAX)


def check_key(access: Access, owner: Principal, scope: Scope | None, by: Caller) -> None:
    """
    Check that ``by`` may make a key of ``owner`` with this scope. A key of somebody else is a way to act as that one.

    Raises:
        ClusterAuthorizationFailed: it may not, or the key would give it more than it has.
    """
    check_keeps_keys(access, owner, by)
    if owner == by.principal or Decisions(access).standing(by).decide(_O.ESCALATE, ResourceType.PRINCIPAL, str(owner)):
        return
    has, whose = _Possessions(access, by), grantees_of(owner)
    if scope is None and access.is_super(whose) and not has.everything:
        raise _gives_more(by, owner, "everything", "No key was made")
    for grant in (grant for one in whose for grant in access.given_to(one)) if scope is None else scope.grants:
        if grant.effect is Effect.ALLOW and not has.all_of(grant):
            raise _gives_more(by, owner, str(grant), "No key was made")


def check_keeps_keys(access: Access, owner: Principal, by: Caller) -> None:
    """
    Check that ``by`` may make and delete keys of ``owner``: CREATE_TOKENS for one's own, which everybody has, and ALTER
    for those of others.

    Raises:
        ClusterAuthorizationFailed: it may not.
    """
    operation = _O.CREATE_TOKENS if owner == by.principal else _O.ALTER
    if not Decisions(access).standing(by).decide(operation, ResourceType.PRINCIPAL, str(owner)):
        raise ClusterAuthorizationFailed(
            f"{by.principal} may not {operation.value} PRINCIPAL {owner}; its keys are as before{_how(by)}"
        )


def narrow_scope(scope: Scope | None, by: Caller) -> Scope | None:
    """
    The scope of a key that ``by`` makes: at most that of the key which it calls with.

    Raises:
        ClusterAuthorizationFailed: ``scope`` is wider.
    """
    if by.scope is None or scope is None:
        return by.scope if scope is None else scope
    has = _Possessions(Access(), by)
    for grant in scope.grants:
        if not has.in_scope(grant):
            raise ClusterAuthorizationFailed(
                f"the key that {by.principal} calls with has a scope without {grant}; no key was made"
            )
    return scope


def _how(by: Caller) -> str:
    """What is added to a refusal of somebody whom a node vouches for."""
    if not by.vouched:
        return ""
    return ". Neither a password nor a certificate alone gives such a right: use an API key, or headrace login"


def _subject(change: Change) -> str:
    """The resource of type PRINCIPAL that a change is about."""
    match change.item:
        case Rule(grantee) | Binding(grantee):
            return str(grantee)
        case Block(principal):
            return str(principal)
        case Role() as role:
            return str(role)


def _check_right(access: Access, batch: Sequence[Change], by: Caller) -> None:
    standing = Decisions(access).standing(by)
    for subject in sorted({_subject(change) for change in batch}):
        if not standing.decide(Operation.ALTER, ResourceType.PRINCIPAL, subject):
            raise ClusterAuthorizationFailed(
                f"{by.principal} may not ALTER PRINCIPAL {subject}; nothing was changed{_how(by)}"
            )


def _check_unbinding(access: Access, after: Access, batch: Sequence[Change], by: Caller) -> None:
    """Whoever loses a role because the role goes is somebody whose rules are changed, as if the change named it."""
    standing, named = Decisions(access).standing(by), {_subject(change) for change in batch}
    for grantee, bindings in access.bindings.items():
        if after.bindings.get(grantee) is bindings or str(grantee) in named:
            continue
        if not standing.decide(Operation.ALTER, ResourceType.PRINCIPAL, str(grantee)):
            raise ClusterAuthorizationFailed(
                f"the role is bound to somebody whom {by.principal} may not ALTER; have it unbound first. Nothing was "
                "changed"
            )


def _check_giving(access: Access, after: Access, by: Caller) -> None:
    standing = Decisions(access).standing(by)
    has = _Possessions(access, by)
    for grantee in find_touched(access, after):
        if standing.decide(Operation.ESCALATE, ResourceType.PRINCIPAL, str(grantee)):
            continue
        freed = grantee in access.blocked and grantee not in after.blocked
        if after.is_super((grantee,)) and (freed or not access.is_super((grantee,))) and not has.everything:
            raise _gives_more(by, grantee, "everything")
        for grant in _given(access, after, grantee, freed):
            if not has.all_of(grant):
                raise _gives_more(by, grantee, str(replace(grant, effect=Effect.ALLOW)))


def _given(access: Access, after: Access, grantee: Grantee, freed: bool) -> list[Grant]:
    """What a step adds to what somebody may do: new allows, and what denies no longer keep from it."""
    old, new = frozenset(access.given_to(grantee)), frozenset(after.given_to(grantee))
    allows = (grant for grant in (new if freed else new - old) if grant.effect is Effect.ALLOW)
    lifted = [grant for grant in old - new if grant.effect is Effect.DENY]
    shown = (deny for deny in lifted if not deny.pattern.internal_alone)
    return sorted([*allows, *shown, *(one for deny in lifted for one in _uncovered(after, deny))], key=str)


def _uncovered(after: Access, deny: Grant) -> Iterator[Grant]:
    """
    Allows of single internal names, whosever, that a wide deny stood before: a wide allow does not reach these names,
    so who has the one may not have the other.
    """
    if deny.pattern.kind is PatternKind.LITERAL:
        return
    for grantee in after.rules.keys() | after.bindings.keys():
        for grant in after.given_to(grantee):
            internal = grant.pattern.kind is PatternKind.LITERAL and grant.pattern.name.startswith(INTERNAL_PREFIX)
            same = grant.effect is Effect.ALLOW and grant.type is deny.type
            if internal and same and deny.pattern.covers(grant.pattern):
                yield grant


def _gives_more(
    by: Caller, grantee: Grantee, what: str, outcome: str = "Nothing was changed"
) -> ClusterAuthorizationFailed:
    return ClusterAuthorizationFailed(
        f"{by.principal} would give {grantee} more than it has itself ({what}); somebody who has this, or ESCALATE on "
        f"PRINCIPAL {grantee}, may. {outcome}"
    )


class _Possessions:
    """What somebody who changes rules has, wherever those whom it gives something may call from."""

    def __init__(self, access: Access, by: Caller) -> None:
        self._grants = frozenset(access.grants(by.grantees))
        self._scope = None if by.scope is None else by.scope.grants
        self._is_super = access.is_super(by.grantees)
        self._policies: dict[tuple[bool, str | None], Policy] = {}

    @property
    def everything(self) -> bool:
        return self._is_super and self._scope is None

    def all_of(self, given: Grant) -> bool:
        """Whether it may itself do all that a grant allows, or keeps from others, to every name of its pattern."""
        if not self._is_super and not self._within(self._grants, given):
            return False
        return self.in_scope(given)

    def in_scope(self, given: Grant) -> bool:
        """Whether the key that it calls with may be used for all that a grant allows."""
        return self._scope is None or self._within(self._scope, given)

    def _within(self, grants: frozenset[Grant], given: Grant) -> bool:
        key = (grants is self._scope, given.host)
        if key not in self._policies:
            self._policies[key] = compile_policy(_from_host(grants, given.host), given.host)
        bits = self._policies[key].bits_on(given.type, given.pattern)
        if given.pattern.kind is not PatternKind.LITERAL:
            for deny in grants:  # what is denied of some of these names is not had of all
                if deny.effect is Effect.DENY and deny.type is given.type and given.pattern.covers(deny.pattern):
                    bits |= deny.bits
        whole = given.operations & Operation.ALL.bit
        asked = operations_in(OPERATIONS[given.type] if whole else given.operations & ~MEANINGLESS)
        return all(allows(bits, operation) for operation in asked)


def _from_host(grants: Iterable[Grant], host: str | None) -> Iterator[Grant]:
    """For grants from any host, each host's denies count; its allows do not."""
    for grant in grants:
        yield replace(grant, host=None) if host is None and grant.effect is Effect.DENY else grant


def _check_not_locked_out(after: Access) -> None:
    candidates: Iterable[Grantee] = chain(after.super_users, after.bindings, after.rules)
    if not any(can_change_rules(after, one) for one in candidates):
        raise Rejected(
            "nobody could change rules after this: give somebody the role security or superuser in the same batch, "
            "for example headrace access bind User:NAME security; or leave out what takes it from the last one",
            code=ErrorCode.POLICY_VIOLATION,
        )


def can_change_rules(access: Access, one: Grantee) -> bool:
    """Whether it can change rules of all principals, its own included; from some address at least."""
    grantees = grantees_of(one)
    if one == ANONYMOUS or access.is_blocked(grantees):
        return False
    if access.is_super(grantees):
        return True
    wide = (grant for grant in access.given_to(one) if grant.pattern == EVERY_NAME)
    if not any(g.type is ResourceType.PRINCIPAL and g.bits & Operation.ALTER.allowed_by for g in wide):
        return False
    grants = frozenset(access.grants(grantees))
    for host in {None, *(grant.host for grant in grants)}:
        policy = compile_policy(grants, host)
        if all(
            allows(policy.bits_on(ResourceType.PRINCIPAL, pattern), Operation.ALTER)
            for pattern in (EVERY_NAME, *([] if isinstance(one, Everyone) else [literal(str(one))]))
        ):
            return True
    return False
