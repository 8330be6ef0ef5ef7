"""Whether brokers may be taken away: what the metadata says that they hold. For ``cluster can-remove``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace_cli.exits import CommandFailed
from headrace_cli.output import format_count

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.admin_types import BrokerInfo, PartitionInfo

PARTITIONS_SHOWN: Final = 10
ONLINE: Final = "online"


@dataclass(frozen=True, slots=True)
class Holding:
    """One broker, whether it is online, away, or was never heard of."""

    id: int
    state: str
    """online, away or unknown."""
    drained: bool
    partitions: tuple[str, ...]
    """Those of which it is a replica, or becomes one, or is about to cease to be one."""

    def as_row(self, most: int | None = None) -> dict[str, Any]:
        """For programs; for people the first ``most`` partitions and how many more there are."""
        more = len(self.partitions) - len(self.partitions[:most])
        shown = [*self.partitions[:most], *([f"and {more} more"] if more else [])]
        return {"id": self.id, "state": self.state, "replicas": len(self.partitions), "partitions": shown}


def holdings(admin: AdminClient, ids: Iterable[int]) -> list[Holding]:
    """What each of these brokers holds; one that is away or forgotten holds what the metadata says."""
    held: dict[int, list[str]] = {number: [] for number in ids}
    for topic in admin.list_topics(include_internal=True):
        for partition in _partitions_of(admin, topic.name):
            for number in held.keys() & set(partition.replicas):
                held[number].append(f"{topic.name}-{partition.partition}")
    brokers = {broker.id: broker for broker in admin.list_brokers()}
    return [_holding(number, brokers.get(number), tuple(partitions)) for number, partitions in held.items()]


def check_removable(found: Sequence[Holding]) -> None:
    """Raises: CommandFailed while one holds something, with what to do."""
    holding = [broker for broker in found if broker.partitions]
    if not holding:
        return
    said = ", ".join(f"broker {b.id} ({b.state}) holds {format_count(len(b.partitions), 'replica')}" for b in holding)
    steps = [f"`headrace broker decommission {b.id} --wait`" for b in holding]
    hint = f"{', '.join(steps)} moves its replicas to other brokers; then try again."
    away = [str(broker.id) for broker in holding if broker.state != ONLINE]
    if away:
        hint += f" First bring back {', '.join(away)}: its records may be nowhere else."
    raise CommandFailed(said, hint=hint)


def _partitions_of(admin: AdminClient, name: str) -> tuple[PartitionInfo, ...]:
    from headrace_common.core.errors import UnknownTopicOrPartition

    try:
        return admin.describe_topic(name).partitions
    except UnknownTopicOrPartition:  # deleted meanwhile
        return ()


def _holding(number: int, broker: BrokerInfo | None, partitions: tuple[str, ...]) -> Holding:
    if broker is None:
        return Holding(number, "unknown", False, partitions)
    return Holding(number, "away" if broker.fenced else ONLINE, broker.drained, partitions)
