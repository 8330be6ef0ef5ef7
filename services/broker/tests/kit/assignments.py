"""Elections for tests, in one line each."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.core.leadership import Assignment
from headrace_broker.core.partition_events import Elected
from headrace_common.core.configs import min_isr_in_force
from headrace_common.core.ids import NodeId

ME = NodeId(1)


def assigned(
    epoch: int,
    replicas: Sequence[int] = (1,),
    isr: Sequence[int] | None = None,
    *,
    partition_epoch: int = 0,
    min_isr: int | None = None,
    me: int = ME,
) -> Assignment:
    """The state of a partition as its leader sees it; without ``isr`` everybody is in sync."""
    members = replicas if isr is None else isr
    return Assignment(
        NodeId(me),
        epoch,
        partition_epoch,
        tuple(map(NodeId, replicas)),
        tuple(map(NodeId, members)),
        min_isr_in_force(min_isr, len(replicas)),
    )


def elected(
    epoch: int, replicas: Sequence[int] = (1,), isr: Sequence[int] | None = None, *, min_isr: int | None = None
) -> Elected:
    """Broker 1 leads."""
    return Elected(assigned(epoch, replicas, isr, min_isr=min_isr))
