"""A query under crashes, with Spark's checkpoint as it is: what it commits it read once, in order, without a hole."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.limits import Earliest, Latest, Start
from headrace_spark.core.offsets import Bound, OffsetRange, Positions

from .streams import Query, World

NUMBERS = st.integers(0, 2)
SIZES = st.integers(1, 40)


class Checkpoint(RuleBasedStateMachine):
    """
    Spark's side: ``planned`` is the offset log (ends only, as text), ``committed`` the commit log. A crash forgets
    everything else. Topics are appended to, trimmed, extended, deleted and created again meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.incarnation = 0
        self.planned: list[str] = []
        self.committed = 0
        self.read: dict[tuple[str, TopicPartition], list[tuple[int, int]]] = {}
        self.harmed = False
        """Whether records were removed that the query may not have read."""
        self.start: Start = Earliest()
        self.started: dict[TopicPartition, int] = {}
        """Where batch 0 started when it was planned; partitions found later start at 0."""

    @initialize(late=st.booleans(), least=st.sampled_from([None, 5]), harm=st.booleans())
    def begin(self, late: bool, least: int | None, harm: bool) -> None:
        self.harm = harm
        self.start = Latest() if late else Earliest()
        self.least = least
        self.create()
        self.restart()

    def create(self) -> None:
        self.incarnation += 1
        self.world.ids["t"] = f"id{self.incarnation}"
        self.world.put("t", 0, 0, 0)

    @rule()
    def restart(self) -> None:
        """Now, or after a crash anywhere."""
        self.query = Query(self.world, start=self.start, fail_on_data_loss=False, offsets_min=self.least)
        self.first: Positions | None = None

    @rule(number=NUMBERS, size=SIZES)
    def appended(self, number: int, size: int) -> None:
        self.append(number, size)

    def append(self, number: int, size: int) -> None:
        tp = TopicPartition("t", number)
        if tp in self.world.logs:
            bound = self.world.logs[tp]
            self.world.put("t", number, bound.first, bound.end + size)

    @rule()
    def add_partition(self) -> None:
        if len(self.world.logs) < 3:
            self.world.put("t", len(self.world.logs), 0, 0)

    @rule(number=NUMBERS, size=SIZES)
    def trim(self, number: int, size: int) -> None:
        bound = self.world.logs.get(TopicPartition("t", number))
        if self.harm and bound is not None and bound.first < bound.end:
            self.world.put("t", number, min(bound.first + size, bound.end), bound.end)
            self.harmed = True

    @rule()
    def create_again(self) -> None:
        if self.harm:
            self.world.remove("t")
            self.create()
            self.harmed = True

    @rule(most=st.none() | st.integers(1, 30), late_ms=st.sampled_from([0, 1_000_000]), meanwhile=st.integers(0, 9))
    def plan(self, most: int | None, late_ms: int, meanwhile: int) -> None:
        """As ``MicroBatchExecution``: only when the batch before is committed."""
        self.world.now_ms += late_ms
        if self.committed < len(self.planned):
            return
        start = self.position(len(self.planned))
        if meanwhile:
            self.append(0, meanwhile)
        end = self.query.latest(start, most)
        if not self.planned:
            self.started = dict(start.next)
        if not self.planned or end.text != start.text:
            self.planned.append(end.text)

    def position(self, batch: int) -> Positions:
        """Where a batch starts: the initial offset is asked for whenever there is no batch before."""
        return Positions.from_json(json.loads(self.planned[batch - 1])) if batch else self.query.initial()

    @rule(commit=st.booleans())
    def run(self, commit: bool) -> None:
        """Batches that are planned and not committed are run, also after a restart; perhaps more than once."""
        if self.committed == len(self.planned):
            return
        start, end = self.position(self.committed), Positions.from_json(json.loads(self.planned[self.committed]))
        ranges = self.query.plan(start, end)
        assert all(self.there(each) for each in ranges)
        if commit:
            self.committed += 1
            for each in ranges:
                self.read.setdefault((self.world.ids["t"], each.partition), []).append((each.start, each.end))

    def there(self, each: OffsetRange) -> bool:
        bound = self.world.logs.get(each.partition, Bound(0, 0))
        return bound.first <= each.start < each.end <= bound.end

    @invariant()
    def nothing_is_read_twice_or_out_of_order(self) -> None:
        for runs in self.read.values():
            assert all(before[1] <= after[0] for before, after in pairwise(runs))

    @invariant()
    def without_harm_there_are_no_holes_and_no_warnings(self) -> None:
        if self.harmed:
            return
        assert not self.world.warnings
        for (_, tp), runs in self.read.items():
            assert all(before[1] == after[0] for before, after in pairwise(runs))
            assert runs[0][0] == self.started.get(tp, 0)

    @invariant()
    def a_hole_is_told(self) -> None:
        for runs in self.read.values():
            holes = [b for a, b in pairwise(runs) if a[1] < b[0]]
            assert not holes or self.world.warnings

    def teardown(self) -> None:
        """Whatever happened, the query catches up once it is left alone."""
        if self.incarnation:
            self.restart()
            for _ in range(400):
                self.plan(30, 1_000_000, 0)
                if self.committed == len(self.planned):
                    break
                self.run(True)
            else:
                raise AssertionError("the query does not catch up")
            last = self.position(self.committed)
            assert last.next == {tp: bound.end for tp, bound in self.world.logs.items()}
            if not self.harmed:
                self.everything_is_read()

    def everything_is_read(self) -> None:
        for tp, bound in self.world.logs.items():
            wanted = bound.end - self.started.get(tp, 0)
            assert sum(end - start for start, end in self.read.get((self.world.ids["t"], tp), [])) == wanted


Checkpoint.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestCheckpoint = Checkpoint.TestCase
