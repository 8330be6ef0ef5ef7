"""
What a leader knows of its followers, and what follows from it: what is committed, and who is in sync.

The partition machine asks it. The rules are those of KIP-497 (one ISR change in flight, the maximal ISR), KIP-903
(broker epochs) and KIP-966 (nothing is committed while fewer than min ISR are in sync). Only what a follower has down
by its flush policy (``written_end``) counts. Times are monotonic milliseconds and come in with events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace_common.core.ids import NodeId, Offset

NEAR_MS: Final = 500
"""A follower that is less than this behind is waited for, so that it can join under any load."""
REFUSED_PAUSE_MS: Final = 1_000
"""After a refusal the same follower is not proposed again for so long."""
NOWHERE: Final = Offset(-1)
EVERYWHERE: Final = Offset(2**63 - 1)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the image says of a partition to its leader."""

    me: NodeId
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    min_isr: int
    """As it is in force for so many replicas."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR that the controller is asked for."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[NodeId, int | None], ...]
    """Members; those that join with the broker epoch they fetched with."""
    resign: bool = False
    """The ISR stays; another member of it is to lead."""


def as_it_is(assignment: Assignment, *, resign: bool = False) -> Proposal:
    """The ISR that there is: to say that it is all, or to have another member lead."""
    isr = tuple((broker, None) for broker in assignment.isr)
    return Proposal(assignment.leader_epoch, assignment.partition_epoch, isr, resign)


@dataclass(slots=True)
class Follower:
    """One follower, as its fetches in this leader epoch tell."""

    log_end: Offset = NOWHERE
    written_end: Offset = NOWHERE
    """-1: it has not fetched in this epoch."""
    broker_epoch: int = -1
    may_join: bool = False
    """Unfenced, here to stay, and registered under ``broker_epoch``."""
    behind_since_ms: float | None = None
    """When it last held all that the leader held; None: it does now."""
    heard_ms: float = 0.0
    """When it said something last; at first when it was to begin."""
    mark_end: Offset = NOWHERE
    mark_ms: float = 0.0
    """The leader's end at some fetch: who reaches it was caught up then."""
    refused_ms: float | None = None
    near: bool = False
    """It is about to join: the high watermark waits for it."""


