"""The audit of a process as a dialogue: what is written when, what is refused, and what the next start goes on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit import audit as kit
from libs.common.tests.kit.clock import FakeClock

from headrace_common.core.audit.chain import Start
from headrace_common.core.audit.journal import Bounds, Journal
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.audit.verification import verify
from headrace_common.core.errors import AuditUnavailable, ErrorCode, InvalidConfig, NetworkFailed
from headrace_common.runtime.audit import Audit, StartKey, deliver, open_audit
from headrace_common.runtime.audit_files import BoundedFiles, Files, Spool, list_files, read_lines
from headrace_common.runtime.audit_settings import AuditConfig
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner

START = Start(kit.BROKER, "one")


class Disk:
    """A sink whose writes fail while it is full, or hang while it is stuck."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.full = False
        self.free = asyncio.Event()
        self.free.set()
        self.tries = 0

    def append(self, lines: Sequence[bytes]) -> None:
        self.tries += 1
        if self.full:
            raise OSError(28, "No space left on device")
        self.lines += lines

    def close(self) -> None:
        pass


class InLoop(Audit):
    """Writes in the event loop, once the disk is free."""

    disk: Disk

    async def in_thread(self, call: Any, *args: Any) -> Any:
        await self.disk.free.wait()
        return call(*args)


@dataclass
class World:
    audit: InLoop
    disk: Disk
    clock: FakeClock
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return [fields.get("kind", "seal") for fields in map(json.loads, self.disk.lines)]

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.audit.close()


@asynccontextmanager
async def world(*, drops: bool = False, **bounds: int) -> AsyncIterator[World]:
    disk, clock = Disk(), FakeClock(kit.NOW_MS)
    journal = Journal(START, kit.key_of(START).sign, Bounds(drops_administration=drops, **bounds))
    audit = InLoop(journal, StartKey("one", kit.public_key_of(START)), [disk], clock, drops=drops)
    audit.disk = disk
    audit.begin()
    made = World(audit, disk, clock)
    made.tasks = [asyncio.create_task(audit.run()), asyncio.create_task(audit.tick())]
    await clock.until_asleep()
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_change_waits_for_the_disk_and_a_refusal_does_not() -> None:
    async with world() as here:
        await settle()
        here.disk.free.clear()
        change = asyncio.create_task(here.audit.record(kit.event(Kind.ACCESS_CHANGED)))
        await settle()
        here.audit.note(kit.event(Kind.OPERATION_REFUSED))
        await settle()
        assert not change.done()
        assert here.kinds == ["journal_begun"]
        here.disk.free.set()
        await change
        await settle()
        assert here.kinds == ["journal_begun", "access_changed", "operation_refused"]


async def test_a_disk_that_fails_refuses_changes_at_once_and_loses_nothing_that_was_taken() -> None:
    async with world() as here:
        await settle()
        here.disk.full = True
        with pytest.raises(AuditUnavailable, match="No space left") as first:
            await here.audit.record(kit.event(Kind.ACCESS_CHANGED, "a"))
        assert first.value.chained, "it is in the chain, so its end has to be told"
        tries = here.disk.tries
        with pytest.raises(AuditUnavailable) as second:
            await here.audit.record(kit.event(Kind.ACCESS_CHANGED, "b"))
        assert (second.value.chained, here.disk.tries) == (False, tries)
        here.audit.note(kit.event(Kind.OPERATION_REFUSED, "c"))
        here.disk.full = False
        await here.clock.advance(10_000)
        await here.audit.record(kit.event(Kind.ACCESS_CHANGED, "d"))
        named = [json.loads(line)["resource"]["name"] for line in here.disk.lines if b'"resource":{' in line]
        assert named == ["a", "c", "d"]
        await here.end()
        assert verify(here.disk.lines, kit.announce(START), kit.check).proven
    assert here.audit.counts.failures == 1


async def test_administration_goes_on_without_the_audit_where_that_is_set() -> None:
    async with world(drops=True) as here:
        await settle()
        here.disk.full = True
        await here.audit.record(kit.event(Kind.ADMINISTERED, "a"))
        await here.audit.record(kit.event(Kind.ADMINISTERED, "b"))
        with pytest.raises(AuditUnavailable):
            await here.audit.record(kit.event(Kind.ACCESS_CHANGED, "c"))
        here.disk.full = False
        await here.clock.advance(10_000)
        assert here.kinds == ["journal_begun", "administered", "administered"]


