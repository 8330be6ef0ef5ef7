"""
Feature levels of the cluster: what comes with each, and what is said to a node that is below the cluster's.

Every node registers the highest level that it knows. The controller raises the cluster's level, which is part of the
image, once all registered nodes have one, and never lowers it. New forms on the wire and in records are read by every
version that knows them, at any level; they are written, or demanded, only from their level on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace_common.core.errors import UnsupportedVersion


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that nodes write or demand only when all of them know it."""

    level: int
    """From which level of the cluster on."""
    name: str
    brings: str
    """One sentence for operators."""


OWNER_TIMES: Final = Feature(
    1,
    "owner-times",
    "records of owners of units tell when they were used last, so that unused ones expire across coordinators too",
)

NODE_TOKEN: Final = Feature(
    2,
    "node-token",
    "nodes that were given a node token take what only nodes may ask from nodes alone that show it",
)

REPEATED_PARTITIONS: Final = Feature(
    3,
    "repeated-partitions",
    "producers put several batches of one partition into one request, so that busy ones need fewer requests",
)

TRANSACTION_STREAMS: Final = Feature(
    4,
    "transaction-streams",
    "enrolments, ends and markers of transactions go over streams that stay open, instead of a call for each",
)

REQUIRED_FENCES: Final = Feature(
    5,
    "required-fences",
    "topics may have fencing.required, by which leaders refuse appends that carry no fencing token",
)

WORK_GROUPS: Final = Feature(
    6,
    "work-groups",
    "groups may share named work instead of partitions, which coordinators record in forms of their own",
)

ACCESS: Final = Feature(
    7,
    "access",
    "rules say who may do what, keys say who calls, and a cluster may be closed to everybody else",
)

FEATURES: Final = (
    OWNER_TIMES,
    NODE_TOKEN,
    REPEATED_PARTITIONS,
    TRANSACTION_STREAMS,
    REQUIRED_FENCES,
    WORK_GROUPS,
    ACCESS,
)
"""All of them, by level. A level is never changed once a version with it was released: what comes later gets the
next one."""

HIGHEST: Final = max(feature.level for feature in FEATURES)
"""The highest level that this version knows. 0: before there were levels."""


def list_features(level: int) -> tuple[Feature, ...]:
    """What comes with a level, beyond the levels below it."""
    return tuple(feature for feature in FEATURES if feature.level == level)


def attainable(registered: Iterable[int]) -> int:
    """The highest level that all registered nodes know; 0 where no node is registered."""
    return min(registered, default=0)


def say_too_low(what: str, feature: Feature, level: int) -> str:
    """What is said where something needs a higher level than the cluster's."""
    return (
        f"{what} needs feature level {feature.level} and the cluster is at {level}; see which nodes are older with "
        "`headrace cluster features`, and start the newer version there"
    )


def too_old(who: str, known: int, level: int) -> UnsupportedVersion:
    """What is said to a process that knows no level as high as the cluster's."""
    return UnsupportedVersion(
        f"{who} knows feature levels up to {known}, the cluster is at level {level} and does not go back: start the "
        "newer version again"
    )
