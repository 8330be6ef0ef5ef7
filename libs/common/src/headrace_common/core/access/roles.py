"""Roles: named lists of operations by type of resource, and bindings, which give a role on patterns to somebody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headrace_common.core.access.grants import Effect, Grant, check_reaches
from headrace_common.core.access.names import check_name
from headrace_common.core.access.principal import Grantee
from headrace_common.core.access.resources import (
    EVERY_NAME,
    OPERATIONS,
    ROLE_PREFIX,
    Operation,
    OperationSet,
    Pattern,
    PatternKind,
    ResourceType,
    Target,
    check_target,
    literal,
    operation_set,
)
from headrace_common.core.errors import Rejected
from headrace_common.core.ids import in_ids

ROLE_NAME_CHARS_MAX: Final = 255
TARGETS_PER_BINDING_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Role:
    """A role. One of one's own has a name and ``operations``; only built-in ones have ``fixed`` and ``everything``."""

    name: str
    operations: Mapping[ResourceType, OperationSet]
    """What it gives on the targets of a binding, by their type."""
    fixed: tuple[Grant, ...] = ()
    """What it gives whatever the binding says."""
    everything: bool = False
    """Who has it is a super user."""

    def __post_init__(self) -> None:
        check_name("role", self.name, ROLE_NAME_CHARS_MAX)
        if not (self.operations or self.fixed or self.everything):
            raise Rejected(f"role {self.name!r} gives nothing")
        for type, operations in self.operations.items():
            Grant(Effect.ALLOW, operations, type, EVERY_NAME)
        object.__setattr__(self, "operations", MappingProxyType(dict(self.operations)))

    def __str__(self) -> str:
        return ROLE_PREFIX + self.name

    def grants(self, targets: Iterable[Target]) -> tuple[Grant, ...]:
        """What a binding on these targets gives; nothing on those of types that this role does not have."""
        bound = (target for target in targets if target.type in self.operations)
        return *self.fixed, *(Grant(Effect.ALLOW, self.operations[t], t, pattern) for t, pattern in bound)

    def check_targets(self, targets: frozenset[Target]) -> None:
        """
        Check that a binding on these targets gives what it says.

        Raises:
            Rejected: it has targets of types that the role has no operations for, or none where it needs some.
        """
        strange = {target.type.value for target in targets if target.type not in self.operations}
        if strange:
            raise Rejected(f"role {self.name!r} gives nothing on {', '.join(sorted(strange))}")
        if self.operations and not targets:
            types = ", ".join(type.value for type in self.operations)
            raise Rejected(f"role {self.name!r} is given on something: name resources of {types}")


@dataclass(frozen=True, slots=True)
class Binding:
    """Gives the role of a name to somebody, on some resources."""

    grantee: Grantee
    role: str
    targets: frozenset[Target] = frozenset()

    def __post_init__(self) -> None:
        if len(self.targets) > TARGETS_PER_BINDING_MAX:
            raise Rejected(f"a binding has at most {TARGETS_PER_BINDING_MAX} targets, not {len(self.targets)}")
        for target in self.targets:
            check_target(*target)
            check_reaches(target.pattern)

    def __str__(self) -> str:
        targets = ", ".join(sorted(f"{type.value} {pattern}" for type, pattern in self.targets))
        return f"role {self.role}{' on ' if targets else ''}{targets}"


_O = Operation
_READ_AUDIT: Final = Grant(Effect.ALLOW, operation_set(_O.READ), ResourceType.TOPIC, literal("__audit"))
_WATCH: Final = operation_set(_O.DESCRIBE, _O.DESCRIBE_CONFIGS)
_KEEP: Final = operation_set(_O.DESCRIBE, _O.DELETE, _O.ALTER)


def _all_but(type: ResourceType, *left_out: Operation) -> OperationSet:
    return OperationSet(OPERATIONS[type] & ~operation_set(*left_out))


def _on_every_name(operations: Mapping[ResourceType, int]) -> tuple[Grant, ...]:
    return tuple(Grant(Effect.ALLOW, OperationSet(some), type, EVERY_NAME) for type, some in operations.items())


