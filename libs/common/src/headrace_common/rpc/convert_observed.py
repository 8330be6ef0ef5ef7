"""What processes have seen of who calls, as the messages of ``access.proto`` and back."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from headrace_common.core.access.control import Control
from headrace_common.core.access.losses import Loss
from headrace_common.core.access.observed import DAY_MS, OBSERVED_MAX, Refusal, Report, Stranger, Times, Use
from headrace_common.core.access.refusals import Remembered
from headrace_common.core.errors import Rejected
from headrace_common.rpc.convert_access import operation_of, type_of
from headrace_proto.v1 import access_pb2 as pb

LIMIT: Final = 1_000


def observed_of(control: Control, request: pb.ObservedRequest) -> pb.ObservedResponse:
    """What a process that is asked by an admin process answers."""
    if request.refusal:
        return refused_to_proto(control.remembered(request.refusal))
    return report_to_proto(control.report())


def report_to_proto(
    report: Report, limit: int = OBSERVED_MAX, remedies: Mapping[Refusal, str] | None = None
) -> pb.ObservedResponse:
    """At most ``limit`` of each kind, the first ones; ``remedies``: the commands that would allow some of them."""
    lines = remedies or {}
    return pb.ObservedResponse(
        since_ms=report.since_ms,
        strangers=[
            pb.SeenStranger(host=one.host, wrong=one.wrong, plain=one.plain, seen=_times(times))
            for one, times in islice(report.strangers.items(), limit)
        ],
        refusals=[
            pb.SeenRefusal(
                principal=one.principal,
                host=one.host,
                operation=one.operation.value,
                type=one.type.value,
                name=one.name,
                seen=_times(times),
                remedy=lines.get(one, ""),
            )
            for one, times in islice(report.refusals.items(), limit)
        ],
        uses=[
            pb.SeenUse(
                principal=one.principal,
                operation=one.operation.value,
                type=one.type.value,
                name=one.name,
                seen=_times(times),
                groups=sorted(report.groups.get(one.principal, ())),
            )
            for one, times in islice(report.uses.items(), limit)
        ],
        more=report.more or max(len(report.strangers), len(report.refusals)) > limit,
    )


def report_from_proto(told: pb.ObservedResponse) -> Report:
    """What one node has told. Raises: Rejected: it is of a newer version."""
    return Report(
        told.since_ms if told.HasField("since_ms") else None,
        {
            Refusal(one.principal, one.host, operation_of(one.operation), type_of(one.type), one.name): _times_of(
                one.seen
            )
            for one in told.refusals
        },
        {Stranger(one.host, one.wrong, one.plain): _times_of(one.seen) for one in told.strangers},
        {
            Use(one.principal, operation_of(one.operation), type_of(one.type), one.name): _times_of(one.seen)
            for one in told.uses
        },
        {one.principal: frozenset(one.groups) for one in told.uses if one.groups},
        told.more,
    )


def refused_to_proto(found: Remembered | None) -> pb.ObservedResponse:
    """The answer about one refusal."""
    return pb.ObservedResponse(refused=None if found is None else refusal_to_proto(found))


def refusal_to_proto(found: Remembered, node: str = "") -> pb.RefusedAccess:
    return pb.RefusedAccess(
        node=node,
        principal=found.principal,
        groups=found.groups,
        host=found.host,
        operation=found.operation.value,
        type=found.type.value,
        name=found.name,
        narrowed=found.narrowed,
        seen=_times(found.times),
        reason=found.reason,
        sources=found.sources,
        allowed=found.allowed,
        remedy=found.remedy,
    )


def refused_from_proto(told: pb.ObservedResponse) -> Remembered | None:
    """What one node remembers. Raises: Rejected: it is of a newer version."""
    if not told.HasField("refused"):
        return None
    one = told.refused
    return Remembered(
        one.principal,
        tuple(one.groups),
        one.host,
        operation_of(one.operation),
        type_of(one.type),
        one.name,
        one.narrowed,
        one.reason,
        tuple(one.sources),
        _times_of(one.seen),
        one.allowed,
        one.remedy,
    )


def loss_to_proto(loss: Loss) -> pb.SeenUse:
    principal, operation, type, name = loss.use
    return pb.SeenUse(
        principal=principal,
        operation=operation.value,
        type=type.value,
        name=name,
        seen=_times(loss.times),
        host=loss.host or "",
    )


def window_ms(given: int) -> int:
    """How far back is looked. Raises: Rejected: nobody remembers that."""
    if not 0 <= given <= DAY_MS:
        raise Rejected(f"within_ms takes 0 (a day) to {DAY_MS}, not {given}: nodes remember a day")
    return given or DAY_MS


def limit_of(given: int) -> int:
    """How many of each kind are told. Raises: Rejected: that is too many."""
    if not 0 <= given <= OBSERVED_MAX:
        raise Rejected(f"limit takes 0 ({LIMIT}) to {OBSERVED_MAX}, not {given}")
    return given or LIMIT


def _times(times: Times) -> pb.SeenTimes:
    return pb.SeenTimes(first_ms=times.first_ms, last_ms=times.last_ms, count=times.count)


def _times_of(seen: pb.SeenTimes) -> Times:
    return Times(seen.first_ms, seen.last_ms, seen.count)
