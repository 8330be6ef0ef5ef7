"""
What members of every kind of group have in common: the stream to the coordinator, heartbeats, and the end.

Of ``membership.Membership`` for consumers, and of ``work_membership.WorkMembership``. The shell (``aio._conversing``)
feeds events and carries out effects in order; it calls under its lock, from the group's loop and from the
application's thread.

Rules:
- Known to be a member is who was answered so. When the stream is down, or a heartbeat unanswered, for longer than
  ``REJOIN_GRACE_MS`` (static consumers: their session), or nothing was heard for a session, others may have what it
  holds: ``suspended``, until the coordinator has confirmed the member.
- Who is out tells the application first and joins anew after that, so that no commit of the old membership is made
  under the new one. The stream is closed in between: no late answer is mistaken for a new one.
- What cannot be mended is ``failure``; what lasts for ``api_timeout_ms`` is told once per that time.
"""

from __future__ import annotations

from headrace._core import phases
from headrace._core.group_messages import (
    Answer,
    Connect,
    Effect,
    Event,
    GroupSettings,
    HangUp,
    Left,
    Notify,
    Request,
    Send,
    Warn,
)
from headrace._core.phases import ACTIVE, Identity, Phase, Trouble
from headrace._core.remedies import Asker, Remedy, is_refusal, remedy_for
from headrace.errors import ClusterUnreachable
from headrace_common.core.errors import HeadraceError, Kind, RequestTimedOut


