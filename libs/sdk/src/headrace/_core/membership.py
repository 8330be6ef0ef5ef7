"""
What both membership machines of consumers have in common, beyond ``conversation``: subscriptions, what is held, and
the poll interval.

The shell (``aio._group``) calls ``begin`` and ``Did`` from the application's thread. The subclasses say what is sent,
and what answers mean.

- An application that does not poll for ``max_poll_interval_ms`` leaves; its next poll joins anew.
"""

from __future__ import annotations

from typing import assert_never

from headrace._core.conversation import Conversation
from headrace._core.group_messages import (
    Broke,
    Closing,
    Computed,
    Did,
    Effect,
    Event,
    GroupSettings,
    Job,
    LookedUp,
    NotComputed,
    Notify,
    NotLookedUp,
    Opened,
    Polled,
    Subscribed,
    Ticked,
    Told,
    TopicsSeen,
    Warn,
)
from headrace._core.holdings import Holdings
from headrace._core.phases import ACTIVE, Phase


class Membership(Conversation):
    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self.holdings = Holdings()
        self.topics: tuple[str, ...] = ()
        self.pattern: str | None = None
        self.last_poll_ms = 0.0
        """Set by the shell at each step of the application."""

    # --- what the shell asks --------------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        return bool(self.holdings.held)

    @property
    def rebalancing(self) -> bool:
        """Whether what it holds may change soon."""
        return self.phase is not Phase.MEMBER or not self.holdings.settled

    def due_ms(self) -> float | None:
        if self.phase not in ACTIVE:
            return None
        due = self.last_poll_ms + self.settings.max_poll_interval_ms
        beat = super().due_ms()
        return due if beat is None else min(due, beat)

    def begin(self) -> Job | None:
        """The application does what is due; ``Did`` follows."""
        return self.holdings.begin()

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case Subscribed():
                self._subscribed(event)
            case Opened():
                self._opened(event.now_ms)
            case Broke():
                self._broke(event.error, event.now_ms)
            case Told():
                self._take_answer(event.answer, event.now_ms)
            case TopicsSeen():
                self._topics_seen(event)
            case Computed() | NotComputed():
                self._computed(event)
            case LookedUp():
                self.holdings.looked_up(event.version, event.offsets)
            case NotLookedUp():
                if self.holdings.not_looked_up(event.version):
                    self.failure = self.failure or event.error
                    self._do(Notify())
            case Did():
                self._did(event.job, event.now_ms)
            case Polled():
                self._polled(event.now_ms)
            case Ticked():
                self._tick(event.now_ms)
            case Closing():
                self._close(event.now_ms)
            case _:
                assert_never(event)
        self._offer()
        effects, self._effects = self._effects, []
        return effects

    def _offer(self) -> None:
        """After anything: tell the application of its job, and ask where new partitions start."""
        if self.failure is None and (lookup := self.holdings.look_up()) is not None:
            self._do(lookup)
        if self.holdings.job() is not None:
            self._do(Notify())

    def _subscribed(self, event: Subscribed) -> None:
        begun = self.phase not in (Phase.NEW, Phase.FAILED, Phase.LEFT)
        changed = (event.topics, event.pattern) != (self.topics, self.pattern)
        self.topics, self.pattern = event.topics, event.pattern
        if begun:
            if changed:
                self._subscription_changed(event.now_ms)
            return
        self._begin(event.now_ms)

    def _begin(self, now_ms: float) -> None:
        """Become a member, whatever was before."""
        self.failure = self.trouble = None
        self.refusal_told = False
        self.last_poll_ms = now_ms
        if self.holdings.lost:
            self.phase = Phase.OUT  # the application has not been told yet
        else:
            self._start_over(now_ms)

    def _polled(self, now_ms: float) -> None:
        if self.refusal_told and self.phase is Phase.FAILED:
            self._begin(now_ms)
        elif self.phase is Phase.AWAY and not self.holdings.lost:
            self.last_poll_ms = now_ms
            self._start_over(now_ms)

    def _lose(self) -> str:
        held = self.holdings.held
        self.holdings.lose()
        return f"{len(held)} partitions" if self.holdings.lost else ""

    def _did(self, job: Job, now_ms: float) -> None:
        self.holdings.did(job)
        if self.holdings.lost:
            return
        if self.phase in (Phase.OUT, Phase.AWAY):
            self._start_over(now_ms)
        elif self.phase in ACTIVE:
            self._holdings_changed(now_ms)

    def _tick(self, now_ms: float) -> None:
        if self.due_ms() is None:
            return
        if now_ms >= self.last_poll_ms + self.settings.max_poll_interval_ms:
            self._not_polled()
            return
        self._beat_or_break(now_ms)

    def _not_polled(self) -> None:
        limit_ms = self.settings.max_poll_interval_ms
        self._do(
            Warn(
                f"group {self.settings.group_id!r}: no poll for max_poll_interval_ms ({limit_ms} ms), so this member "
                "leaves; its next poll joins again. Handle fewer records per poll (max_poll_records), or raise it"
            )
        )
        self._say_good_bye(f"no poll for {limit_ms} ms", coming_back=True)
        self._end_stream()
        self.phase = Phase.AWAY
        self._forget_membership()
        self.holdings.lose()
        self._do(Notify())

    # --- what the protocols say ---------------------------------------------------------------------------------------

    def _subscription_changed(self, now_ms: float) -> None:
        raise NotImplementedError

    def _topics_seen(self, event: TopicsSeen) -> None:
        """Metadata has come; the server-side protocol does without."""

    def _computed(self, event: Computed | NotComputed) -> None:
        """Only a classic leader computes."""

    def _holdings_changed(self, now_ms: float) -> None:
        """The application has done a job."""
        raise NotImplementedError
