"""Beside which workers, and on which rows, a program begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from libs.streams.tests.kit.stage import Stage

from headrace.errors import InconsistentGroupProtocol, WaitTimedOut
from headrace.records import Committed, TopicPartition
from headrace.work_types import GivenItem, WorkChange
from headrace_common.core.errors import CoordinatorNotAvailable, NetworkFailed, UnknownMemberId
from headrace_streams import agg, json
from headrace_streams.config import StreamsConfig
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.hop import Flush, encode, rows_text
from headrace_streams.dsl.app import App
from headrace_streams.patience import Patience
from headrace_streams.plan.known import Known
from headrace_streams.ports import Shared
from headrace_streams.runtime.assembling import Assembling
from headrace_streams.runtime.worker import Worker
from headrace_streams.testing.driver import Driver

HOP = "a.by-k.repartition"
ROWS = "k string, n int64"
ENDS_MS = 5_000.0


class Beside(Stage):
    """Other workers run, for a while."""

    shares = Shared()
    reads: tuple[str, ...] = ()
    until_ms = float("inf")

    async def shared(self, app: str) -> Shared:
        return self.shares if self.at_ms < self.until_ms else Shared()

    async def positions(self, app: str) -> dict[TopicPartition, int]:
        return {TopicPartition(topic, 0): 7 for topic in self.reads}


def beside(*tasks: str, read: tuple[str, ...] = (), until_ms: float = float("inf"), **rows: str) -> Beside:
    stage = Beside(program(), "in", "out")
    stage.shares, stage.reads, stage.until_ms = Shared(frozenset(tasks), rows), read, until_ms
    return stage


def program(name: str = "a", **more: Any) -> App:
    """Its tasks are ``in/0`` and ``by-k/0``; with more sums it sends rows with more columns."""
    app = App(name)
    groups = app.stream("in", value=json("k string, n bigint, m bigint")).group_by("k", name="by-k")
    groups.agg(name="sums", n=agg.sum("n"), **more).to("out")
    return app


async def check(stage: Beside, **rows: str) -> None:
    """Of a program that has the task ``orders/0``."""
    assembling = Assembling(App("a"), StreamsConfig(), stage.worker()._outside)
    patience = Patience(stage, 1_000)  # type: ignore[arg-type]
    await assembling.check_others({"orders/0": ("orders",)}, rows, patience)


@pytest.mark.parametrize("read", [("payments",), ()])
async def test_an_apps_name_is_not_taken_from_another_program(
    read: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """It would be left without tasks, and nobody would notice."""
    with pytest.raises(NotAllowed, match=r"another program runs as a: .* payments/0, payments/1, and .* orders/0"):
        await check(beside("payments/1", "payments/0", read=read))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "stage",
    [
        beside(read=("payments",)),
        beside("orders/0", "by-user/0", read=("payments",)),
        beside("renamed/0", read=("orders",)),
        beside("payments/0", read=("payments",), until_ms=ENDS_MS),
    ],
    ids=["nobody", "another version", "all is renamed", "it ends"],
)
async def test_who_may_have_an_apps_name(stage: Beside) -> None:
    await check(stage)


async def test_a_program_whose_name_is_taken_makes_no_topic() -> None:
    """It would be left behind, and be the other program's."""
    stage = beside("payments/0", read=("payments",))
    with pytest.raises(NotAllowed, match="another program runs as a"):
        await stage.worker().assemble()
    assert stage.topics == {"in", "out"}


# --- rows with other columns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "topic", "of"),
    [(("b.by-k",), "", "changelog"), ((), "a.b.by-k.repartition", "repartition")],
)
async def test_a_program_whose_topics_are_another_apps_makes_none(parts: tuple[str, ...], topic: str, of: str) -> None:
    """The app a has a step called b.by-k, and the app a.b has one called by-k."""
    stage = Stage(program("a.b"), "in", "out")
    at = {TopicPartition(topic, 0): 7} if topic else {}
    stage.known_["a"] = Known("a", True, 0, frozenset(parts), frozenset(), at)
    text = rf"a\.b\.by-k\.{of} belongs to the app a, and a\.b would use it .*; .* headrace group delete a, then"
    with pytest.raises(NotAllowed, match=text):
        await stage.worker().assemble()
    assert stage.topics == {"in", "out"}


