"""What tasks that are gone have prepared is decided as the target says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headrace.errors import AlreadyDecided
from headrace.records import TopicPartition
from headrace_common.runtime.clock import SystemClock
from headrace_connect.core.names import dead_letters_id
from headrace_connect.core.task import State
from headrace_connect.plugin import Guarantee, Rows, Sink
from headrace_connect.runtime import running
from headrace_connect.runtime.config import RunConfig
from headrace_connect.runtime.configuring import Configured, configure
from headrace_connect.runtime.settling import is_of, settle_left
from headrace_connect.settings import Secrets


@dataclass(frozen=True, slots=True)
class Settings:
    """None."""


class Target(Sink[Settings]):
    """Has committed one token."""

    guarantee = Guarantee.POSITIONS
    committed: ClassVar[set[bytes]] = {b"yes"}
    asked: ClassVar[list[bytes]] = []
    starts: ClassVar[list[str]] = []
    open_now: ClassVar[list[str]] = []

    def start(self) -> None:
        self.open_now.append("target")
        self.starts.append("target")

    def stop(self) -> None:
        self.open_now.clear()

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        raise AssertionError

    def write(self, rows: Rows) -> None:
        raise AssertionError

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        raise AssertionError

    def settle(self, token: bytes) -> bool:
        assert self.open_now, "it was started"
        self.asked.append(token)
        return token in self.committed


class AtLeastOnce(Target):
    """Keeps no positions."""

    guarantee = Guarantee.AT_LEAST_ONCE


class Memory:
    """Satisfies ``Prepared``."""

    def __init__(self, left: dict[str, bytes]) -> None:
        self.left = left
        self.decided: dict[bytes, bool] = {}

    async def find(self) -> Sequence[tuple[str, bytes]]:
        return list(self.left.items())

    async def decide(self, token: bytes, *, commit: bool) -> None:
        if token in self.decided:
            raise AlreadyDecided("by hand")
        self.decided[token] = commit


class Idle:
    """A seat of a task that has nothing to do."""

    is_idle = True
    life = SimpleNamespace(state=State.RUNNING)

    async def run(self) -> None:
        """It ends at once."""

    def close(self) -> None:
        """See ``Seat``."""


def configured(sink: type[Target] = Target, **more: str) -> Configured:
    config = {
        "name": "a.b",
        "connector.class": f"{__name__}:{sink.__name__}",
        "topics": "t",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dead",
    }
    return configure(config | more, Secrets())


async def settle(prepared: Memory, first: int, sink: type[Target] = Target, **more: str) -> int:
    return await settle_left(prepared, "c", configured(sink, **more), first)


async def test_only_of_tasks_that_are_gone() -> None:
    ids = [dead_letters_id("c", "a.b", task) for task in range(3)]
    prepared = Memory(dict(zip(ids, (b"mine", b"yes", b"no"), strict=True)) | {dead_letters_id("c", "a", 7): b"other"})
    assert await settle(prepared, 1) == 2
    assert prepared.decided == {b"yes": True, b"no": False}
    assert not Target.open_now, "and it was stopped"


async def test_of_all_tasks_where_there_are_no_dead_letters_any_more() -> None:
    prepared = Memory({dead_letters_id("c", "a.b", 0): b"yes"})
    assert await settle(prepared, 1, **{"errors.deadletterqueue.topic.name": ""}) == 1
    assert prepared.decided == {b"yes": True}


async def test_what_was_decided_by_hand_is_passed() -> None:
    prepared = Memory({dead_letters_id("c", "a.b", task): token for task, token in ((1, b"no"), (2, b"yes"))})
    prepared.decided[b"no"] = True
    assert await settle(prepared, 0) == 2
    assert prepared.decided == {b"no": True, b"yes": True}


async def test_nothing_is_started_where_nothing_is_left_or_can_be() -> None:
    Target.asked.clear()
    Target.starts.clear()
    assert await settle(Memory({}), 0) == 0
    assert await settle(Memory({dead_letters_id("c", "a.b", 1): b"yes"}), 0, AtLeastOnce) == 0
    assert not Target.asked
    assert not Target.starts


async def test_one_process_settles_what_tasks_left_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Memory({dead_letters_id("c", "a.b", task): b"%d" % task for task in range(3)})

    async def count(process: Any, config: Any) -> int:
        return 1

    monkeypatch.setattr(running, "count_sink_tasks", count)
    monkeypatch.setattr(running, "make_seat", lambda *_: Idle())
    process = SimpleNamespace(prepared=prepared, config=RunConfig(group_id="c"), clock=SystemClock())
    config: Any = configured().config
    await running._run_sink(process, configured(), config, asyncio.Event(), running.Heard(), until_idle=True)  # type: ignore[arg-type]
    assert prepared.decided == {b"1": False, b"2": False}


@pytest.mark.parametrize(
    ("id_", "is_ours"),
    [
        ("connect-dlq.c.a%2Eb.1", True),
        ("connect-dlq.c.a%2Eb.0", False),
        ("connect-dlq.c.a%2Eb.12", True),
        ("connect-dlq.c.a%2Eb.", False),
        ("connect-dlq.c.a%2Eb.x1", False),
        ("connect-dlq.c.a%2Ebb.1", False),
        ("connect-dlq.d.a%2Eb.1", False),
        ("12", False),
    ],
)
def test_ids(id_: str, is_ours: bool) -> None:
    assert is_of(id_, "c", "a.b", 1) is is_ours
