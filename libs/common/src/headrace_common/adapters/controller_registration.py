"""What a node says of itself when it joins, and what the controller made of it. Used by the controller client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace_common.core.ids import NO_PRODUCER_ID, PartitionId
from headrace_common.core.image import Node
from headrace_common.rpc.convert import node_to_proto, partition_ref_to_proto
from headrace_common.runtime.audit import StartKey
from headrace_proto.v1 import controller_pb2 as pb


@dataclass(frozen=True, slots=True)
class Registration:
    """What a node says of itself when it joins. ``node.epoch`` and its flags are the controller's to decide."""

    node: Node
    cluster_id: str | None = None
    """The cluster the node's data belongs to; None for a new data directory."""
    previous_epoch: int | None = None
    """Epoch of the last registration after a clean stop; None: unclean or new."""
    damaged: Callable[[], tuple[PartitionId, ...]] = tuple
    """Logs that lost acknowledged records; the node must not lead them. Asked anew for each registration: an operator
    may have accepted the loss since the last."""
    claims: Callable[[], tuple[int, int]] = lambda: (0, NO_PRODUCER_ID)
    """The highest leader epoch and producer id that the node knows of; asked anew for each registration, because a
    metadata store may have been restored from before since the last."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What the controller made of it."""

    cluster_id: str
    epoch: int
    revision: int
    """The image that holds this registration."""
    heartbeat_interval_ms: int
    session_timeout_ms: int


def register_request(registration: Registration, start: StartKey | None = None) -> pb.RegisterNodeRequest:
    """``start``: of the node's audit; None: it writes none."""
    leader_epoch, producer_id = registration.claims()
    return pb.RegisterNodeRequest(
        audit_start="" if start is None else start.id,
        audit_key=b"" if start is None else start.public_key,
        node=node_to_proto(registration.node),
        cluster_id=registration.cluster_id,
        previous_epoch=registration.previous_epoch,
        damaged=map(partition_ref_to_proto, registration.damaged()),
        max_leader_epoch=leader_epoch,
        max_producer_id=producer_id,
    )


def decode_registration(answer: pb.RegisterNodeResponse) -> Registered:
    """What was answered to it."""
    return Registered(
        answer.cluster_id,
        answer.epoch,
        answer.revision,
        max(1, answer.heartbeat_interval_ms),
        max(1, answer.session_timeout_ms),
    )
