"""
Decides where each micro-batch of a streaming query ends, and what it reads: one question of Spark at a time.

The stream reader tells each call of Spark as an event, does what the effects say, and tells what came of it, until an
``Answer``, ``Planned`` or ``Fail``::

    LatestAsked ─▶ [FetchSnapshot] ─ SnapshotFetched ─▶ [Warn…, Answer(end)]

Rules, and why:

* The first ``latestOffset`` of a new query answers its start unchanged: an empty batch, which puts the start into the
  checkpoint. Spark keeps the end of a batch there and not its start, and asks for the initial offset again after a
  crash in batch 0: "latest" would then be later, and rows lost.
* A partition found later joins at its log's start; for the same reason the batch that finds it reads nothing of it.
* So every range lies between two positions of the checkpoint, and is the same when it is read again.

Spark's calls and their order: DESIGN.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.follow import Followed, follow, plan_ranges
from headrace_spark.core.limits import Selection, Start
from headrace_spark.core.losses import Loss, RecordsLost, warning
from headrace_spark.core.offsets import OffsetRange, Positions, Snapshot
from headrace_spark.core.option_values import LONG_MAX
from headrace_spark.core.options import ConnectorOptions
from headrace_spark.core.rate import limit_ends, worth_it
from headrace_spark.core.resolving import plan_lookups, resolve_start

LOOKS_MAX: Final = 3
"""How often a log's end that fell back is looked at before it is believed: a new leader may be behind for a moment."""
LOOK_AGAIN_MS: Final = 500
TOLD_MAX: Final = 1_000
"""Losses remembered so that each is told once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What of the options matters here."""

    start: Start
    selection: Selection | None = None
    latest_if_no_match: bool = False
    fail_on_data_loss: bool = True
    offsets_min: int | None = None
    delay_ms_max: int = 900_000
    long_poll_ms: int = 200


def stream_settings(options: ConnectorOptions) -> StreamSettings:
    return StreamSettings(
        start=options.start,
        selection=options.selection,
        latest_if_no_match=options.latest_if_no_match,
        fail_on_data_loss=options.fail_on_data_loss,
        offsets_min=options.min_offsets_per_trigger,
        delay_ms_max=options.max_trigger_delay_ms,
        long_poll_ms=options.long_poll_ms,
    )


def default_offsets_max(options: ConnectorOptions) -> int | None:
    """
    What ``getDefaultReadLimit`` says, as ``ReadMaxRows``; None: ``ReadAllAvailable``. Where only a minimum was given it
    is a limit without effect: so ``ReadAllAvailable`` still tells a trigger that wants everything.
    """
    if options.max_offsets_per_trigger is None and options.min_offsets_per_trigger is not None:
        return LONG_MAX
    return options.max_offsets_per_trigger


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitialAsked:
    """Spark asks where a new query begins; it asks twice."""

    reader: str = ""
    """A fresh name, for ``Positions.reader``."""


@dataclass(frozen=True, slots=True)
class AvailableNowAsked:
    """The query ends when what is there now has been read."""


@dataclass(frozen=True, slots=True)
class LatestAsked:
    """Spark asks where the next batch may end."""

    start: Positions
    offsets_max: int | None
    """``ReadMaxRows``; None: no limit."""
    everything: bool
    """``ReadAllAvailable``: also what ``minOffsetsPerTrigger`` would hold back."""
    now_ms: float
    """Monotonic."""


@dataclass(frozen=True, slots=True)
class PlanAsked:
    """Spark asks what to read between two positions; after a restart perhaps for a batch of an earlier run."""

    start: Positions
    end: Positions


@dataclass(frozen=True, slots=True)
class SnapshotFetched:
    """What ``FetchSnapshot`` asked for."""

    snapshot: Snapshot
    now_ms: float


@dataclass(frozen=True, slots=True)
class TimesFetched:
    """What ``FetchTimes`` asked for: by partition the first record at or after its time; None: there is none."""

    offsets: Mapping[TopicPartition, int | None]


Question: TypeAlias = InitialAsked | AvailableNowAsked | LatestAsked | PlanAsked
Event: TypeAlias = Question | SnapshotFetched | TimesFetched


# --- effects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Ask for every partition that the query is to read, its log's start and end, and tell ``SnapshotFetched``."""

    newer_than: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Ends that are known: answer as soon as one partition is beyond, or is not among them…"""
    wait_ms: float = 0
    """…or when this time has passed. 0: at once."""
    after_ms: float = 0
    """Wait so long before asking at all."""


@dataclass(frozen=True, slots=True)
class FetchTimes:
    """Ask for the first records at or after these times, in ms since the epoch, and tell ``TimesFetched``."""

    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Warn:
    """For the log."""

    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to ``InitialAsked`` and ``LatestAsked``; None to ``AvailableNowAsked``."""

    positions: Positions | None