def had_read(topic: str, *topics: str, parts: tuple[str, ...] = ("by-k",)) -> Stage:
    """The app has read a topic, and some of its internal topics are left; its group knows these parts with state."""
    stage = Stage(program(), "in", "out", *topics)
    stage.known_["a"] = Known("a", True, 0, frozenset(parts))
    stage.group[TopicPartition(topic, 0)] = Committed(7)
    return stage


@pytest.mark.parametrize(
    "stage",
    [had_read("in"), had_read("in", HOP), had_read(HOP, HOP), had_read(HOP, HOP, parts=())],
    ids=["all gone", "the changelog alone, nothing was read behind", "the changelog alone", "the group does not know"],
)
async def test_state_that_is_gone_does_not_begin_empty(stage: Stage) -> None:
    there = set(stage.topics)
    text = r"'sums' would begin empty.*: a has read .*-0 up to 7, and .* a\.by-k\.changelog, does not exist.* reset a$"
    with pytest.raises(NotAllowed, match=text):
        await stage.worker().assemble()
    assert stage.topics == there


@pytest.mark.parametrize(
    "stage",
    [
        had_read("in", parts=()),
        had_read("in", parts=("by-m",)),
        had_read("in", "a.by-k.changelog"),
        had_read("other"),
    ],
    ids=["kept no state", "kept another state", "a reset has placed it", "a reset has forgotten all"],
)
async def test_state_that_was_not_there_begins_empty(stage: Stage) -> None:
    await stage.worker().assemble()
    assert "a.by-k.changelog" in stage.topics


async def test_a_changelog_that_another_worker_has_made_just_now_is_waited_for() -> None:
    class Late(Stage):
        async def find(self, names: Any) -> Any:
            found = await super().find(names)
            if self.at_ms < 1_000:
                found.pop("a.by-k.changelog", None)
            return found

    stage = Late(program(), "in", "out", HOP, "a.by-k.changelog")
    stage.group[TopicPartition(HOP, 0)] = Committed(7)
    stage.logs[HOP] += [None] * 7
    await stage.worker().assemble()
    assert stage.at_ms >= 1_000


async def test_two_that_start_at_once_are_told_apart_when_one_is_a_member() -> None:
    stage = Stage(program("a.b"), "in", "out")
    worker = stage.worker()
    await worker.assemble()
    stage.known_["a"] = Known("a", True, 1, frozenset({"b.by-k"}))
    with pytest.raises(NotAllowed, match="belongs to the app a"):
        await worker.start()
    assert stage.calls[-1] == "leave the group"


@pytest.mark.parametrize(
    "other",
    [
        Known("a", True, 1, frozenset({"by-k", "in"}), frozenset({"a.by-k.repartition"})),
        Known("a", False, 1, positions={TopicPartition("a.b.by-k.repartition", 0): 7}),
    ],
    ids=["its own", "a reader"],
)
async def test_an_app_whose_name_begins_like_anothers_begins_beside_it(other: Known) -> None:
    stage = Stage(program("a.b"), "in", "out")
    stage.known_["a"] = other
    await stage.worker().assemble()


async def test_a_program_does_not_begin_beside_one_that_sends_other_columns(caplog: pytest.LogCaptureFixture) -> None:
    stage = beside("orders/0", rows="k string")
    said = r"another version of a runs: .* columns k string to rows, .* sends k int64\. Run"
    with pytest.raises(NotAllowed, match=said):
        await check(stage, rows="k int64", more="x")
    assert len(caplog.records) == 1
    stage.until_ms = stage.at_ms + ENDS_MS
    caplog.clear()
    with caplog.at_level("INFO"):
        await check(stage, rows="k int64")
    assert [record.message for record in caplog.records][-1].endswith("have ended; a goes on")


async def test_a_program_begins_beside_one_that_sends_the_same_or_nothing_there() -> None:
    await check(beside("orders/0", rows="k string", theirs="x"), rows="k string", ours="y")


async def test_a_worker_declares_the_columns_of_its_rows() -> None:
    async with Stage(program(), "in", "out") as stage:
        worker = stage.worker()
        await worker.assemble()
        assert worker._assembled.declaration(stage.config).terms == {HOP: ROWS}