async def test_a_full_queue_refuses_changes_and_counts_what_it_drops() -> None:
    async with world(queue_max=100, repeated_max=50) as here:
        await settle()
        here.disk.free.clear()
        await settle()
        waiting = [asyncio.create_task(here.audit.record(kit.event(name=f"t{n}"))) for n in range(101)]
        await settle()
        for n in range(3):
            here.audit.note(kit.event(Kind.OPERATION_REFUSED, f"r{n}"))
        refused = [one for one in waiting if one.done()]
        assert [type(one.exception()) for one in refused] == [AuditUnavailable]
        assert here.audit.counts.dropped == {Kind.OPERATION_REFUSED: 3}
        here.disk.free.set()
        await asyncio.gather(*(one for one in waiting if one not in refused))
        await here.clock.advance(1_000)
        assert here.kinds[-1] == "events_dropped"


async def test_what_is_over_is_told_though_the_disk_fails() -> None:
    async with world() as here:
        await settle()
        here.disk.full = True
        with pytest.raises(AuditUnavailable):
            await here.audit.record(kit.event())
        await here.audit.tell(kit.event(name="its end"))
        here.disk.full = False
        await here.clock.advance(10_000)
        assert b"its end" in here.disk.lines[-1]


async def test_it_ends_with_its_last_seal() -> None:
    async with world() as here:
        await here.audit.record(kit.event())
        await here.end()
        assert here.kinds == ["journal_begun", "administered", "seal"]
        assert here.audit.events == 2
        assert verify(here.disk.lines, kit.announce(START), kit.check).proven


# --- files ---------------------------------------------------------------------------------------------------


def lines(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(first, first + count)]


def read(paths: Iterable[Path]) -> list[bytes]:
    return [line for path in paths for line in read_lines(path)]


def test_files_are_private_and_go_on_with_the_next_number(tmp_path: Path) -> None:
    directory = tmp_path / "audit" / "broker-1"
    for start in range(2):
        files = Files(directory, file_bytes_max=30)
        files.append(lines(4, 10 * start))
        files.append(lines(1, 10 * start + 4))
        files.close()
    paths = list_files(directory)
    assert [path.name for path in paths] == [f"audit-{n:012}.jsonl" for n in (1, 2, 3, 4)]
    assert read(paths) == [*lines(5), *lines(5, 10)]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "audit-000000000001.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    assert read([path]) == [b"one", b"two"]


def test_what_comes_after_a_failed_write_begins_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path, file_bytes_max=1 << 20)
    files.append(lines(2))

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            files.append(lines(1, 2))
    files.append(lines(1, 2))
    assert [len(read([path])) for path in list_files(tmp_path)] == [3, 1]


def test_files_together_take_no_more_than_they_may(tmp_path: Path) -> None:
    files = BoundedFiles(tmp_path, bytes_max=8 << 18)
    for n in range(20):
        files.append([b"%06d" % n + b"x" * (1 << 18)])
    paths = list_files(tmp_path)
    assert sum(path.stat().st_size for path in paths) <= 8 << 18
    assert [int(line[:6]) for line in read(paths)] == list(range(20 - len(paths), 20)), "the newest are there"


def test_a_spool_that_is_full_takes_no_more_until_it_is_delivered(tmp_path: Path) -> None:
    spool = Spool(tmp_path, bytes_max=1_000)
    spool.append([b"x" * 899])
    with pytest.raises(OSError, match="wait for the topic"):
        spool.append([b"x" * 100])
    oldest = spool.oldest()
    assert oldest is not None
    oldest.unlink()
    spool.append([b"x" * 100])


