"""
Which member of a group reads which partition.

The leader of a classic group calls ``assign`` in the SDK, the coordinator calls it for groups of the server-side
protocol. Pure and deterministic: whoever computes it from the same input gets the same answer.

What holds for every assignor: each partition of a topic that somebody subscribes to has exactly one owner, who
subscribes to it. (``cooperative-sticky`` leaves those without an owner that are on their way from one to another.)
Balance comes first, then racks (KIP-881), then staying; ``roundrobin`` knows no racks.

=====================  ==================================================================================
``range``              per topic, consecutive ranges; topics of one size are cut alike (joins of topics)
``roundrobin``         partitions dealt out in turn, over all topics
``sticky``             balanced, and what members hold stays where it is as far as balance allows
``cooperative-sticky`` as sticky, but what another member still holds waits for the next rebalance
``uniform``            as sticky; the server-side protocol's default, where ``owned`` is the last target
=====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from headrace_common.core.assignors.dealt import range_ as _range
from headrace_common.core.assignors.dealt import roundrobin as _roundrobin
from headrace_common.core.assignors.model import Assignment, MemberSubscription, Racks, racks_of
from headrace_common.core.assignors.sticky import cooperative_sticky as _cooperative_sticky
from headrace_common.core.assignors.sticky import sticky as _sticky
from headrace_common.core.errors import UnsupportedAssignor

__all__ = ["ASSIGNORS", "COOPERATIVE", "Assignment", "MemberSubscription", "Racks", "assign", "racks_of"]

_Assignor = Callable[[Mapping[str, MemberSubscription], Mapping[str, int], Racks], dict[str, Assignment]]

ASSIGNORS: Final[Mapping[str, _Assignor]] = MappingProxyType(
    {
        "range": _range,
        "roundrobin": _roundrobin,
        "sticky": _sticky,
        "cooperative-sticky": _cooperative_sticky,
        "uniform": _sticky,
    }
)
"""By the name that subscriptions and settings use."""

COOPERATIVE: Final = frozenset({"cooperative-sticky"})
"""Assignors whose members keep what they hold while they join again (KIP-429); with the others they give up all."""


def assign(
    name: str,
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[str, int],
    racks: Racks = MappingProxyType({}),
) -> dict[str, Assignment]:
    """
    What each member is to hold: member id -> topic -> partitions, ascending; topics without partitions are left out.

    Every member has an entry, empty if there is nothing for it. ``partitions`` is the partition count by topic; topics
    that are not in it do not exist (yet) and are left out, and so are partitions that a member claims to own in them.

    With ``racks``, members hold partitions that have a replica in their rack, as far as the numbers of partitions that
    they would hold without it allow.

    Raises:
        UnsupportedAssignor: there is none of this name.
    """
    assignor = ASSIGNORS.get(name)
    if assignor is None:
        raise UnsupportedAssignor(f"no assignor is called {name!r}; there are {', '.join(sorted(ASSIGNORS))}")
    return assignor(members, partitions, racks)
