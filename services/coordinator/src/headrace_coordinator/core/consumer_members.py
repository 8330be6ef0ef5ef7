"""One member of a consumer group of the server-side protocol: what it says of itself, besides what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.reconcile import Holder
from headrace_coordinator.core.records import ConsumerMemberRecord
from headrace_coordinator.core.values import Sight, Subscription


@dataclass(slots=True, kw_only=True)
class ConsumerMember(Holder[PartitionId]):
    rack: str | None
    subscription: Subscription
    assignor: str | None
    sight: Sight | None = None
    """None: not known, because it has not spoken to this coordinator."""
    presumed: frozenset[TopicId] = frozenset()
    """Of a member that a record knows: what its group read. Until it is heard it is taken to see just these topics."""
    told: frozenset[PartitionId] | None = None
    """The assignment that was last sent over its present stream; compared as an object, not by what is in it."""
    told_epoch: int = 0
    """The epoch that was last sent."""

    def asks_for(self) -> tuple[object, ...]:
        """What the target depends on, of what it says of itself."""
        return self.subscription, self.assignor, self.rack

    def record(self) -> ConsumerMemberRecord:
        """Its durable part."""
        return ConsumerMemberRecord(
            member_id=self.member_id,
            instance_id=self.instance_id,
            rack=self.rack,
            client_id=self.client_id,
            client_address=self.client_address,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topics=self.subscription.topics,
            pattern=self.subscription.pattern,
            assignor=self.assignor,
            epoch=self.epoch,
            previous_epoch=self.previous_epoch,
            state=self.state,
            assigned=self.assigned,
            revoking=self.revoking,
            target=self.target,
        )

    @staticmethod
    def restore(record: ConsumerMemberRecord, presumed: frozenset[TopicId]) -> ConsumerMember:
        """The member of a record; what it holds is to be confirmed anew."""
        return ConsumerMember(
            member_id=record.member_id,
            instance_id=record.instance_id,
            rack=record.rack,
            client_id=record.client_id,
            client_address=record.client_address,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            subscription=Subscription(record.topics, record.pattern),
            assignor=record.assignor,
            epoch=record.epoch,
            previous_epoch=record.previous_epoch,
            state=record.state,
            assigned=record.assigned,
            revoking=record.revoking,
            target=record.target,
            owned=None,
            unconfirmed=record.assigned,
            presumed=presumed,
        )
