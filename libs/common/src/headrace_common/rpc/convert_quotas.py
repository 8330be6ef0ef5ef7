"""Quotas on the wire."""

from __future__ import annotations

from collections.abc import Iterable

from headrace_common.core.quotas.entities import Entity, parse_entity
from headrace_common.core.quotas.kinds import Quota, quota_named
from headrace_common.core.quotas.state import Change
from headrace_proto.v1 import access_pb2 as pb


def quotas_to_proto(quotas: Iterable[tuple[Entity, Quota, float]]) -> Iterable[pb.QuotaSetting]:
    """What is set."""
    return (pb.QuotaSetting(entity=str(entity), name=quota.value, value=value) for entity, quota, value in quotas)


def quota_change_from_proto(change: pb.QuotaSetting) -> Change:
    """
    Raises:
        Rejected: there can be no such entity, or there is no such quota.
    """
    value = change.value if change.HasField("value") else None
    return parse_entity(change.entity), {quota_named(change.name): value}
