"""
A member of a work group: it says what it does, the coordinator says what to do.

Called as ``conversation`` says; ``poll``, ``give_up`` and ``report`` by the application's thread, under the shell's
lock, which then tells ``Polled``.

What the coordinator gives is *claimed* at once, so that it hears of it whether the application asks or not. What the
application has taken by ``poll`` is *done* until it gives it up; what it has not taken goes back by itself. Each join
is under a new member id: the id names the producer too, and nobody else's end may hit a living one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace._core.conversation import Conversation
from headrace._core.group_messages import (
    Answer,
    Broke,
    Closing,
    Connect,
    Effect,
    Event,
    GroupSettings,
    Notify,
    Opened,
    Polled,
    Send,
    Subscribed,
    Ticked,
    Told,
    WorkReport,
    WorkReported,
)
from headrace._core.phases import ACTIVE, Phase
from headrace.errors import ErrorCode, HeadraceError
from headrace.work_types import NONE, GivenItem, WorkChange, WorkShare

LEAVE_EPOCH: Final = -1

LEVEL_GRACE_MS: Final = 3_000
"""How long the cluster's feature level may be too low, counted from the beginning, before the application is told."""


class WorkMembership(Conversation):
    """
    See the module's text.

    Args:
        fresh_id: a UUID that no member has.
    """

    joins_with_epoch = True
    keeps_places = False

    def __init__(self, settings: GroupSettings, fresh_id: Callable[[], str]) -> None:
        super().__init__(settings)
        self.generation = 0
        self.lost = False
        """What it does is somebody else's by now; the application has to give it up."""
        self.done: dict[str, GivenItem] = {}
        """What the application has taken, as it knows it."""
        self.claimed: dict[str, GivenItem] = {}
        """What it was given, and is its own."""
        self._fresh_id = fresh_id
        self._share = WorkShare()
        self._known = WorkShare()
        """What the application was told to follow."""
        self._stopping: set[str] = set()
        """What the application was told to stop."""
        self._lags: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._ended: set[str] = set()
        self._said: tuple[frozenset[str], Mapping[str, int]] | None = None
        """What was said last to be its own, and of lags; None: nothing yet on this stream."""
        self._said_tokens: dict[str, int] = {}
        self._said_ended: set[str] = set()
        self._declared = True
        """The coordinator knows what is declared, or is told with the next heartbeat that is whole."""
        self._news = False
        """There is something to say as soon as the heartbeat that is under way is answered."""
        self._began_ms = 0.0

    # --- the application --------------------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        return bool(self.done)

    @property
    def owned(self) -> frozenset[str]:
        """What nobody else may have, as far as it knows."""
        return frozenset(self.claimed) | (NONE if self.lost else frozenset(self.done))

    def poll(self) -> WorkChange | None:
        """What has changed since; it is taken by this. None: nothing."""
        if self.lost:
            lost = frozenset(self.done) - self._stopping
            self._stopping |= lost
            return WorkChange(lost=lost) if lost else None
        assigned = tuple(one for id, one in sorted(self.claimed.items()) if id not in self.done)
        raised = tuple(one for id, one in sorted(self.claimed.items()) if self.done.get(id, one) != one)
        revoked = frozenset(self.done.keys() - self.claimed.keys() - self._stopping)
        follows = self._share.standby, self._share.warm_up
        if not (assigned or raised or revoked) and follows == (self._known.standby, self._known.warm_up):
            return None
        self.done.update((one.id, one) for one in (*assigned, *raised))
        self._stopping |= revoked
        self._known = self._share
        return WorkChange(assigned, raised, revoked, NONE, *follows)

    def give_up(self, items: Iterable[str]) -> None:
        """Nothing runs of these any more. What was not revoked comes again."""
        for item in items:
            self.done.pop(item, None)
            self.claimed.pop(item, None)
            self._stopping.discard(item)

    def report(self, lags: Mapping[str, int] | None, refused: Mapping[str, int], ended: Iterable[str]) -> None:
        """How far the application is behind with what it follows, whole; and what it has met and ended."""
        if lags is not None:
            self._lags = dict(lags)
        self._tokens.update(refused)
        self._ended.update(ended)

    def declare(self) -> None:
        """What is declared is something else from now on; whoever sends reports knows what."""
        self._declared = False

    # --- events -----------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case Subscribed():
                self._begin(event.now_ms)
            case Opened():
                self._opened(event.now_ms)
            case Broke():
                self._broke(event.error, event.now_ms)
            case Told():
                self._take_answer(event.answer, event.now_ms)
            case Polled():
                self._polled(event.now_ms)
            case Ticked():
                if self.due_ms() is not None:
                    self._beat_or_break(event.now_ms)
            case Closing():
                self._close(event.now_ms)
            case _:
                raise AssertionError(f"a work group hears nothing of {event}")
        effects, self._effects = self._effects, []
        return effects

    def _polled(self, now_ms: float) -> None:
        """The application has changed something, or polls again though it was refused."""
        if self.refusal_told and self.phase is Phase.FAILED:
            self._begin(now_ms)
        elif self.lost and not self.done:
            self.lost = False
            if self.phase is Phase.OUT:
                self._start_over(now_ms)
        elif self._has_news():
            self._speak(now_ms)

    def _begin(self, now_ms: float) -> None:
        """Become a member, whatever was before."""
        self.failure = self.trouble = None
        self.refusal_told = False
        self._began_ms = now_ms
        if self.lost and self.done:
            self.phase = Phase.OUT  # the application has not given it up yet
        else:
            self.lost = False
            self._start_over(now_ms)

    def _start_over(self, now_ms: float) -> None:
        super()._start_over(now_ms)
        self.member_id = self._fresh_id()

    # --- what is said -----------------------------------------------------------------------------------------------

    def _has_news(self) -> bool:
        """Whether the coordinator does not know something yet."""
        known = self._declared and self._said == (self.owned, self._lags)
        return not known or not self._tokens.items() <= self._said_tokens.items() or not self._ended <= self._said_ended

    def _greet(self, now_ms: float) -> None:
        self._said = None
        self._said_tokens, self._said_ended = {}, set()
        self._beat(now_ms)

    def _speak(self, now_ms: float) -> None:
        if not self.connected or self.phase not in ACTIVE:
            return
        if self._asked_ms is None:
            self._beat(now_ms)
        else:
            self._news = True

    def _beat(self, now_ms: float) -> None:
        owned, lags = self._said or (None, None)
        report = WorkReport(
            self.member_id,
            self.generation,
            self._said is None,
            self.owned if self.owned != owned else None,
            self._lags if self._lags != lags else None,
            {id: token for id, token in self._tokens.items() if self._said_tokens.get(id) != token},
            tuple(sorted(self._ended - self._said_ended)),
            self._said is not None and not self._declared,
        )
        self._said, self._said_tokens, self._said_ended = (self.owned, self._lags), dict(self._tokens), set(self._ended)
        self._declared = True
        self._news = False
        self._ask(report, now_ms)

    def _may_beat(self) -> bool:
        return True

    # --- what the coordinator says ----------------------------------------------------------------------------------

    def _answered(self, answer: Answer, now_ms: float) -> None:
        if not isinstance(answer, WorkReported) or answer.member_id != self.member_id:
            return
        if answer.error is not None:
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
        if answer.share is not None:
            self._shared(answer.share)
        if self._news or self._has_news():
            self._speak(now_ms)

    def _refused(self, error: HeadraceError, now_ms: float) -> None:
        """A cluster that has just started may not know yet that all its nodes know of work groups."""
        if error.code is not ErrorCode.UNSUPPORTED_VERSION or now_ms - self._began_ms > LEVEL_GRACE_MS:
            super()._refused(error, now_ms)
            return
        self._down(now_ms)
        self._failures += 1
        self._do(Connect(self._pause_ms(now_ms)))

    def _shared(self, share: WorkShare) -> None:
        self._share = share
        self.claimed = {one.id: one for one in share.active}
        self._tokens = {
            id: token for id, token in self._tokens.items() if id in self.claimed and token >= self.claimed[id].epoch
        }
        self._ended &= {id for one in share.active for id in one.unended}
        self._do(Notify())

    # --- the end ----------------------------------------------------------------------------------------------------

    def _lose(self) -> str:
        self.lost = bool(self.done)
        self._stopping.clear()
        self._share = self._known = WorkShare()
        self.claimed = {}
        return f"{len(self.done)} items" if self.lost else ""

    def _say_good_bye(self, reason: str, *, coming_back: bool) -> bool:
        if not self.connected:
            return False
        self._do(Send(WorkReport(self.member_id, LEAVE_EPOCH)))
        return True

    def _answered_while_leaving(self, answer: Answer) -> None:
        if isinstance(answer, WorkReported) and (answer.error is not None or answer.epoch <= 0):
            self._left()

    def _forget_membership(self) -> None:
        self.generation = 0
        self._said = None
        self._news = False
        self._tokens.clear()
        self._ended.clear()