def test_a_file_of_the_spool_has_no_more_lines_than_a_reader_knows_for_repeats(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(lines(1_201))
    spool.append(lines(200, 1_201))
    assert [len(read([path])) for path in list_files(tmp_path)] == [500, 500, 401]


# --- delivery ------------------------------------------------------------------------------------------------


class Topic:
    """What the topic has; it fails a number of times, after it has taken the lines or before."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.fails_before = self.fails_after = 0
        self.changed = asyncio.Event()

    async def deliver(self, lines: Sequence[bytes]) -> None:
        if self.fails_before:
            self.fails_before -= 1
            raise NetworkFailed("nobody is there")
        self.lines += lines
        self.changed.set()
        if self.fails_after:
            self.fails_after -= 1
            raise NetworkFailed("the answer was lost")

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(20):
            while not any(text in line for line in self.lines):
                self.changed.clear()
                await self.changed.wait()


def config(path: Path, **fields: Any) -> AuditConfig:
    return AuditConfig(**{"to": ("topic",), "dir": path, **fields})


async def test_the_topic_gets_everything_in_order_and_the_spool_is_empty_then(tmp_path: Path) -> None:
    topic = Topic()
    async with (
        TaskRunner() as tasks,
        open_audit(config(tmp_path), kit.BROKER, SystemClock(), tasks, topic) as audit,
    ):
        assert audit is not None
        start = Start(kit.BROKER, audit.start.id)
        announced = {start: kit.announced(audit.start.public_key)}
        await asyncio.gather(*(audit.record(kit.event(name=f"t{n}")) for n in range(20)))
    assert verify(topic.lines, announced, kit.check).proven
    assert len(set(topic.lines)) == 22, "the first, the changes and the last seal"
    assert list_files(tmp_path / "broker-1" / "spool") == []


async def test_a_start_delivers_what_the_one_before_could_not_and_repeats_are_known(tmp_path: Path) -> None:
    topic = Topic()
    topic.fails_before = 100
    announced = {}
    async with TaskRunner() as tasks, open_audit(config(tmp_path), kit.BROKER, SystemClock(), tasks, topic) as audit:
        assert audit is not None
        announced[Start(kit.BROKER, audit.start.id)] = kit.announced(audit.start.public_key)
        await audit.record(kit.event(name="first", time_ms=SystemClock().now_ms()))
    assert topic.lines == []
    assert b"first" in b"".join(read(list_files(tmp_path / "broker-1" / "spool")))
    topic.fails_before, topic.fails_after = 0, 1  # as if it had been killed between the spool and the answer
    async with TaskRunner() as tasks, open_audit(config(tmp_path), kit.BROKER, SystemClock(), tasks, topic) as audit:
        assert audit is not None
        announced[Start(kit.BROKER, audit.start.id)] = kit.announced(audit.start.public_key)
        await audit.record(kit.event(name="second", time_ms=SystemClock().now_ms()))
        await topic.until(b"second")
    verdict = verify(topic.lines, announced, kit.check)
    assert verdict.proven, verdict.findings
    assert verdict.repeats > 0


async def test_while_the_topic_is_away_the_spool_is_kept_and_tried_again(tmp_path: Path) -> None:
    topic, clock = Topic(), FakeClock()
    spool = Spool(tmp_path)
    spool.append([b"one", b"two"])
    spool.append([b"three"])
    topic.fails_before = 3
    async with world() as here:
        task = asyncio.create_task(deliver(here.audit, spool, topic, clock))
        for wait_ms in (120, 240, 480):
            await settle()
            assert topic.lines == []
            assert read(list_files(tmp_path)) == [b"one", b"two", b"three"]
            await clock.advance(wait_ms)
        await settle()
        assert topic.lines == [b"one", b"two", b"three"]
        assert list_files(tmp_path) == []
        task.cancel()


async def test_without_a_setting_there_is_none(tmp_path: Path) -> None:
    async with TaskRunner() as tasks, open_audit(AuditConfig(), kit.BROKER, SystemClock(), tasks) as audit:
        assert audit is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"to": ("kafka",)}, "audit_to takes topic, file, stdout"),
        ({"to": ("file",)}, "need audit_dir"),
        ({"to": ("stdout", "topic")}, "need audit_dir"),
        ({"on_full": "wait"}, "takes refuse, drop"),
        ({"file_bytes_max": 1}, "file_bytes_max takes 1048576 or more"),
    ],
)
def test_settings_that_cannot_be(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        AuditConfig(**fields)


def test_its_error_is_one_that_nobody_tries_again_by_itself() -> None:
    assert not ErrorCode.AUDIT_UNAVAILABLE.retriable
