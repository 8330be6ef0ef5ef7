"""Between a work group's machine and the messages of ``Membership``. Nothing is decided here."""

from __future__ import annotations

from headrace._core.group_messages import Answer, Left, Request, WorkReport, WorkReported
from headrace.aio._group_wire import CLIENT_ID_LENGTH_MAX
from headrace.errors import error_for
from headrace.work_settings import WorkSettings
from headrace.work_types import Declaration, GivenItem, WorkShare
from headrace_proto.v1 import coordinator_pb2 as pb


class WorkWire:
    """One member's translator."""

    def __init__(self, name: str, settings: WorkSettings, declaration: Declaration, process_id: str) -> None:
        self._name = name
        self._settings = settings
        self._process_id = process_id
        self._declaration = _encode(declaration)

    def declare(self, declaration: Declaration) -> None:
        """What reports that declare say from now on; on any thread."""
        self._declaration = _encode(declaration)

    def request(self, request: Request) -> pb.MembershipRequest:
        """What the machine wants to say."""
        assert isinstance(request, WorkReport), "it says nothing else"
        return pb.MembershipRequest(group_id=self._name, work_heartbeat=self._report(request))

    def _report(self, request: WorkReport) -> pb.WorkHeartbeat:
        settings = self._settings
        beat = pb.WorkHeartbeat(
            member_id=request.member_id,
            member_epoch=request.epoch,
            group_instance_id=settings.group_instance_id,
            client_id=settings.client_id[:CLIENT_ID_LENGTH_MAX],
            refused=[pb.RefusedItem(id=id, token=token) for id, token in request.refused.items()],
            ended=request.ended,
        )
        if request.whole:
            beat.process_id, beat.endpoint, beat.zone = self._process_id, settings.endpoint, settings.zone
            beat.transactional_id = transactional_id(settings, request.member_id) or ""
            beat.rebalance_timeout_ms = settings.rebalance_timeout_ms
        if request.whole or request.declares:
            beat.declaration.CopyFrom(self._declaration)
        if request.owned is not None:
            beat.owned.ids.extend(sorted(request.owned))
            beat.owned.SetInParent()
        if request.lags is not None:
            beat.lags.items.extend(pb.ItemLag(id=id, lag=lag) for id, lag in request.lags.items())
            beat.lags.SetInParent()
        return beat

    def answer(self, response: pb.MembershipResponse) -> Answer | None:
        """What the coordinator said; None: something that this version does not know."""
        match response.WhichOneof("response"):
            case "work_state":
                return _decode(response.work_state)
            case "left":
                left = response.left
                return Left(error_for(left.error, left.message) if left.error else None)
            case _:
                return None


def transactional_id(settings: WorkSettings, member_id: str) -> str | None:
    """Of this member's producer."""
    prefix = settings.transactional_id_prefix
    return None if prefix is None else f"{prefix}-{member_id}"


def _decode(state: pb.WorkState) -> WorkReported:
    share = None
    if state.HasField("assignment"):
        given = state.assignment
        share = WorkShare(
            tuple(GivenItem(one.id, one.epoch, tuple(one.unended)) for one in given.active),
            frozenset(given.standby),
            frozenset(given.warm_up),
        )
    return WorkReported(
        error_for(state.error, state.message) if state.error else None,
        state.member_id,
        state.member_epoch,
        state.heartbeat_interval_ms,
        state.session_timeout_ms,
        share,
    )


def _encode(declaration: Declaration) -> pb.WorkDeclaration:
    return pb.WorkDeclaration(
        fingerprint=declaration.fingerprint,
        version=declaration.version,
        items=[
            pb.WorkItem(id=one.id, weight=one.weight, stateful=one.stateful, standbys=one.standbys)
            for one in declaration.items
        ],
        acceptable_recovery_lag=declaration.acceptable_recovery_lag,
        max_warmup=declaration.max_warmup,
        terms=declaration.terms,
    )
