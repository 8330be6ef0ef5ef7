"""
Everything that decides who may do what, at one generation, and who a caller is.

It is never changed: ``review.plan`` gives the next one, which shares what stayed the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from headrace_common.core.access.grants import Effect, Grant, Scope, host_of
from headrace_common.core.access.principal import ANONYMOUS, Everyone, Grantee, Principal, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType, literal, operation_set
from headrace_common.core.access.roles import BUILT_IN_ROLES, SUPERUSER, Binding, Role
from headrace_common.core.errors import Rejected

GROUPS_PER_CALLER_MAX: Final = 200
_OWN_TOKENS: Final = operation_set(Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a principal, the groups that its token names, the address that it calls from, the scope of its key."""

    principal: Principal
    groups: frozenset[Principal] = frozenset()
    host: str | None = None
    """As ``host_of`` writes it; None: not known, then grants for a host do not match."""
    scope: Scope | None = None
    """None: the credential may be used for all that the principal may do."""
    vouched: bool = False
    """A node says who it is, and shows nobody's proof: it changes neither who may what nor the cluster."""
    hash: int = field(init=False, repr=False, compare=False)
    """Computed once: sessions ask for each batch."""

    def __post_init__(self) -> None:
        if self.principal.type is PrincipalType.GROUP:
            raise Rejected(f"{self.principal} is a group; nobody calls as one")
        if len(self.groups) > GROUPS_PER_CALLER_MAX:
            raise Rejected(f"{self.principal} has {len(self.groups)} groups; {GROUPS_PER_CALLER_MAX} is the most")
        strange = next((group for group in self.groups if group.type is not PrincipalType.GROUP), None)
        if strange is not None:
            raise Rejected(f"{strange} is no group; a token names groups alone")
        if self.host is not None and host_of(self.host) != self.host:
            raise Rejected(f"host {self.host!r} is written {host_of(self.host)}")
        object.__setattr__(self, "hash", hash((self.principal, self.groups, self.host, self.scope, self.vouched)))

    def __hash__(self) -> int:
        return self.hash

    @property
    def grantees(self) -> frozenset[Grantee]:
        """Whose rules and bindings count for it."""
        return grantees_of(self.principal) | self.groups


def is_beyond_vouching(operation: Operation, type: ResourceType) -> bool:
    """What nobody does on the word of a node: else one that was broken into could make itself administrator."""
    return type is ResourceType.PRINCIPAL or (type is ResourceType.CLUSTER and operation is Operation.ALTER)


def grantees_of(one: Grantee) -> frozenset[Grantee]:
    """Whose rules and bindings count for somebody without groups; a group or everyone has its own alone."""
    whole = isinstance(one, Everyone) or one.type in {PrincipalType.GROUP, PrincipalType.NODE}
    return frozenset({one}) if whole else frozenset({one, Everyone(one.type)})


class Source(NamedTuple):
    """A grant, and where it comes from."""

    grantee: Grantee
    binding: Binding | None
    """None: it is a rule, or what everybody has."""
    grant: Grant


@dataclass(frozen=True, slots=True)
class Access:
    """Rules, bindings, own roles, blocks and super users. Whoever makes one by hand answers for its bounds."""

    generation: int = 0
    """Grows with each change."""
    rules: Mapping[Grantee, frozenset[Grant]] = field(default_factory=lambda: MappingProxyType({}))
    """Kafka's ACLs."""
    bindings: Mapping[Grantee, frozenset[Binding]] = field(default_factory=lambda: MappingProxyType({}))
    roles: Mapping[str, Role] = field(default_factory=lambda: MappingProxyType({}))
    """One's own, by name."""
    blocked: frozenset[Principal] = frozenset()
    super_users: frozenset[Principal] = frozenset()
    """From the controllers' settings; no change touches them."""

    def role(self, name: str) -> Role | None:
        return BUILT_IN_ROLES.get(name) or self.roles.get(name)

    def sources_of(self, grantee: Grantee) -> Iterator[Source]:
        """All grants of one and where they come from, in no order."""
        yield from self.given_sources(grantee)
        for grant in own_grants(grantee):
            yield Source(grantee, None, grant)

    def given_sources(self, grantee: Grantee) -> Iterator[Source]:
        """As ``sources_of``, but for what everybody has by being somebody."""
        for grant in self.rules.get(grantee, ()):
            yield Source(grantee, None, grant)
        for binding, grants in self._bound(grantee):
            for grant in grants:
                yield Source(grantee, binding, grant)

    def given_to(self, grantee: Grantee) -> Iterator[Grant]:
        """The grants of its rules and roles, in no order."""
        yield from self.rules.get(grantee, ())
        for _, grants in self._bound(grantee):
            yield from grants

    def grants(self, grantees: Iterable[Grantee]) -> Iterator[Grant]:
        """All grants of some, in no order; what a policy is compiled from."""
        for grantee in grantees:
            yield from self.given_to(grantee)
            yield from own_grants(grantee)

    def _bound(self, grantee: Grantee) -> Iterator[tuple[Binding, tuple[Grant, ...]]]:
        for binding in self.bindings.get(grantee, ()):
            role = self.role(binding.role)
            if role is not None:
                yield binding, role.grants(binding.targets)

    def is_blocked(self, grantees: Iterable[Grantee]) -> bool:
        return any(one in self.blocked for one in grantees)

    def is_super(self, grantees: Iterable[Grantee]) -> bool:
        """Whether one of them is a super user by the settings or by the role ``superuser``."""
        return any(
            one in self.super_users or any(binding.role == SUPERUSER for binding in self.bindings.get(one, ()))
            for one in grantees
        )


def own_grants(grantee: Grantee) -> tuple[Grant, ...]:
    """What everybody has by being somebody: keys of one's own."""
    nobody = isinstance(grantee, Everyone) or grantee.type in {PrincipalType.GROUP, PrincipalType.NODE}
    if nobody or grantee == ANONYMOUS:
        return ()
    return (Grant(Effect.ALLOW, _OWN_TOKENS, ResourceType.PRINCIPAL, literal(str(grantee))),)