@dataclass(slots=True)
class Leadership:
    """One partition led in one leader epoch."""

    assignment: Assignment
    epoch_start: Offset
    """The log end when it began: whoever holds less may lack committed records."""
    followers: dict[NodeId, Follower] = field(default_factory=dict)
    pending: Proposal | None = None
    maximal: frozenset[NodeId] = frozenset()
    """Committed ISR, and whoever was proposed to join it: all of them count for what is committed."""

    @staticmethod
    def begin(assignment: Assignment, epoch_start: Offset, now_ms: float) -> Leadership:
        """Nothing is known of the followers yet; each has the full time to show that it lives."""
        others = (replica for replica in assignment.replicas if replica != assignment.me)
        followers = {other: Follower(behind_since_ms=now_ms, heard_ms=now_ms) for other in others}
        return Leadership(assignment, epoch_start, followers, None, frozenset(assignment.isr))

    @property
    def enough(self) -> bool:
        """Whether as many replicas are in sync as the topic asks for."""
        return len(self.assignment.isr) >= self.assignment.min_isr

    @property
    def at_rest(self) -> bool:
        """Whether time alone changes nothing: everybody is in sync and holds everything."""
        if self.pending is not None or len(self.assignment.isr) < len(self.assignment.replicas):
            return False
        return all(follower.behind_since_ms is None for follower in self.followers.values())

    def find_committed(self, written_end: Offset) -> Offset:
        """Up to where every replica that counts holds the log; -1 while that is not known or too few are in sync."""
        if not self.enough:
            return NOWHERE
        end = written_end
        for broker, follower in self.followers.items():
            counts = broker in self.maximal or (follower.near and follower.may_join)
            if counts and follower.written_end < end:
                end = follower.written_end
        return end

    def find_copied_end(self, now_ms: float, away_ms: float) -> Offset:
        """What every follower holds of the log, but for those that have said nothing for ``away_ms``."""
        ends = (one.log_end for one in self.followers.values() if now_ms - one.heard_ms < away_ms)
        return min(ends, default=EVERYWHERE)

    def expects(self, broker: NodeId) -> bool:
        """Whether ``broker`` is a follower that has not said yet, in this epoch, how far it is."""
        follower = self.followers.get(broker)
        return follower is not None and follower.written_end == NOWHERE

    def note_grown(self, now_ms: float) -> None:
        """The leader holds more than before: who held everything is behind from now on."""
        for follower in self.followers.values():
            if follower.behind_since_ms is None:
                follower.behind_since_ms = now_ms

    def note_fetch(
        self,
        broker: NodeId,
        broker_epoch: int,
        log_end: Offset,
        written_end: Offset,
        leader_end: Offset,
        now_ms: float,
        *,
        may_join: bool,
    ) -> bool:
        """A follower in this epoch says how far it is; False: an older process of it, which does not count."""
        follower = self.followers.get(broker)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        if broker_epoch > follower.broker_epoch:  # another process: what the older one held does not count
            follower.broker_epoch, follower.refused_ms = broker_epoch, None
        follower.may_join, follower.heard_ms = may_join, now_ms
        follower.log_end, follower.written_end = log_end, written_end
        if written_end >= leader_end:
            follower.behind_since_ms = None
            follower.mark_end = NOWHERE
        elif follower.mark_end == NOWHERE or written_end >= follower.mark_end:
            if follower.mark_end != NOWHERE:
                follower.behind_since_ms = follower.mark_ms
            elif follower.behind_since_ms is None:
                follower.behind_since_ms = now_ms
            follower.mark_end, follower.mark_ms = leader_end, now_ms
        self._look_near(follower, now_ms)
        return True

    def propose_joining(self, broker: NodeId, high_watermark: Offset, now_ms: float) -> Proposal | None:
        """Whether ``broker`` is to be added to the ISR now; then it counts at once (KIP-497)."""
        follower = self.followers[broker]
        if self.pending is not None or broker in self.maximal or not follower.may_join:
            return None
        if follower.written_end < max(high_watermark, self.epoch_start):
            return None
        if follower.refused_ms is not None and now_ms - follower.refused_ms < REFUSED_PAUSE_MS:
            return None
        self.maximal = frozenset(self.assignment.isr) | {broker}
        return self._propose(self.maximal, joins=broker)

    def propose_leaving(self, now_ms: float, lag_ms_max: float, silence_ms_max: float) -> Proposal | None:
        """
        Whether followers are to be taken out of the ISR; they go on counting until the controller agrees.

        One that is behind has ``lag_ms_max`` as long as it says something, and ``silence_ms_max`` if it says nothing.
        """
        for follower in self.followers.values():
            self._look_near(follower, now_ms)
        if self.pending is not None:
            return None
        isr = frozenset(self.assignment.isr)
        late = {
            broker
            for broker, follower in self.followers.items()
            if broker in isr and _is_late(follower, now_ms, lag_ms_max, silence_ms_max)
        }
        return self._propose(isr - late) if late else None

    def take_peers(self, epochs: dict[NodeId, int]) -> None:
        """Brokers that may be in sync now, with their epochs."""
        for broker, follower in self.followers.items():
            follower.may_join = epochs.get(broker) == follower.broker_epoch

    def take_assignment(self, assignment: Assignment, now_ms: float) -> None:
        """The image has a newer state of the partition in the same leader epoch; whatever was proposed is decided."""
        assert assignment.leader_epoch == self.assignment.leader_epoch, "another epoch is another leadership"
        assert assignment.partition_epoch >= self.assignment.partition_epoch, "metadata never goes back"
        others = [replica for replica in assignment.replicas if replica != assignment.me]
        self.followers = {
            one: self.followers.get(one) or Follower(behind_since_ms=now_ms, heard_ms=now_ms) for one in others
        }
        joined = set(assignment.isr) - set(self.assignment.isr)
        for broker in joined & self.followers.keys():
            self.followers[broker].refused_ms = None
        if assignment.partition_epoch > self.assignment.partition_epoch:
            self.pending = None
            self.maximal = frozenset(assignment.isr)
        self.assignment = assignment

    def give_up(self, proposal: Proposal, now_ms: float) -> None:
        """
        The controller will never accept ``proposal``, and it has not: it is withdrawn.

        Only INELIGIBLE_REPLICA says this. After anything else the proposal stays pending until the image moves on.
        """
        if self.pending != proposal:
            return
        for broker, epoch in proposal.isr:
            if epoch is not None and broker in self.followers:
                self.followers[broker].refused_ms = now_ms
        self.pending = None
        self.maximal = frozenset(self.assignment.isr)

    def _propose(self, isr: frozenset[NodeId], joins: NodeId | None = None) -> Proposal:
        now = self.assignment
        members = tuple(
            (broker, self.followers[broker].broker_epoch if broker == joins else None)
            for broker in now.replicas
            if broker in isr
        )
        self.pending = Proposal(now.leader_epoch, now.partition_epoch, members)
        return self.pending

    def _look_near(self, follower: Follower, now_ms: float) -> None:
        behind = follower.behind_since_ms
        follower.near = follower.written_end >= 0 and (behind is None or now_ms - behind <= NEAR_MS)


def _is_late(follower: Follower, now_ms: float, lag_ms_max: float, silence_ms_max: float) -> bool:
    behind = follower.behind_since_ms
    if behind is None:
        return False
    return now_ms - behind > lag_ms_max or now_ms - max(behind, follower.heard_ms) > silence_ms_max