def flush(rows: bool, **more: Any) -> tuple[bytes | None, bytes]:
    """What a program sends."""
    if not rows:
        return None, encode(Flush(0, 5, None))
    driver = Driver(program(**more))
    driver.pipe("in", [{"k": "a", "n": 1, "m": 2}])
    driver.commit()
    value = driver.read_raw(HOP)[0]["value"]
    assert isinstance(value, bytes)
    return None, value


OTHER = {"m": agg.sum("m")}


@pytest.mark.parametrize(
    ("log", "at", "refused"),
    [
        ([flush(True, **OTHER)], None, True),
        ([flush(True), flush(False), flush(True, **OTHER)], 1, True),
        ([*[flush(False)] * 70, flush(True, **OTHER)], None, True),
        ([flush(True, **OTHER)], 1, False),
        ([flush(True, **OTHER), flush(False)], 1, False),
        ([flush(True, **OTHER), flush(True)], 1, False),
        ([], None, False),
    ],
    ids=["waits", "behind one without rows", "behind many", "was read", "one without rows", "the next fits", "none"],
)
async def test_a_program_does_not_begin_on_rows_that_it_cannot_read(
    log: list[tuple[bytes | None, bytes]], at: int | None, refused: bool
) -> None:
    """It would send rows of its own after them, and no program could read both."""
    async with Stage(program(), "in", "out", HOP, "a.by-k.changelog") as stage:
        stage.logs[HOP] += log
        if at is not None:
            stage.group[TopicPartition(HOP, 0)] = Committed(at)
        worker = stage.worker()
        if not refused:
            await worker.assemble()
            return
        with pytest.raises(
            NotAllowed, match=f"rows wait in {HOP} .* columns k string, m int64, n int64, and .* {ROWS}"
        ):
            await worker.assemble()


async def test_rows_that_cannot_be_read_are_not_taken_for_none() -> None:
    async with Stage(program(), "in", "out") as stage:
        stage.logs[HOP].append(flush(True))
        worker = stage.worker()
        reader = worker._outside.reader

        async def nothing(*_: object) -> list[Any]:
            stage.at_ms += 1_000
            return []

        reader.poll = reader.at_ends = nothing  # type: ignore[method-assign]
        with pytest.raises(WaitTimedOut, match=r"rows wait in a\.by-k\.repartition-0, and could not be read in 60 s"):
            await worker.assemble()


async def test_rows_of_an_open_transaction_are_not_waited_for() -> None:
    async with Stage(program(), "in", "out") as stage:
        stage.logs[HOP].append(flush(True))
        worker = stage.worker()
        reader = worker._outside.reader

        async def nothing(*_: object) -> list[Any]:
            return []

        reader.poll = nothing  # type: ignore[method-assign]
        before = stage.at_ms
        reader.at_ends = _all  # type: ignore[method-assign]
        await worker.assemble()
        assert stage.at_ms == before


async def _all(partitions: Any) -> Any:
    return partitions


async def test_a_worker_that_is_refused_by_the_group_waits_for_the_others_and_joins() -> None:
    """Both had looked before either was a member."""
    async with Beside(program(), "in", "out") as stage:
        worker = stage.worker()
        await worker.assemble()
        await worker.start()
        stage.shares, stage.until_ms = Shared(frozenset({"in/0"}), {HOP: "other"}), stage.at_ms + ENDS_MS
        refused = stage.members[-1]

        async def poll(timeout_ms: float = 0) -> None:
            raise InconsistentGroupProtocol("members of the group say something else")

        refused.poll = poll  # type: ignore[method-assign]
        await worker._persist(worker.step)
        assert len(stage.members) == 2
        assert stage.at_ms >= stage.until_ms
        assert stage.calls.index("leave the group") < stage.calls.index(f"join as {stage.members[1].transactional_id}")


async def test_a_worker_that_is_refused_by_the_group_ends_if_the_others_stay() -> None:
    async with Beside(program(), "in", "out") as stage:
        worker = stage.worker()
        await worker.assemble()
        await worker.start()
        stage.shares = Shared(frozenset({"in/0"}), {HOP: "other"})

        async def poll(timeout_ms: float = 0) -> None:
            raise InconsistentGroupProtocol("members of the group say something else")

        stage.members[-1].poll = poll  # type: ignore[method-assign]
        with pytest.raises(NotAllowed, match="another version of a runs"):
            await worker._persist(worker.step)


