"""
Who gains and who loses by a step from one ``Access`` to the next.

Somebody is looked at alone, without groups. What its grants say is the same for all names of a pattern that no other
pattern of its grants names further, so looking once at each pattern that the step is about finds everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from headrace_common.core.access.changes import find_touched
from headrace_common.core.access.grants import Effect, Grant
from headrace_common.core.access.policy import Policy, allows, compile_policy
from headrace_common.core.access.principal import Grantee
from headrace_common.core.access.resources import (
    EVERY_NAME,
    OPERATIONS,
    Operation,
    OperationSet,
    Pattern,
    ResourceType,
    Target,
    operation_set,
    operations_in,
)
from headrace_common.core.access.state import Access, grantees_of


class Reach(NamedTuple):
    """Operations on all names of a pattern, but those that another pattern of the same somebody names further."""

    type: ResourceType
    pattern: Pattern
    operations: OperationSet
    host: str | None
    """None: from an address that none of its grants names."""

    def __str__(self) -> str:
        operations = ",".join(one.value for one in operations_in(self.operations))
        host = "" if self.host is None else f" from {self.host}"
        return f"{operations} {self.type.value} {self.pattern}{host}"


@dataclass(frozen=True, slots=True)
class Shift:
    """What one principal, one group or everyone of a type gains and loses."""

    grantee: Grantee
    gains: tuple[Reach, ...]
    loses: tuple[Reach, ...]


def find_shifts(before: Access, after: Access) -> Iterator[Shift]:
    """Of all whom the step is about, those that gain or lose something; by their text."""
    for grantee in find_touched(before, after):
        old, new = _View(before, grantee), _View(after, grantee)
        changed = old.grants ^ new.grants
        if (old.is_blocked, old.is_super) != (new.is_blocked, new.is_super):
            changed |= _EVERYTHING
        grants = old.grants | new.grants
        regions = sorted(_regions(changed, grants), key=lambda target: (target.type.slot, str(target.pattern)))
        hosts = _hosts(changed, grants)
        gains = tuple(_differences(new, old, regions, hosts))
        loses = tuple(_differences(old, new, regions, hosts))
        if gains or loses:
            yield Shift(grantee, gains, loses)


class _View:
    """One grantee at one generation."""

    def __init__(self, access: Access, grantee: Grantee) -> None:
        grantees = grantees_of(grantee)
        self.is_blocked, self.is_super = access.is_blocked(grantees), access.is_super(grantees)
        self.grants = frozenset(access.grants(grantees))
        self._policies: dict[str | None, Policy] = {}

    def operations(self, target: Target, host: str | None) -> int:
        """What may be done with what no other pattern names further."""
        if self.is_blocked or self.is_super:
            return 0 if self.is_blocked else OPERATIONS[target.type]
        if host not in self._policies:
            self._policies[host] = compile_policy(self.grants, host)
        bits = self._policies[host].bits_on(*target)
        asked = operations_in(OPERATIONS[target.type])
        return operation_set(*(operation for operation in asked if allows(bits, operation)))


def _regions(changed: frozenset[Grant], grants: frozenset[Grant]) -> set[Target]:
    """The patterns on which the changed grants say something."""
    said = compile_policy(replace(grant, host=None) for grant in changed)
    mentioned = {Target(grant.type, grant.pattern) for grant in changed | grants}
    return {target for target in mentioned if said.bits_on(*target)}


def _hosts(changed: frozenset[Grant], grants: frozenset[Grant]) -> list[str | None]:
    hosts = {grant.host for grant in changed}
    if None in hosts:
        hosts |= {grant.host for grant in grants}
    return [None, *sorted(host for host in hosts if host is not None)]


def _differences(more: _View, less: _View, regions: list[Target], hosts: list[str | None]) -> Iterator[Reach]:
    for target in regions:
        anywhere = 0
        for host in hosts:
            found = more.operations(target, host) & ~less.operations(target, host) & ~anywhere
            if host is None:
                anywhere = found
            if found:
                yield Reach(target.type, target.pattern, OperationSet(found), host)


_EVERYTHING: Final = frozenset(
    Grant(Effect.DENY, operation_set(Operation.ALL), type, EVERY_NAME) for type in ResourceType
)
"""A block, or the role ``superuser``, is about every pattern."""
