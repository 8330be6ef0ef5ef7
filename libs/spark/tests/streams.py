"""A cluster and a Spark in memory, for dialogues with ``StreamPlanner``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.limits import Earliest
from headrace_spark.core.offsets import Bound, OffsetRange, Positions, Snapshot
from headrace_spark.core.stream import (
    Answer,
    AvailableNowAsked,
    Event,
    Fail,
    FetchSnapshot,
    FetchTimes,
    InitialAsked,
    LatestAsked,
    PlanAsked,
    Planned,
    SnapshotFetched,
    StreamPlanner,
    StreamSettings,
    TimesFetched,
    Warn,
)


@dataclass
class World:
    """What the cluster holds, and what was asked of it."""

    logs: dict[TopicPartition, Bound] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    times: dict[TopicPartition, int | None] = field(default_factory=dict)
    now_ms: float = 1_000_000.0
    asked: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    heals: dict[int, dict[TopicPartition, Bound]] = field(default_factory=dict)
    """What the logs are from the n-th look on."""

    def put(self, topic: str, partition: int, first: int, end: int) -> TopicPartition:
        tp = TopicPartition(topic, partition)
        self.logs[tp] = Bound(first, end)
        return tp

    def remove(self, topic: str) -> None:
        self.logs = {tp: bound for tp, bound in self.logs.items() if tp.topic != topic}
        self.ids.pop(topic, None)


class Query:
    """One run of a query: does what effects say, as the adapter does."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.planner = StreamPlanner(StreamSettings(**({"start": Earliest()} | settings)))

    def initial(self) -> Positions:
        answer = self._run(InitialAsked())
        assert isinstance(answer, Answer)
        assert answer.positions is not None
        return answer.positions

    def available_now(self) -> None:
        assert self._run(AvailableNowAsked()) == Answer(None)

    def latest(self, start: Positions, most: int | None = None, *, everything: bool = False) -> Positions:
        answer = self._run(LatestAsked(start, most, everything, self.world.now_ms))
        assert isinstance(answer, Answer)
        assert answer.positions is not None
        return answer.positions

    def plan(self, start: Positions, end: Positions) -> tuple[OffsetRange, ...]:
        answer = self._run(PlanAsked(start, end))
        assert isinstance(answer, Planned)
        return answer.ranges

    def _run(self, event: Event) -> Answer | Planned:
        world, steps = self.world, [event]
        for _ in range(20):
            answer: Answer | Planned | None = None
            for effect in self.planner.handle(steps.pop()):
                assert answer is None, "nothing comes after the answer"
                match effect:
                    case FetchSnapshot():
                        world.asked.append(effect)
                        world.logs = world.heals.get(len(world.asked), world.logs)
                        snapshot = Snapshot(dict(world.logs), dict(world.ids))
                        steps.append(SnapshotFetched(snapshot, world.now_ms))
                    case FetchTimes(timestamps_ms):
                        world.asked.append(effect)
                        steps.append(TimesFetched({tp: world.times.get(tp) for tp in timestamps_ms}))
                    case Warn(text):
                        world.warnings.append(text)
                    case Fail(error):
                        assert isinstance(error, HeadraceError)
                        raise error
                    case Answer() | Planned():
                        answer = effect
            if answer is not None:
                assert not steps
                return answer
        raise AssertionError("a question without end")