async def test_a_worker_that_gives_way_to_others_can_be_stopped() -> None:
    stop = asyncio.Event()

    class Told(Beside):
        """It is told to stop in its third look at the others."""

        async def sleep_ms(self, ms: float) -> None:
            await super().sleep_ms(ms)
            if self.at_ms > 1_000:
                stop.set()

    async with Told(program(), "in", "out") as stage:
        worker = stage.worker()
        await worker.assemble()
        await worker.start()
        stage.shares = Shared(frozenset({"in/0"}), {HOP: "other"})

        async def poll(timeout_ms: float = 0) -> None:
            raise InconsistentGroupProtocol("members of the group say something else")

        stage.members[-1].poll = poll  # type: ignore[method-assign]
        await worker.run(stop)
        assert stage.calls[-1] == "leave the group"
        assert len(stage.members) == 1
        assert stage.at_ms < ENDS_MS, "it has not waited for them to end"


@pytest.mark.parametrize("fails", ["poll", "commit in@1, a.by-k.repartition@1"])
async def test_a_worker_that_is_put_out_while_it_ends_does_not_join_anew(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    stop = asyncio.Event()
    async with Stage(program(), "in", "out", commit_interval_ms=60_000) as stage:
        stage.write("in", (None, b'{"k": "a", "n": 1, "m": 2}'))
        worker = await stage.working("in/0", "by-k/0")
        await worker.step()
        if fails == "poll":

            async def poll(timeout_ms: float = 0) -> None:
                stop.set()
                raise UnknownMemberId("it was put out")

            stage.members[-1].poll = poll  # type: ignore[method-assign]
        else:
            stop.set()
            stage.fails[fails].append(UnknownMemberId("it was put out"))
        stage.at_ms += 100
        await worker.run(stop)
        assert len(stage.members) == 1
        assert stage.calls[-1] == "leave the group"
        assert "a ends without its last commit, and others do that again: it was put out" in caplog.text


# --- rows that come before this one is a member, and after ------------------------------------------------------------


async def joined(stage: Stage, *items: str, unended: tuple[str, ...] = ()) -> Worker:
    """A worker whose tasks are given to it in its next step."""
    worker = stage.worker()
    await worker.assemble()
    await worker.start()
    given = tuple(GivenItem(item, 1, unended) for item in items or ("in/0", "by-k/0"))
    stage.members[-1].changes.append(WorkChange(assigned=given))
    return worker


async def steps(stage: Stage, worker: Worker, count: int = 30) -> None:
    for _ in range(count):
        stage.at_ms += 10
        await worker._persist(worker.step)


async def test_rows_that_another_program_has_sent_before_this_one_was_a_member_are_seen() -> None:
    async with Stage(program(), "in", "out") as stage:
        worker = await joined(stage)
        stage.logs[HOP].append(flush(True, **OTHER))
        with pytest.raises(NotAllowed, match="rows wait in"):
            await steps(stage, worker)
        assert not worker._here.owned


async def stale(partitions: Any) -> dict[TopicPartition, int]:
    """As a leader says that stood still, and does not know yet that it was deposed."""
    return dict.fromkeys(partitions, 0)


@pytest.mark.parametrize(
    ("row", "refused"),
    [(flush(True, **OTHER), True), (flush(True), False), (None, False)],
    ids=["other", "same", "aborted"],
)
async def test_nothing_is_fed_before_transactions_are_decided_that_hold_rows(row: Any, refused: bool) -> None:
    """A version before this one has committed; its markers have not come yet, since a leader was away."""
    async with Stage(program(), "in", "out") as stage:
        stage.logs[HOP].append(row)
        stage.decided[HOP] = 0
        stage.write("in", (None, b'{"k": "a", "n": 1, "m": 2}'))
        worker = await joined(stage)
        worker._outside.changelogs.ends = stale  # type: ignore[method-assign]
        await steps(stage, worker)
        assert not worker._here.owned
        assert not any(call.startswith("send") for call in stage.calls)
        del stage.decided[HOP]
        if refused:
            with pytest.raises(NotAllowed, match="rows wait in"):
                await steps(stage, worker)
        else:
            await steps(stage, worker)
            assert worker._here.owned.keys() == {"in/0", "by-k/0"}
            assert f"send {HOP}" in stage.calls


async def test_what_others_have_left_open_is_ended_before_rows_are_looked_for() -> None:
    class Late(Stage):
        """A worker that stood still has decided while it was ended."""

        async def end(self, transactional_id: str) -> None:
            await super().end(transactional_id)
            for _ in range(5):
                await asyncio.sleep(0)
            if transactional_id == "b-2":
                self.logs[HOP].append(flush(True, **OTHER))

    async with Late(program(), "in", "out") as stage:
        stage.write("in", (None, b'{"k": "a", "n": 1, "m": 2}'))
        worker = await joined(stage, "in/0", unended=("b-1", "b-2"))
        with pytest.raises(NotAllowed, match="rows wait in"):
            await steps(stage, worker)


async def test_a_transaction_that_is_never_decided_ends_the_worker() -> None:
    async with Stage(program(), "in", "out") as stage:
        stage.logs[HOP].append(flush(True, **OTHER))
        stage.decided[HOP] = 0
        worker = await joined(stage)
        await steps(stage, worker)
        stage.at_ms += 60_000
        with pytest.raises(WaitTimedOut, match=r"rows wait in a\.by-k\.repartition-0, and could not be read in 60 s"):
            await steps(stage, worker)


async def test_rows_are_looked_for_through_failures_and_changes_of_the_group() -> None:
    async with Stage(program(), "in", "out") as stage:
        stage.logs[HOP].append(flush(True))
        stage.decided[HOP] = 0
        worker = await joined(stage)
        await steps(stage, worker)
        member, poll = stage.members[-1], stage.members[-1].poll

        async def fails(timeout_ms: float = 0) -> None:
            member.poll = poll  # type: ignore[method-assign]
            raise CoordinatorNotAvailable("it moves")

        member.poll = fails  # type: ignore[assignment, method-assign]
        await steps(stage, worker)
        member.changes.append(WorkChange(revoked=frozenset({"by-k/0"})))
        await steps(stage, worker)
        del stage.decided[HOP]
        await steps(stage, worker)
        assert worker._here.owned.keys() == {"in/0"}


async def test_what_lies_behind_rows_is_written_before_a_changelog_is_fenced() -> None:
    """Both are by one writer, and a fence in a transaction that is aborted would be none."""
    async with Stage(program(), "in", "out") as stage:
        await steps(stage, await joined(stage, unended=("b-1",)))
        order = [call for call in stage.calls if call.startswith(("end", "mark", "fence"))]
        assert order == ["end b-1", f"mark {HOP}", "fence a.by-k.changelog with 1"]


async def test_a_worker_that_ends_while_it_writes_behind_rows_leaves_at_once() -> None:
    class Waits(Stage):
        """The partition has no leader."""

        def call(self, name: str) -> None:
            super().call(name)
            if name.startswith("mark"):
                raise NetworkFailed("nobody there")

    async with Waits(program(), "in", "out") as stage:
        worker = await joined(stage)
        await worker.step()
        await worker.step()
        taking = worker._here.taking
        async with asyncio.timeout(5):
            await worker.close()
        assert taking is not None
        assert taking._marking is not None
        assert taking._marking.cancelled()
        assert stage.calls[-2:] == ["let go of the writer", "leave the group"]


async def test_a_worker_that_ends_while_rows_are_looked_for_leaves_at_once() -> None:
    async with Stage(program(), "in", "out") as stage:
        stage.logs[HOP].append(flush(True))
        stage.decided[HOP] = 0
        worker = await joined(stage)
        await steps(stage, worker)
        checking = worker._here._checking
        await worker.close()
        assert checking is not None
        assert checking.cancelled()
        assert stage.calls[-1] == "leave the group"


def test_columns_are_told_apart_in_255_characters() -> None:
    assert rows_text({"b": "int64", "a": "string"}) == rows_text({"a": "string", "b": "int64"}) == "a string, b int64"
    many = {f"column_{n}": "int64" for n in range(100)}
    texts = {rows_text(many), rows_text(many | {"z": "int64"}), rows_text(many | {"z": "string"})}
    assert len(texts) == 3
    assert all(len(text) <= 255 for text in texts)
