"""
What each operation of a service asks of its caller: the forms that tables in ``rpc/access_table.py`` are made of.

A table has a row for every operation, which a test holds against the descriptors; at run time an operation without one
is refused. What nodes alone may ask is ``core.node_rules``, before this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.image import Role


class Wants(NamedTuple):
    """One question about a request."""

    operation: Operation
    type: ResourceType
    name: str = CLUSTER_NAME


@dataclass(frozen=True, slots=True)
class Asks:
    """The whole request is refused unless its caller may do all of what ``wants`` says of it. Unary requests alone."""

    wants: Callable[[Any], Iterable[Wants]]
    own: frozenset[Role] = frozenset()
    """Nodes of these roles may without being asked for it; whom a node asks for may not."""


@dataclass(frozen=True, slots=True)
class AsksAnywhere:
    """The whole request is refused unless its caller may do something with some resource of a type."""

    operation: Operation
    type: ResourceType


@dataclass(frozen=True, slots=True)
class AsksAny:
    """As ``Asks``, where any of what ``wants`` says is enough; a refusal tells of the last."""

    wants: Callable[[Any], Iterable[Wants]]


class Otherwise(Enum):
    """Rows that ask nothing of a whole request."""

    NOBODY = "it is answered without a credential"
    ANYBODY = "whoever has a credential may"
    ENTRIES = "the engine asks for each entry, with the rights that it is given"
    NODES = "for nodes alone; what they do for nobody but themselves"


Rule: TypeAlias = Asks | AsksAny | AsksAnywhere | Otherwise
AccessTable: TypeAlias = Mapping[str, Rule]
"""By operation, such as ``Broker/Fetch``."""

NOBODY: Final = Otherwise.NOBODY
ANYBODY: Final = Otherwise.ANYBODY
ENTRIES: Final = Otherwise.ENTRIES
NODES: Final = Otherwise.NODES


def on_cluster(operation: Operation, *, own: Iterable[Role] = ()) -> Asks:
    """A right on the cluster as a whole; of ``own`` see ``Asks``."""
    return Asks(lambda _: (Wants(operation, ResourceType.CLUSTER),), frozenset(own))


def on_each(operation: Operation, type: ResourceType, names: Callable[[Any], Iterable[str]]) -> Asks:
    """A right on each of the resources that a request names."""
    return Asks(lambda request: (Wants(operation, type, name) for name in names(request)))
