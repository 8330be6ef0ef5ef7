"""Resources, the patterns that name them, and the operations on them; Kafka's names and meanings where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, NewType

from headrace_common.core.access.names import WILDCARD, check_name
from headrace_common.core.access.principal import PRINCIPAL_NAME_CHARS_MAX, PrincipalType, parse_principal
from headrace_common.core.errors import Rejected

RESOURCE_NAME_CHARS_MAX: Final = PRINCIPAL_NAME_CHARS_MAX + len(PrincipalType.SERVICE_ACCOUNT.value) + 1
"""The longest is the text of a principal."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The one resource of type CLUSTER."""
INTERNAL_PREFIX: Final = "__"
"""Names that begin so are the system's: an allow reaches them by a literal pattern alone, a deny by any."""
ROLE_PREFIX: Final = "Role:"
"""Before the name of a role, where it is a resource of type PRINCIPAL."""

OperationSet = NewType("OperationSet", int)
"""Some operations, a bit for each."""


class ResourceType(Enum):
    """What a resource is; ``slot`` numbers the types from 0."""

    slot: int

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    CLUSTER = "CLUSTER"
    PRINCIPAL = "PRINCIPAL"
    """Users, keys and rules of a principal, by its text; roles as ``Role:NAME``."""
    CONNECTOR = "CONNECTOR"
    """Of Connect, by its name; its workers ask. What it reads and writes it does by their rights."""

    def __init__(self, _: str) -> None:
        self.slot = len(type(self).__members__)


class Operation(Enum):
    """What may be done. ``allowed_by`` and ``denied_by`` are the operations whose grants decide about this one."""

    bit: int
    allowed_by: int
    denied_by: int

    ALL = "ALL"
    """Every operation of the type, in grants only: nobody asks for it."""
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    CREATE_TOKENS = "CREATE_TOKENS"
    DESCRIBE_TOKENS = "DESCRIBE_TOKENS"
    FENCE = "FENCE"
    """Set a fencing token, or append under one."""
    ESCALATE = "ESCALATE"
    """Give more than one has."""
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"
    """Taken from Kafka's tools; means nothing."""
    CLUSTER_ACTION = "CLUSTER_ACTION"
    """As IDEMPOTENT_WRITE."""

    def __init__(self, _: str) -> None:
        self.bit = 1 << len(type(self).__members__)


def operation_set(*operations: Operation) -> OperationSet:
    bits = 0
    for operation in operations:
        bits |= operation.bit
    return OperationSet(bits)


def operations_in(some: int) -> tuple[Operation, ...]:
    """In the order of their declaration."""
    return tuple(operation for operation in Operation if some & operation.bit)


DENY_SHIFT: Final = len(Operation)
"""In bits of a policy, allows are below and denies are from here on."""
MEANINGLESS: Final = operation_set(Operation.IDEMPOTENT_WRITE, Operation.CLUSTER_ACTION)
IMPLIED_BY: Final[Mapping[Operation, OperationSet]] = MappingProxyType(
    {
        Operation.DESCRIBE: operation_set(Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        Operation.DESCRIBE_CONFIGS: operation_set(Operation.ALTER_CONFIGS),
    }
)
"""An allow of one of these is an allow of the key; a deny of one is none of the key."""

for _operation in Operation:
    _taken = 0 if _operation.bit & (MEANINGLESS | Operation.ALL.bit) else _operation.bit | Operation.ALL.bit
    _operation.allowed_by = _taken | (_taken and IMPLIED_BY.get(_operation, 0))
    _operation.denied_by = _taken << DENY_SHIFT

OPERATIONS: Final[Mapping[ResourceType, OperationSet]] = MappingProxyType(
    {
        ResourceType.TOPIC: operation_set(
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.ALTER_CONFIGS,
            Operation.DESCRIBE_CONFIGS,
            Operation.FENCE,
        ),
        ResourceType.GROUP: operation_set(
            Operation.READ,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.ALTER_CONFIGS,
            Operation.DESCRIBE_CONFIGS,
        ),
        ResourceType.TRANSACTIONAL_ID: operation_set(
            Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE
        ),
        ResourceType.CLUSTER: operation_set(
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.ALTER_CONFIGS,
            Operation.DESCRIBE_CONFIGS,
        ),
        ResourceType.PRINCIPAL: operation_set(
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CREATE_TOKENS,
            Operation.DESCRIBE_TOKENS,
            Operation.ESCALATE,
        ),
        ResourceType.CONNECTOR: operation_set(
            Operation.READ,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.ALTER_CONFIGS,
            Operation.DESCRIBE_CONFIGS,
        ),
    }
)
"""What may be asked of a type. Grants on CLUSTER take IDEMPOTENT_WRITE and CLUSTER_ACTION too."""


class PatternKind(Enum):
    """How a pattern names resources."""

    LITERAL = "literal"
    PREFIX = "prefix"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Pattern:
    """Some names. Of kind ANY it has no name of its own and is written ``*``."""

    kind: PatternKind
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind is not PatternKind.ANY:
            check_name("resource", self.name, RESOURCE_NAME_CHARS_MAX)
            if self.kind is PatternKind.LITERAL and self.name.endswith(WILDCARD):
                raise Rejected(
                    f"{self.name[:80]!r} is no literal name; write what begins so as a prefix, without the *"
                )
        elif self.name:
            raise Rejected(f"the pattern for all names has no name of its own, such as {self.name[:80]!r}")

    def __str__(self) -> str:
        return f"{self.name}{WILDCARD}" if self.kind is not PatternKind.LITERAL else self.name

    @property
    def internal_alone(self) -> bool:
        """Whether it is a prefix of internal names: single ones of them can be allowed, and no others are in it."""
        return self.kind is PatternKind.PREFIX and self.name.startswith(INTERNAL_PREFIX)

    def covers(self, other: Pattern) -> bool:
        """Whether every name of ``other`` is one of this pattern, those with ``__`` apart."""
        match self.kind:
            case PatternKind.ANY:
                return True
            case PatternKind.PREFIX:
                return other.kind is not PatternKind.ANY and other.name.startswith(self.name)
            case PatternKind.LITERAL:
                return self == other


EVERY_NAME: Final = Pattern(PatternKind.ANY)


def literal(name: str) -> Pattern:
    return Pattern(PatternKind.LITERAL, name)


def prefix(name: str) -> Pattern:
    return Pattern(PatternKind.PREFIX, name)


def parse_pattern(text: str) -> Pattern:
    """
    The inverse of ``str(Pattern)``: ``*`` for all names, ``NAME*`` for those that begin so, else the one name.

    Raises:
        Rejected: nothing can have such a name.
    """
    if text == WILDCARD:
        return EVERY_NAME
    return prefix(text.removesuffix(WILDCARD)) if text.endswith(WILDCARD) else literal(text)


class Target(NamedTuple):
    """Resources of one type."""

    type: ResourceType
    pattern: Pattern


def check_target(type: ResourceType, pattern: Pattern) -> None:
    """
    Check that there can be such resources.

    Raises:
        Rejected: with what there is instead.
    """
    if pattern.kind is PatternKind.ANY:
        return
    if type is ResourceType.CLUSTER and pattern != literal(CLUSTER_NAME):
        raise Rejected(f"the only resource of type CLUSTER is {CLUSTER_NAME}, not {str(pattern)[:80]!r}")
    is_principal = type is ResourceType.PRINCIPAL and pattern.kind is PatternKind.LITERAL
    if is_principal and not pattern.name.startswith(ROLE_PREFIX):
        parse_principal(pattern.name)
