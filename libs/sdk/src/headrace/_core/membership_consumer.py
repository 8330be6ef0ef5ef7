"""
A member of a group of the server-side protocol (KIP-848): it says what it holds, the coordinator says what to hold.

Called as ``membership`` says. One heartbeat at a time is unanswered; what has to be said meanwhile follows the answer.
An assignment that takes partitions away is answered as soon as the application has given them up, which is what lets
others have them; what stays is never interrupted.
"""

from __future__ import annotations

from headrace._core.group_messages import (
    Answer,
    GroupSettings,
    Notify,
    Partitions,
    Report,
    Reported,
    Send,
)
from headrace._core.membership import Membership
from headrace._core.phases import Phase
from headrace._core.remedies import Asker, Remedy, remedy_for

LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2


class ConsumerMembership(Membership):
    """
    See the module's text.

    Args:
        member_id: a UUID that the shell has made; kept for as long as the consumer lives.
    """

    joins_with_epoch = True

    def __init__(self, settings: GroupSettings, member_id: str) -> None:
        super().__init__(settings)
        self.member_id = member_id
        self.generation = 0
        self._said_owned: Partitions | None = None
        """What the coordinator was told last; None: nothing yet on this stream."""
        self._said_subscription: tuple[tuple[str, ...], str | None] | None = None
        self._news = False
        """There is something to say as soon as the heartbeat that is under way is answered."""

    @property
    def subscribed(self) -> tuple[str, ...]:
        """The topics by name; what a pattern matches is the coordinator's business."""
        return self.topics

    def _greet(self, now_ms: float) -> None:
        self._said_owned = self._said_subscription = None
        self._news = False
        self._beat(now_ms, whole=True)

    def _subscription_changed(self, now_ms: float) -> None:
        self._speak(now_ms)

    def _speak(self, now_ms: float) -> None:
        """Say what is new at once."""
        if not self.connected or self.phase not in (Phase.JOINING, Phase.MEMBER):
            return
        if self._asked_ms is None:
            self._beat(now_ms)
        else:
            self._news = True

    def _beat(self, now_ms: float, *, whole: bool = False) -> None:
        owned, subscription = self.holdings.taken, (self.topics, self.pattern)
        new_subscription = whole or subscription != self._said_subscription
        report = Report(
            self.member_id,
            self.generation,
            whole,
            self.topics if new_subscription else None,
            self.pattern if new_subscription else None,
            owned if whole or owned != self._said_owned else None,
        )
        self._said_owned, self._said_subscription = owned, subscription
        self._news = False
        self._ask(report, now_ms)

    def _may_beat(self) -> bool:
        return True

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def _answered(self, answer: Answer, now_ms: float) -> None:
        if not isinstance(answer, Reported):
            return
        if answer.error is not None:
            if remedy_for(Asker.MEMBER, answer.error.code) is Remedy.REJOIN:
                self._asked_ms = None  # not said in this protocol; the next heartbeat tells more
            else:
                self._refused(answer.error, now_ms)
            return
        self._confirmed(now_ms)
        if answer.heartbeat_interval_ms > 0:
            self._beat_ms = answer.heartbeat_interval_ms
            self._beat_at_ms = min(self._beat_at_ms, now_ms + self._beat_ms)
        if answer.session_timeout_ms > 0:
            self._session_ms = answer.session_timeout_ms
        if answer.epoch > 0:
            self.generation = max(self.generation, answer.epoch)
            self.phase = Phase.MEMBER
        if answer.assignment is not None:
            self._assigned(answer.assignment, now_ms)
        if self._news or (self.pattern, self.topics) != self._pattern_and_topics():
            self._speak(now_ms)

    def _pattern_and_topics(self) -> tuple[str | None, tuple[str, ...]]:
        topics, pattern = self._said_subscription or ((), None)
        return pattern, topics

    def _assigned(self, assignment: Partitions, now_ms: float) -> None:
        revoked_unheard = self.holdings.claimed - self.holdings.taken - assignment
        self.holdings.aim(assignment)
        self._do(Notify())
        if revoked_unheard and not self.holdings.to_release:
            self._said_owned = None  # promised, never taken, and taken back: say that it is not held
            self._speak(now_ms)

    def _holdings_changed(self, now_ms: float) -> None:
        if not self.holdings.to_release:
            self._speak(now_ms)

    # --- the end --------------------------------------------------------------------------------------------------

    def _say_good_bye(self, reason: str, *, coming_back: bool) -> bool:
        if not self.connected:
            return False
        static = self.settings.instance_id is not None
        self._do(Send(Report(self.member_id, LEAVE_STATIC_EPOCH if static else LEAVE_EPOCH)))
        return True

    def _answered_while_leaving(self, answer: Answer) -> None:
        if isinstance(answer, Reported) and (answer.error is not None or answer.epoch <= 0):
            self._left()

    def _forget_membership(self) -> None:
        self.generation = 0
        self._said_owned = self._said_subscription = None
        self._news = False