@dataclass(frozen=True, slots=True)
class Planned:
    """The answer to ``PlanAsked``."""

    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise this: the query ends, and its checkpoint stays as it is."""

    error: HeadraceError


Effect: TypeAlias = FetchSnapshot | FetchTimes | Warn | Answer | Planned | Fail


class StreamPlanner:
    """One run of one streaming query, on the driver. One caller at a time."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._question: Question | None = None
        self._reader = ""
        self._initial: Positions | None = None
        self._anchored = False
        self._target: Positions | None = None
        """With AvailableNow: what was there when the query began."""
        self._snapshot: Snapshot | None = None
        self._looks = 0
        self._last_batch_ms: float | None = None
        self._held: Mapping[TopicPartition, int] | None = None
        """Ends that were too little for a batch: what is newer is worth another look."""
        self._told: dict[Loss, None] = {}

    @property
    def latest(self) -> Positions | None:
        """The ends that were seen last, for Spark's progress report; None: none yet."""
        seen = self._snapshot
        return None if seen is None else Positions.of({tp: b.end for tp, b in seen.bounds.items()}, seen.topic_ids)

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        match event:
            case SnapshotFetched(snapshot, now_ms):
                return self._with_errors(lambda: self._fetched(snapshot, now_ms))
            case TimesFetched(offsets):
                return self._with_errors(lambda: self._start(offsets))
            case _:
                self._question, self._looks = event, 0
                return self._take_question(event)

    def _with_errors(self, decide: Callable[[], list[Effect]]) -> list[Effect]:
        assert self._question is not None, "an answer from the cluster belongs to a question of Spark"
        try:
            return decide()
        except HeadraceError as error:
            return self._answer(Fail(error))

    def _answer(self, answer: Effect, before: Sequence[Effect] = ()) -> list[Effect]:
        self._question = None
        return [*before, answer]

    # --- questions ---

    def _take_question(self, question: Question) -> list[Effect]:
        match question:
            case InitialAsked(reader):
                self._reader = reader
                return [FetchSnapshot()] if self._initial is None else self._answer(Answer(self._initial))
            case AvailableNowAsked():
                return [FetchSnapshot()]
            case LatestAsked(start) if start == self._initial and not self._anchored:
                self._anchored = True
                return self._answer(Answer(start))
            case LatestAsked():
                return [self._look(question)]
            case PlanAsked(start, end):
                self._anchored = True
                if start == end:
                    return self._answer(Planned(()))
                return [FetchSnapshot()]

    def _look(self, asked: LatestAsked) -> FetchSnapshot:
        held_back = asked.everything and self._settings.offsets_min is not None
        if self._target is not None or held_back:
            return FetchSnapshot()
        if self._held is None:
            return FetchSnapshot(asked.start.next, self._settings.long_poll_ms)
        left_ms = self._settings.delay_ms_max - self._waited_ms(asked.now_ms)
        return FetchSnapshot(self._held, max(0.0, min(self._settings.long_poll_ms, left_ms)))

    def _waited_ms(self, now_ms: float) -> float:
        return float("inf") if self._last_batch_ms is None else now_ms - self._last_batch_ms

    # --- what the cluster says ---

    def _fetched(self, snapshot: Snapshot, now_ms: float) -> list[Effect]:
        self._snapshot = snapshot
        match self._question:
            case InitialAsked():
                wanted = plan_lookups(self._settings.start, snapshot.bounds)
                return [FetchTimes(wanted)] if wanted else self._start({})
            case AvailableNowAsked():
                self._target = self.latest
                return self._answer(Answer(None))
            case LatestAsked() as asked:
                return self._latest(asked, snapshot, now_ms)
            case PlanAsked(start, end):
                ranges, losses = plan_ranges(start, end, snapshot)
                return self._or_look_again(losses) or self._answer(Planned(ranges), self._tell(losses))
            case _:
                raise AssertionError("nobody asked")

    def _start(self, found: Mapping[TopicPartition, int | None]) -> list[Effect]:
        assert self._snapshot is not None, "times are asked for partitions that are known"
        starts, losses = resolve_start(
            self._settings.start,
            self._snapshot.bounds,
            found,
            latest_if_no_match=self._settings.latest_if_no_match,
        )
        warnings = self._tell(losses)
        self._initial = Positions.of(starts, self._snapshot.topic_ids, self._reader)
        return self._answer(Answer(self._initial), warnings)

    def _latest(self, asked: LatestAsked, snapshot: Snapshot, now_ms: float) -> list[Effect]:
        followed = follow(asked.start, snapshot, self._target, self._settings.selection)
        again = self._or_look_again(followed.losses)
        if again:
            return again
        warnings = self._tell(followed.losses)
        ends = self._ends(asked, followed, now_ms)
        answer = Positions.of(ends, {**asked.start.topic_ids, **snapshot.topic_ids}, asked.start.reader)
        if answer != asked.start:
            self._last_batch_ms = now_ms
        return self._answer(Answer(answer), warnings)

    def _ends(self, asked: LatestAsked, followed: Followed, now_ms: float) -> Mapping[TopicPartition, int]:
        """Where the batch ends: everything, as much as the limit allows, or nothing yet."""
        base, ends, least = followed.base, followed.ends, self._settings.offsets_min
        self._held = None
        if asked.everything:
            return ends
        if least is not None and self._target is None:
            waited_ms = None if self._last_batch_ms is None else now_ms - self._last_batch_ms
            if not worth_it(base, ends, least, waited_ms, self._settings.delay_ms_max):
                self._held = ends
                return base
        return ends if asked.offsets_max is None else limit_ends(base, ends, asked.offsets_max)

    # --- losses ---

    def _or_look_again(self, losses: Sequence[Loss]) -> list[Effect]:
        """A log whose end fell back is looked at again before it is believed."""
        if not any(loss.cause.doubtful for loss in losses) or self._looks == LOOKS_MAX:
            return []
        self._looks += 1
        return [FetchSnapshot(after_ms=LOOK_AGAIN_MS)]

    def _tell(self, losses: Sequence[Loss]) -> list[Effect]:
        """
        Warn of what was not told before.

        Raises:
            RecordsLost: the query is to fail instead.
        """
        if losses and self._settings.fail_on_data_loss:
            raise RecordsLost.of(losses)
        news = [loss for loss in losses if loss not in self._told]
        for loss in news:
            self._told[loss] = None
        while len(self._told) > TOLD_MAX:
            del self._told[next(iter(self._told))]
        return [Warn(warning(news))] if news else []
