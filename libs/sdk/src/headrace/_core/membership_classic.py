"""
A member of a classic group: who joins, syncs, and lets its leader decide (Kafka's JoinGroup, SyncGroup, Heartbeat).

Called as ``membership`` says. With *eager* assignors the application gives up everything before each join; with
*cooperative* ones (KIP-429) it keeps what it holds, gives up what the assignment takes away, and joins once more so
that others get that: what stays is never interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headrace._core.group_messages import (
    NOTHING,
    Answer,
    Beat,
    BeatAnswered,
    Compute,
    Computed,
    GroupSettings,
    Join,
    Joined,
    Leave,
    NotComputed,
    Notify,
    Partitions,
    Send,
    Sync,
    Synced,
    TopicsSeen,
)
from headrace._core.membership import Membership
from headrace._core.phases import ACTIVE, Phase
from headrace._core.remedies import Asker, Remedy, remedy_for
from headrace_common.core.errors import ErrorCode, HeadraceError, InconsistentGroupProtocol, RequestTimedOut

JOIN_ALLOWANCE_MS: Final = 5_000
"""A join waits for all members, each of which may take its max.poll.interval.ms, and then for so long."""


class ClassicMembership(Membership):
    """See the module's text. ``TopicsSeen`` comes before ``Subscribed`` where there is a pattern."""

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self.protocol = ""
        self.leads = False
        self._assigned: Partitions = NOTHING
        """By the last assignment, and in which generation."""
        self._assigned_in = -1
        self._seen: Mapping[str, int] = {}
        self._assigned_from: Mapping[str, int] = {}
        """Only the leader's: the partition counts that it had when it decided."""
        self._joined_topics: tuple[str, ...] = ()
        self._again: str | None = None
        """Why it has to join once more as soon as it may."""
        self._still_known = ""
        """The member id after the next ``_forget_membership``."""
        self._join_sent_ms = 0.0
        self._beaten_in = -1
        """The generation of the last heartbeat."""

    @property
    def subscribed(self) -> tuple[str, ...]:
        """The topics, a pattern resolved."""
        if self.pattern is None:
            return self.topics
        matches = re.compile(self.pattern).fullmatch
        return tuple(sorted({*self.topics, *filter(matches, self._seen)}))

    @property
    def watched(self) -> tuple[str, ...]:
        """The topics whose partition counts matter."""
        return tuple(sorted({*self.topics, *self._assigned_from}))

    # --- joining --------------------------------------------------------------------------------------------------

    def _greet(self, now_ms: float) -> None:
        if self.phase is Phase.SYNCING:
            self.phase = Phase.JOINING  # what the leader decided may be lost; whoever joins again gets an assignment
        if self.generation >= 0:
            self._beat(now_ms)
        if self.phase is Phase.JOINING:
            self._send_join("the connection to the coordinator was opened", now_ms)

    def _rejoin(self, reason: str, now_ms: float) -> None:
        """Let go of what must be let go of, then join."""
        if self.settings.cooperative:
            topics = set(self.subscribed)
            self.holdings.aim(frozenset(tp for tp in self.holdings.claimed if tp.topic in topics))
        else:
            self.holdings.aim(NOTHING)
        self._again = reason
        self.phase = Phase.PREPARING
        self._holdings_changed(now_ms)

    def _holdings_changed(self, now_ms: float) -> None:
        if self.holdings.to_release:
            return
        if self.phase is Phase.PREPARING:
            self.phase = Phase.JOINING
            if self.connected:
                self._send_join(self._again or "", now_ms)
        elif self.phase is Phase.MEMBER and self._again is not None:
            self._rejoin(self._again, now_ms)

    def _send_join(self, reason: str, now_ms: float) -> None:
        self._again = None
        self._join_sent_ms = now_ms
        self._joined_topics = self.subscribed
        topics = set(self._joined_topics)
        held = frozenset(tp for tp in self.holdings.claimed if tp.topic in topics)
        assigned = frozenset(tp for tp in self._assigned if tp.topic in topics)
        self._do(Send(Join(self.member_id, self._joined_topics, held, assigned, self._assigned_in, reason)))

    def _subscription_changed(self, now_ms: float) -> None:
        if self.phase is Phase.MEMBER:
            self._rejoin("the subscription has changed", now_ms)
        elif self.phase in ACTIVE:
            self._again = "the subscription has changed"

    def _topics_seen(self, event: TopicsSeen) -> None:
        self._seen = event.counts
        if self.phase is not Phase.MEMBER or self._again is not None:
            return
        if self.subscribed != self._joined_topics:
            self._rejoin("topics that match the pattern have come or gone", event.now_ms)
        elif self.leads and any(event.counts.get(t, 0) != count for t, count in self._assigned_from.items()):
            self._rejoin("a topic has another number of partitions", event.now_ms)

    def due_ms(self) -> float | None:
        """Also when a join has been unanswered for too long."""
        due = super().due_ms()
        if due is None or self.phase is not Phase.JOINING or not self.connected:
            return due
        return min(due, self._join_sent_ms + self.settings.max_poll_interval_ms + JOIN_ALLOWANCE_MS)

    def _tick(self, now_ms: float) -> None:
        limit_ms = self.settings.max_poll_interval_ms + JOIN_ALLOWANCE_MS
        if self.phase is Phase.JOINING and self.connected and now_ms >= self._join_sent_ms + limit_ms:
            self._broke(RequestTimedOut(f"the coordinator did not answer a join within {limit_ms} ms"), now_ms)
        else:
            super()._tick(now_ms)

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def _answered(self, answer: Answer, now_ms: float) -> None:
        match answer:
            case Joined() if self.phase is Phase.JOINING:
                self._joined(answer, now_ms)
            case Synced() if self.phase is Phase.SYNCING and (answer.error or answer.generation == self.generation):
                self._synced(answer, now_ms)
            case BeatAnswered():
                self._beat_answered(answer, now_ms)
            case _:
                pass  # it was overtaken by what came before it

    def _joined(self, answer: Joined, now_ms: float) -> None:
        if answer.error is not None:
            self._refused(answer.error, now_ms)
            return
        if answer.protocol not in self.settings.assignors:
            names = ", ".join(self.settings.assignors)
            text = f"the group has chosen the assignor {answer.protocol!r}, which is none of {names}"
            self._fail(InconsistentGroupProtocol(text))
            return
        self._confirmed(now_ms, settled=False)
        self.member_id, self.generation, self.protocol = answer.member_id, answer.generation, answer.protocol
        self.leads = answer.leader == answer.member_id
        self.phase = Phase.SYNCING
        self._beat_at_ms = now_ms + self._beat_ms
        if self.leads and not answer.skip_assignment:
            self._do(Compute(self.generation, self.protocol, answer.members))
        else:
            self._do(Send(Sync(self.member_id, self.generation)))

    def _computed(self, event: Computed | NotComputed) -> None:
        if self.phase is not Phase.SYNCING or event.generation != self.generation:
            return
        if isinstance(event, Computed):
            self._assigned_from = event.counts
            self._do(Send(Sync(self.member_id, self.generation, event.assignments, event.counts)))
        elif remedy_for(Asker.MEMBER, event.error.code) is Remedy.RAISE:
            self._fail(event.error)
        else:
            self._broke(event.error, event.now_ms)

    def _synced(self, answer: Synced, now_ms: float) -> None:
        if answer.error is not None:
            if remedy_for(Asker.MEMBER, answer.error.code) is Remedy.REJOIN:
                self._rejoin("the group rebalances again", now_ms)
            else:
                self._refused(answer.error, now_ms)
            return
        self._confirmed(now_ms)
        self.phase = Phase.MEMBER
        if self.leads and answer.counts:
            self._assigned_from = answer.counts
        taken_away = self.holdings.claimed - answer.partitions
        self._assigned, self._assigned_in = answer.partitions, answer.generation
        self.holdings.aim(answer.partitions)
        if taken_away and self.settings.cooperative:
            self._again = "gave up partitions for others"
        self._do(Notify())
        self._holdings_changed(now_ms)

    def _beat_answered(self, answer: BeatAnswered, now_ms: float) -> None:
        error = answer.error
        if error is None:
            self._confirmed(now_ms)
        elif remedy_for(Asker.MEMBER, error.code) is Remedy.REJOIN:
            self._confirmed(now_ms)
            if self.phase in (Phase.MEMBER, Phase.SYNCING):
                self._rejoin("the group rebalances", now_ms)
        elif error.code is ErrorCode.ILLEGAL_GENERATION and self._of_before(answer):
            self._asked_ms = None
        else:
            self._refused(error, now_ms)

    def _of_before(self, answer: BeatAnswered) -> bool:
        """
        Whether the heartbeat was sent before the present generation was known: the group is in that one, or it was the
        last that was sent.
        """
        if self.phase is Phase.JOINING or self._beaten_in != self.generation:
            return True
        return answer.generation == self.generation

    # --- heartbeats and the end ---------------------------------------------------------------------------------------

    def _may_beat(self) -> bool:
        return self.generation >= 0

    def _beat(self, now_ms: float) -> None:
        self._beaten_in = self.generation
        self._ask(Beat(self.member_id, self.generation), now_ms)

    def _say_good_bye(self, reason: str, *, coming_back: bool) -> bool:
        static = self.settings.instance_id is not None  # its place is kept for the session
        if static or not self.member_id or not self.connected:
            return False
        self._do(Send(Leave(self.member_id, reason)))
        return True

    def _forget_membership(self) -> None:
        self.member_id, self._still_known = self._still_known, ""
        self.generation, self.protocol = -1, ""
        self.leads, self._again = False, None
        self._assigned, self._assigned_in = NOTHING, -1
        self._assigned_from = {}

    def _out(self, error: HeadraceError, now_ms: float) -> None:
        missed_one = error.code is ErrorCode.ILLEGAL_GENERATION
        self._still_known = self.member_id if missed_one else ""
        super()._out(error, now_ms)
