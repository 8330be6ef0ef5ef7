"""
What both membership machines have in common: the stream to the coordinator, heartbeats, the poll interval, and the end.

The shell (``aio._group``) feeds events and carries out effects in order; it calls under its lock, from the group's loop
and, for ``begin`` and ``Did``, from the application's thread. The subclasses say what is sent and what answers mean.

Rules:
- Known to be a member is who was answered so. When the stream is down, or a heartbeat unanswered, for longer than
  ``REJOIN_GRACE_MS`` (static members: their session), or nothing was heard for a session, others may have the
  partitions: ``suspended``, nothing is handed out until the coordinator has confirmed the member.
- Who is out tells the application first (``Kind.LOSE``) and joins anew after that, so that no commit of the old
  membership is made under the new one. The stream is closed in between: no late answer is mistaken for a new one.
- An application that does not poll for ``max_poll_interval_ms`` leaves; its next poll joins anew.
- What cannot be mended is ``failure``; what lasts for ``api_timeout_ms`` is told once per that time.
"""

from __future__ import annotations

from typing import assert_never

from headrace._core import phases
from headrace._core.group_messages import (
    Answer,
    Broke,
    Closing,
    Computed,
    Connect,
    Did,
    Effect,
    Event,
    GroupSettings,
    HangUp,
    Job,
    Left,
    LookedUp,
    NotComputed,
    Notify,
    NotLookedUp,
    Opened,
    Polled,
    Request,
    Send,
    Subscribed,
    Ticked,
    Told,
    TopicsSeen,
    Warn,
)
from headrace._core.holdings import Holdings
from headrace._core.phases import ACTIVE, Identity, Phase, Trouble
from headrace._core.remedies import Asker, Remedy, remedy_for
from headrace.errors import ClusterUnreachable
from headrace_common.core.errors import HeadraceError, Kind, RequestTimedOut


class Membership:
    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.phase = Phase.NEW
        self.holdings = Holdings()
        self.member_id = ""
        self.generation = -1
        self.topics: tuple[str, ...] = ()
        self.pattern: str | None = None
        self.failure: HeadraceError | None = None
        """What stops the membership until the application subscribes again; or what its next call has to raise."""
        self.trouble: Trouble | None = None
        self.connected = False
        self.last_poll_ms = 0.0
        """Set by the shell at each step of the application."""
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
        if self.phase in ACTIVE and now_ms - self.heard_ms > self._session_ms and self.holdings.held:
            return True  # it was stopped for so long that its session has ended, whatever it knows of its stream
        since = self._asked_ms if self._down_ms is None else self._down_ms
        static = self.settings.instance_id is not None
        return since is not None and now_ms - since > (self._session_ms if static else phases.REJOIN_GRACE_MS)

    @property
    def identity(self) -> Identity | None:
        """Who commits; None: nobody, for now."""
        known = self.member_id and self.generation > (0 if self.joins_with_epoch else -1)
        alive = self.phase in ACTIVE
        return Identity(self.member_id, self.generation) if known and alive else None

    joins_with_epoch = False
    """Whether a generation of 0 means that it is none yet."""

    @property
    def rebalancing(self) -> bool:
        """Whether what it holds may change soon."""
        return self.phase is not Phase.MEMBER or not self.holdings.settled

    def due_ms(self) -> float | None:
        """When to send ``Ticked``; None: nothing is waited for."""
        if self.phase not in ACTIVE:
            return None
        due = self.last_poll_ms + self.settings.max_poll_interval_ms
        if self.connected:
            if self._asked_ms is not None:
                due = min(due, self._asked_ms + phases.SILENCE_MS)
            elif self._may_beat():
                due = min(due, self._beat_at_ms)
        return due

    def take_failure(self, now_ms: float) -> HeadraceError | None:
        """What the application has to be told now. A failed membership tells it each time, trouble once in a while."""
        if self.failure is not None:
            error = self.failure
            if self.phase is not Phase.FAILED:
                self.failure = None
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

    def begin(self) -> Job | None:
        """The application does what is due; ``Did`` follows."""
        return self.holdings.begin()

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event``; what is returned is to be done in order."""
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
                if self.phase is Phase.AWAY and not self.holdings.lost:
                    self.last_poll_ms = event.now_ms
                    self._start_over(event.now_ms)
            case Ticked():
                self._tick(event.now_ms)
            case Closing():
                self._close(event.now_ms)
            case _:
                assert_never(event)
        self._offer()
        effects, self._effects = self._effects, []
        return effects

    def _do(self, effect: Effect) -> None:
        self._effects.append(effect)

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
        self.failure = self.trouble = None
        self.last_poll_ms = event.now_ms
        if self.holdings.lost:
            self.phase = Phase.OUT  # the application has not been told yet
        else:
            self._start_over(event.now_ms)

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
        self._end_stream()
        self.holdings.lose()
        self._forget_membership()
        self._do(Notify())

    def _out(self, error: HeadraceError, now_ms: float) -> None:
        """The coordinator does not know it as a member."""
        self._end_stream()
        self._failures += 1
        held = self.holdings.held
        self.holdings.lose()
        if self.holdings.lost:
            self._do(Warn(f"out of group {self.settings.group_id!r} ({error}); {len(held)} partitions are lost"))
            self.phase = Phase.OUT
            self._do(Notify())
            return
        self._start_over(now_ms)

    def _end_stream(self) -> None:
        self._do(HangUp())
        self.connected = False
        self._asked_ms = self._down_ms = None

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
        if not self.connected:
            return
        if self._asked_ms is not None:
            if now_ms >= self._asked_ms + phases.SILENCE_MS:
                self._broke(RequestTimedOut(f"the coordinator did not answer within {phases.SILENCE_MS} ms"), now_ms)
        elif self._may_beat() and now_ms >= self._beat_at_ms:
            self._beat(now_ms)

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

    def _close(self, now_ms: float) -> None:
        if self.connected and self._say_good_bye("the consumer was closed", coming_back=False):
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

    def _greet(self, now_ms: float) -> None:
        """A stream was opened: say who we are."""
        raise NotImplementedError

    def _answered(self, answer: Answer, now_ms: float) -> None:
        raise NotImplementedError

    def _answered_while_leaving(self, answer: Answer) -> None:
        """Nothing matters but the answer to the good-bye."""

    def _subscription_changed(self, now_ms: float) -> None:
        raise NotImplementedError

    def _topics_seen(self, event: TopicsSeen) -> None:
        """Metadata has come; the server-side protocol does without."""

    def _computed(self, event: Computed | NotComputed) -> None:
        """Only a classic leader computes."""

    def _holdings_changed(self, now_ms: float) -> None:
        """The application has done a job."""
        raise NotImplementedError

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
