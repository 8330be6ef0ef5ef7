"""Grants: what rules (Kafka's ACLs), roles and scopes of keys all come down to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address, ip_address
from typing import Final

from headrace_common.core.access.resources import (
    DENY_SHIFT,
    INTERNAL_PREFIX,
    MEANINGLESS,
    OPERATIONS,
    Operation,
    OperationSet,
    Pattern,
    ResourceType,
    check_target,
    operations_in,
)
from headrace_common.core.errors import Rejected


class Effect(Enum):
    """Any deny that matches outweighs every allow."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Grant:
    """Allows or denies some operations on some resources. Making one that could never count raises ``Rejected``."""

    effect: Effect
    operations: OperationSet
    type: ResourceType
    pattern: Pattern
    host: str | None = None
    """The address that the call must come from, as ``host_of`` writes it; None: any."""
    bits: int = field(init=False, repr=False, compare=False)
    """The operations as a policy has them: denies above allows."""

    def __post_init__(self) -> None:
        taken = OPERATIONS[self.type] | Operation.ALL.bit
        if self.type is ResourceType.CLUSTER:
            taken |= MEANINGLESS
        if not self.operations or self.operations & ~taken:
            wrong = ", ".join(one.value for one in operations_in(self.operations & ~taken)) or "no operation"
            takes = ", ".join(one.value for one in operations_in(taken))
            raise Rejected(f"{self.type.value} has {takes}; there is no grant of {wrong}")
        check_target(self.type, self.pattern)
        if self.host is not None and host_of(self.host) != self.host:
            raise Rejected(f"host {self.host!r} is written {host_of(self.host)}")
        if self.effect is Effect.ALLOW:
            check_reaches(self.pattern)
        allows = self.effect is Effect.ALLOW
        object.__setattr__(self, "bits", int(self.operations) if allows else self.operations << DENY_SHIFT)

    def __str__(self) -> str:
        operations = ",".join(one.value for one in operations_in(self.operations))
        host = "" if self.host is None else f" from {self.host}"
        return f"{self.effect.value} {operations} {self.type.value} {self.pattern}{host}"


def check_reaches(pattern: Pattern) -> None:
    """
    Check that an allow of this pattern can reach a name.

    Raises:
        Rejected: it is a prefix of internal names.
    """
    if pattern.internal_alone:
        raise Rejected(
            f"names that begin with {INTERNAL_PREFIX} are allowed one by one; the prefix {pattern.name[:80]!r} would "
            "allow nothing"
        )


def host_of(text: str) -> str:
    """
    An address in the one form in which hosts are compared; IPv4 inside of IPv6 becomes IPv4.

    Raises:
        Rejected: it is no address. Names of hosts are none: who asks DNS believes DNS.
    """
    try:
        address = ip_address(text)
    except ValueError:
        raise Rejected(f"host {text[:80]!r} is no IP address; leave it out for any host") from None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


SCOPE_GRANTS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Scope:
    """What a key may be used for, at most; a second decision beside its owner's. It gives nothing by itself."""

    grants: frozenset[Grant]

    def __post_init__(self) -> None:
        if len(self.grants) > SCOPE_GRANTS_MAX:
            raise Rejected(f"a scope has at most {SCOPE_GRANTS_MAX} grants, not {len(self.grants)}")
        if any(grant.effect is Effect.DENY for grant in self.grants):
            raise Rejected("a scope has no denies: it allows nothing but what it names")


def scope_of(grants: Iterable[Grant]) -> Scope:
    return Scope(frozenset(grants))