_BUILT_IN: Final = (
    Role("superuser", {}, everything=True),
    Role(
        "operator",
        {},
        _on_every_name(
            {
                # what the settings of the cluster say of security asks for ALTER PRINCIPAL besides
                ResourceType.CLUSTER: OPERATIONS[ResourceType.CLUSTER],
                ResourceType.TOPIC: _KEEP | _WATCH | operation_set(_O.CREATE, _O.ALTER_CONFIGS),
                ResourceType.GROUP: _KEEP,
                ResourceType.TRANSACTIONAL_ID: _KEEP,
                # who makes or configures a connector reads and writes records, as the workers may
                ResourceType.CONNECTOR: _KEEP | _WATCH,
            }
        ),
    ),
    Role("security", {}, (*_on_every_name({ResourceType.PRINCIPAL: operation_set(_O.ALL)}), _READ_AUDIT)),
    Role(
        "auditor",
        {},
        (*_on_every_name({type: OPERATIONS[type] & _WATCH for type in ResourceType}), _READ_AUDIT),
    ),
    Role(
        "developer",
        {
            ResourceType.TOPIC: _all_but(ResourceType.TOPIC, _O.FENCE),
            ResourceType.GROUP: operation_set(_O.ALL),
            ResourceType.TRANSACTIONAL_ID: operation_set(_O.ALL),
            ResourceType.CONNECTOR: operation_set(_O.ALL),
        },
    ),
    Role(
        "producer",
        {ResourceType.TOPIC: operation_set(_O.WRITE), ResourceType.TRANSACTIONAL_ID: operation_set(_O.WRITE)},
    ),
    Role(
        "consumer",
        {ResourceType.TOPIC: operation_set(_O.READ), ResourceType.GROUP: operation_set(_O.READ)},
    ),
    Role(
        "streams",
        {
            ResourceType.TOPIC: operation_set(_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER_CONFIGS, _O.FENCE),
            ResourceType.GROUP: operation_set(_O.ALL),
            ResourceType.TRANSACTIONAL_ID: operation_set(_O.ALL),
        },
    ),
    Role(
        "connect",
        {
            ResourceType.TOPIC: operation_set(_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER_CONFIGS, _O.FENCE),
            ResourceType.GROUP: operation_set(_O.ALL),
            ResourceType.TRANSACTIONAL_ID: operation_set(_O.ALL),
        },
    ),
    Role(
        "viewer",
        {
            type: OperationSet(OPERATIONS[type] & _WATCH)
            for type in (
                ResourceType.TOPIC,
                ResourceType.GROUP,
                ResourceType.TRANSACTIONAL_ID,
                ResourceType.CONNECTOR,
            )
        },
    ),
)
BUILT_IN_ROLES: Final[Mapping[str, Role]] = MappingProxyType({role.name: role for role in _BUILT_IN})
SUPERUSER: Final = "superuser"

_LITERAL, _PREFIX = PatternKind.LITERAL, PatternKind.PREFIX
_SHAPES: Final[Mapping[str, tuple[tuple[ResourceType, PatternKind, str], ...]]] = MappingProxyType(
    {
        **{
            name: tuple((type, _PREFIX, "{}") for type in BUILT_IN_ROLES[name].operations)
            for name in ("developer", "producer", "consumer", "viewer")
        },
        "streams": (
            (ResourceType.TOPIC, _PREFIX, "{}."),
            (ResourceType.GROUP, _LITERAL, "{}"),
            (ResourceType.TRANSACTIONAL_ID, _PREFIX, "{}-"),
            (ResourceType.TRANSACTIONAL_ID, _LITERAL, "{}@reset"),
        ),
        "connect": (
            (ResourceType.TOPIC, _PREFIX, "connect-"),
            (ResourceType.GROUP, _LITERAL, "{}"),
            (ResourceType.GROUP, _PREFIX, "connect-"),
            (ResourceType.TRANSACTIONAL_ID, _PREFIX, "connect.{in_ids}."),
            (ResourceType.TRANSACTIONAL_ID, _PREFIX, "connect-dlq.{in_ids}."),
            (ResourceType.TRANSACTIONAL_ID, _PREFIX, "connect-snapshot.{in_ids}."),
            (ResourceType.TRANSACTIONAL_ID, _LITERAL, "connect-leader.{in_ids}"),
            (ResourceType.TRANSACTIONAL_ID, _LITERAL, "connect-leader.{in_ids}/leader"),
        ),
    }
)


def targets_for(role: str, name: str) -> frozenset[Target]:
    """
    What a built-in role is bound on when one name is given: a prefix; of ``streams`` the name of an app, of ``connect``
    the ``group_id`` of a Connect cluster. Topics and groups that were given other names are bound one by one.

    Raises:
        Rejected: the role takes no such name; its targets are named one by one, or it has none.
    """
    shapes = _SHAPES.get(role)
    if shapes is None:
        raise Rejected(f"role {role[:80]!r} takes no single name; name the resources, or none where it covers all")
    return frozenset(Target(type, Pattern(kind, form.format(name, in_ids=in_ids(name)))) for type, kind, form in shapes)
