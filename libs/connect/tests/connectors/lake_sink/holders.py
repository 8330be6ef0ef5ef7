"""Holders of two partitions of a lake, each of which thinks that it is the one: a machine for any kind of table."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from libs.connect.tests.connectors.sql_sink.records import P0, P1, rows

from headrace.records import TopicPartition
from headrace_connect.connectors.lake_sink import LakeSink
from headrace_connect.plugin import PartitionTaken, RetriableError

Holder = dict[str, Any]
"""``sink``; ``read``: what is written next of a partition; ``done``: what is to be committed."""


class Holders(RuleBasedStateMachine):
    """Any number of instances, in any order. In the end one more writes all that is left."""

    holders = Bundle("holders")
    COUNT: int
    """Records of a partition."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name)

    @abstractmethod
    def made(self) -> Holder:
        """A holder that was started."""

    @abstractmethod
    def found(self) -> list[tuple[int, int]]:
        """Partition and number of all records that are stored, in any order of partitions."""

    def teardown(self) -> None:
        holder = self.new_holder()
        self.opens(holder)
        for partition in (P0, P1):
            for _ in range(self.COUNT):
                self.writes(holder, partition, 3)
                self.commit(holder, None)
        self.check()
        assert len(self.found()) == 2 * self.COUNT
        self.directory.cleanup()

    @rule(target=holders)
    def new_holder(self) -> Holder:
        return {**self.made(), "read": {}, "done": {}}

    @rule(holder=holders)
    def opens(self, holder: Holder) -> None:
        def open_both() -> None:
            sink: LakeSink = holder["sink"]
            found = sink.open([P0, P1], 1)
            holder["done"] = {}
            holder["read"].update({partition: found.get(partition, 0) for partition in (P0, P1)})

        self.attempt(holder, open_both)

    @rule(holder=holders, partition=st.sampled_from([P0, P1]), count=st.integers(1, 4))
    def writes(self, holder: Holder, partition: TopicPartition, count: int) -> None:
        start = holder["read"].get(partition)
        if start is None or start >= self.COUNT:
            return
        end = min(self.COUNT, start + count)
        values = [{"partition": partition.partition, "n": n} for n in range(start, end)]

        def write() -> None:
            holder["sink"].write(rows(values, start=start, partition=partition))
            holder["read"][partition] = holder["done"][partition] = end

        self.attempt(holder, write)

    def commit(self, holder: Holder, token: bytes | None, lost: Callable[[], None] = lambda: None) -> None:
        """What was written, if anything was; ``lost`` is called behind it and may raise."""

        def commit() -> None:
            holder["sink"].commit(holder["done"], token)
            lost()
            holder["done"] = {}

        if holder["done"]:
            self.attempt(holder, commit)

    def attempt(self, holder: Holder, call: Callable[[], None]) -> None:
        """As the runtime: what fails is opened again, what is taken is given up."""
        try:
            call()
        except (RetriableError, PartitionTaken):
            holder["read"] = {}
            holder["done"] = {}

    @invariant()
    def check(self) -> None:
        found = sorted(self.found())
        for partition in (0, 1):
            own = [n for of, n in found if of == partition]
            assert own == list(range(len(own))), "each once, and none is missing before another"