class Conversation:
    """See the module's text."""

    keeps_places = True
    """Whether the coordinator keeps the place of a member with an instance id for its session."""
    joins_with_epoch = False
    """Whether a generation of 0 means that it is none yet."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.phase = Phase.NEW
        self.member_id = ""
        self.generation = -1
        self.failure: HeadraceError | None = None
        """What stops the membership until the application begins again; or what its next call has to raise."""
        self.refusal_told = False
        """It was refused, and the application knows: the next poll may try anew, for somebody may have allowed it."""
        self.trouble: Trouble | None = None
        self.connected = False
        self.heard_ms = -float("inf")
        """When the coordinator last confirmed the membership."""
        self._beat_ms = float(settings.heartbeat_interval_ms)
        self._session_ms = float(settings.session_timeout_ms)
        self._beat_at_ms = 0.0
        self._asked_ms: float | None = None
        """Since when a heartbeat is unanswered."""
        self._down_ms: float | None = None
        self._failures = 0
        self._effects: list[Effect] = []

    # --- what the shell asks --------------------------------------------------------------------------------------

    def suspended(self, now_ms: float) -> bool:
        """Whether others may hold its partitions by now: nothing may be handed out."""
        if self.phase in ACTIVE and now_ms - self.heard_ms > self._session_ms and self.holds:
            return True  # it was stopped for so long that its session has ended, whatever it knows of its stream
        since = self._asked_ms if self._down_ms is None else self._down_ms
        static = self.keeps_places and self.settings.instance_id is not None
        return since is not None and now_ms - since > (self._session_ms if static else phases.REJOIN_GRACE_MS)

    @property
    def identity(self) -> Identity | None:
        """Who commits; None: nobody, for now."""
        known = self.member_id and self.generation > (0 if self.joins_with_epoch else -1)
        alive = self.phase in ACTIVE
        return Identity(self.member_id, self.generation) if known and alive else None

    def due_ms(self) -> float | None:
        """When to send ``Ticked``; None: nothing is waited for."""
        if self.phase not in ACTIVE or not self.connected:
            return None
        if self._asked_ms is not None:
            return self._asked_ms + phases.SILENCE_MS
        return self._beat_at_ms if self._may_beat() else None

    def take_failure(self, now_ms: float) -> HeadraceError | None:
        """What the application has to be told now. A failed membership tells it each time, trouble once in a while."""
        if self.failure is not None:
            error = self.failure
            if self.phase is not Phase.FAILED:
                self.failure = None
            self.refusal_told = self.phase is Phase.FAILED and is_refusal(error)
            return error
        trouble = self.trouble
        limit_ms = self.settings.api_timeout_ms
        if trouble is not None and isinstance(trouble.error, ClusterUnreachable):
            limit_ms = min(limit_ms, phases.UNREACHABLE_MS)
        if trouble is not None and now_ms - trouble.since_ms >= limit_ms:
            self.trouble = Trouble(now_ms, trouble.error)
            text = f"group {self.settings.group_id!r} has not taken this member for {limit_ms / 1000:g} s"
            return type(trouble.error)(f"{text}: {trouble.error}", code=trouble.error.code)
        return None

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event``; what is returned is to be done in order."""
        raise NotImplementedError

    # --- the stream ---------------------------------------------------------------------------------------------------

    def _do(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _start_over(self, now_ms: float) -> None:
        """Join as one that is no member; what it held was lost before."""
        self.phase = Phase.JOINING
        self._forget_membership()
        self._do(Connect(self._pause_ms(now_ms) if self._failures else 0))

    def _pause_ms(self, now_ms: float) -> float:
        settings = self.settings
        away_ms = 0.0 if self._down_ms is None else now_ms - self._down_ms
        longest = float(settings.retry_backoff_max_ms)
        if away_ms < phases.QUICK_FOR_MS:
            longest = min(longest, phases.QUICK_RETRY_MS)
        return min(settings.retry_backoff_ms * 2.0 ** min(self._failures - 1, 16), longest)

    def _opened(self, now_ms: float) -> None:
        if self.phase not in ACTIVE:
            self._do(HangUp())
            return
        self.connected = True
        self._asked_ms = None
        self._greet(now_ms)

    def _broke(self, error: HeadraceError, now_ms: float) -> None:
        self._down(now_ms)
        if self.phase is Phase.LEAVING:
            self.phase = Phase.LEFT
            return
        if self.phase not in ACTIVE:
            return
        if remedy_for(Asker.MEMBER, error.code) is Remedy.RAISE:
            self._fail(error)
            return
        self.trouble = Trouble(now_ms if self.trouble is None else self.trouble.since_ms, error)
        self._do(Connect(0 if not self._failures else self._pause_ms(now_ms)))
        self._failures += 1

    def _down(self, now_ms: float) -> None:
        """There is no stream any more."""
        if self._down_ms is None:
            self._down_ms = now_ms if self._asked_ms is None else self._asked_ms
        self.connected = False
        self._asked_ms = None

    def _confirmed(self, now_ms: float, *, settled: bool = True) -> None:
        """The coordinator answered it as a member."""
        self.heard_ms = now_ms
        self._down_ms = self._asked_ms = self.trouble = None
        if settled:
            self._failures = 0

    def _fail(self, error: HeadraceError) -> None:
        """Only the application can help."""
        if error.kind is not Kind.FENCED and self.connected:
            self._say_good_bye(str(error), coming_back=False)
        self.phase = Phase.FAILED
        self.failure = error
        self._failures += is_refusal(error)  # what is tried again waits a little longer each time
        self._end_stream()
        self._lose()
        self._forget_membership()
        self._do(Notify())

    def _out(self, error: HeadraceError, now_ms: float) -> None:
        """The coordinator does not know it as a member."""
        self._end_stream()
        self._failures += 1
        if lost := self._lose():
            self._do(Warn(f"out of group {self.settings.group_id!r} ({error}); {lost} are lost"))
            self.phase = Phase.OUT
            self._do(Notify())
            return
        self._start_over(now_ms)

    def _end_stream(self) -> None:
        self._do(HangUp())
        self.connected = False
        self._asked_ms = self._down_ms = None

    def _beat_or_break(self, now_ms: float) -> None:
        """Time has passed."""
        if not self.connected:
            return
        if self._asked_ms is not None:
            if now_ms >= self._asked_ms + phases.SILENCE_MS:
                self._broke(RequestTimedOut(f"the coordinator did not answer within {phases.SILENCE_MS} ms"), now_ms)
        elif self._may_beat() and now_ms >= self._beat_at_ms:
            self._beat(now_ms)

    def _close(self, now_ms: float) -> None:
        if self.connected and self._say_good_bye("the member was closed", coming_back=False):
            self.phase = Phase.LEAVING
            return
        self._left()

    def _ask(self, request: Request, now_ms: float) -> None:
        """A heartbeat, or what does for one."""
        self._do(Send(request))
        self._beat_at_ms = now_ms + self._beat_ms
        if self._asked_ms is None:
            self._asked_ms = now_ms

    def _take_answer(self, answer: Answer, now_ms: float) -> None:
        if isinstance(answer, Left):
            if self.phase is Phase.LEAVING:
                self._left()
            return
        if self.phase in ACTIVE and self.connected:
            self._answered(answer, now_ms)
        elif self.phase is Phase.LEAVING:
            self._answered_while_leaving(answer)

    def _left(self) -> None:
        self.phase = Phase.LEFT
        self._do(HangUp())

    def _refused(self, error: HeadraceError, now_ms: float) -> None:
        """An answer is an error that has nothing to do with the state of the conversation."""
        match remedy_for(Asker.MEMBER, error.code):
            case Remedy.START_OVER:
                self._out(error, now_ms)
            case Remedy.RAISE:
                self._fail(error)
            case _:
                self._broke(error, now_ms)

    # --- what the protocols say ---------------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether it holds anything that others may have by now."""
        raise NotImplementedError

    def _lose(self) -> str:
        """All that it holds is somebody else's. Returns what that is, for people; nothing where there is nothing."""
        raise NotImplementedError

    def _greet(self, now_ms: float) -> None:
        """A stream was opened: say who we are."""
        raise NotImplementedError

    def _answered(self, answer: Answer, now_ms: float) -> None:
        raise NotImplementedError

    def _answered_while_leaving(self, answer: Answer) -> None:
        """Nothing matters but the answer to the good-bye."""

    def _may_beat(self) -> bool:
        """Whether it is time for heartbeats."""
        raise NotImplementedError

    def _beat(self, now_ms: float) -> None:
        raise NotImplementedError

    def _say_good_bye(self, reason: str, *, coming_back: bool) -> bool:
        """Send it, if there is somebody to hear it; True: an answer comes."""
        raise NotImplementedError

    def _forget_membership(self) -> None:
        """The next join is the first."""
        raise NotImplementedError
