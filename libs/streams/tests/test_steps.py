"""
A worker's steps as dialogues: what it is told, and what it asks for then, in its order.

====================================  =================================================================================
a commit                              here, unless another module is named
====================================  =================================================================================
1 rows leave in the open transaction  ``…rows_leave_in_the_open_transaction``, ``…a_successor_ends_what_was_open``
2 no task is fed; all encode          ``…the_steps_of_a_commit``, ``…what_fails_in_a_commit_goes_the_way_of_errors``
3 changelog rows are not delivered    ``…what_fails_before_the_verdict_is_done_again``
4 positions: the member has moved on  of the SDK: ``transactions/test_consume_transform_produce``
  put out, fenced                     ``…who_was_put_out_joins_anew``, ``…another_process_is_this_worker_now``
5 the verdict is not known            ``test_writer``
6 dies before its disk has it         ``…a_disk_that_is_one_commit_behind_is_brought_up_from_the_changelog``
7 masks are cleared, topics trimmed   ``…the_steps_of_a_commit``, ``…repartition_topics_are_trimmed_now_and_then``
8 the verdict: aborted                ``…what_fails_before_the_verdict_is_done_again``, ``…that_of_the_disk``
early commits                         ``…committed_before_it_times_out…``; ``test_worker``
given up                              ``…what_is_revoked_is_committed_first``
taken over, (a) to (e)                ``…a_successor_ends_what_was_open``
positions differ                      ``test_worker``
at least once                         ``…rows_do_not_wait_for_the_commit_at_least_once``, ``test_writer``
====================================  =================================================================================

====================================  =================================================================================
bad input
====================================  =================================================================================
value, type or time that is wrong     ``test_errors``, ``formats``
null key                              ``test_errors``
row or state that is too large        ``test_errors``; ``…state_that_no_changelog_takes_ends_the_app``
source missing, deleted               ``test_worker``
source made anew                      ``test_basis``; ``…state_of_a_topic_that_was_made_anew_is_not_gone_on_with``
committed position is gone            ``test_worker``, ``test_reader``
plan that does not fit                ``test_compare``, ``test_form``, ``test_golden``; ``…does_not_join``
function that blocks                  ``test_worker``
disk that is full                     ``…a_disk_that_is_one_commit_behind_is_brought_up_from_the_changelog``
====================================  =================================================================================
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
import pytest
from libs.streams.tests.kit.stage import Stage

from headrace.records import Committed, TopicPartition
from headrace.work_types import GivenItem, WorkChange
from headrace_common.core.errors import (
    ConcurrentTransactions,
    FencedInstanceId,
    FencedWriter,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidRecord,
    NetworkFailed,
    NotEnoughReplicas,
    ProducerFenced,
    RecordTooLarge,
    TransactionAbortable,
    UnknownMemberId,
)
from headrace_streams import App, agg, string, value
from headrace_streams.adapters.rocksdb_store import StateStorageFailed
from headrace_streams.core.errors import NotAllowed, RowFailed, StateFailed
from headrace_streams.core.state.changelog import ROW_BYTES_MAX
from headrace_streams.ports import TopicFacts

LOG = "a.lines.changelog"
COMMIT = [f"send {LOG}", "commit lines@1"]


def counting(**settings: Any) -> Stage:
    """An app with one task that has state and writes a row for each record."""
    app = App("a")
    app.stream("lines", value=string, key="k").group_by("k").agg(n=agg.count(), name="counts", emit="every").to("out")
    return Stage(app, "lines", "out", **settings)


def counts(stage: Stage) -> list[int]:
    """What is committed in the output."""
    return [orjson.loads(row[1] or b"")["n"] for row in stage.logs["out"] if row is not None]


async def step(stage: Stage, worker: Any, *, due: bool = False) -> list[str]:
    """One step of its work; what it has asked for meanwhile."""
    before = len(stage.calls)
    stage.at_ms += 100 if due else 0
    await worker._persist(worker.step)
    return stage.calls[before:]


async def test_rows_leave_in_the_open_transaction() -> None:
    async with counting() as stage:
        worker = await stage.working("lines/0")
        assert await step(stage, worker) == [], "nothing is begun for nothing"
        stage.write("lines", (b"a", b"x"))
        assert await step(stage, worker) == ["begin", "send out"]
        stage.write("lines", (b"a", b"y"))
        assert await step(stage, worker) == ["send out"], "one transaction until the commit"
        assert (stage.group, counts(stage)) == ({}, [])


async def test_the_steps_of_a_commit() -> None:
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        end = len(stage.logs[LOG])
        asked = await step(stage, worker, due=True)
        assert asked == ["begin", "send out", *COMMIT, f"disk to {end + 2}"], "its key, and the control row"
        assert stage.group == {TopicPartition("lines", 0): Committed(1)}
        assert worker._here.owned["lines/0"].task.dirty_bytes() == 0
        assert await step(stage, worker, due=True) == [], "nothing has been done since"


async def test_a_transaction_is_committed_before_it_times_out_however_seldom_commits_are_wanted() -> None:
    """Else the coordinator would abort it, and this worker would be fenced, again and again."""
    async with counting(commit_interval_ms=60_000, transaction_timeout_ms=10_000) as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        assert await step(stage, worker) == ["begin", "send out"]
        stage.at_ms += 2_499
        assert await step(stage, worker) == []
        stage.at_ms += 1
        assert (await step(stage, worker))[:2] == COMMIT


@pytest.mark.parametrize("said", [TransactionAbortable("timed out"), InvalidProducerEpoch("timed out")], ids=str)
async def test_a_row_that_takes_longer_than_a_transaction_may_is_got_past(
    said: HeadraceError, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows before it have begun one. All is done again from the last commit, and then each part in one of its own."""

    def work(row: dict[str, Any]) -> dict[str, Any]:
        stage.at_ms += 15_000 if row["value"] == "slow" else 1
        return row

    app = App("a")
    app.stream("lines", value=string, key="k").map(work).to("out")
    async with Stage(app, "lines", "out", transaction_timeout_ms=10_000) as stage:
        stage.timed_out = said
        lines = [b"%d" % n for n in range(900)]
        lines[550] = lines[899] = b"slow"
        stage.write("lines", *((b"k", line) for line in lines))
        worker = await stage.working("lines/0")
        joined = len(stage.members)
        async with asyncio.timeout(30):
            for _ in range(40):
                await step(stage, worker)
                if len(stage.members) > joined:
                    joined = len(stage.members)
                    stage.members[-1].changes.append(WorkChange(assigned=(GivenItem("lines/0", joined),)))
        assert stage.group[TopicPartition("lines", 0)].offset == 900
        out = [orjson.loads(row[1] or b"")["value"].encode() for row in stage.logs["out"] if row is not None]
        assert out == lines, "each once"
        assert stage.calls.count("begin") < 20
    told = [record.getMessage() for record in caplog.records if "transaction_timeout_ms" in record.getMessage()]
    assert len(told) == 1, "once it is careful, it comes no more"


async def test_a_successor_ends_what_was_open() -> None:
    """(a) what others left open, a fence, (b) positions, (c, d) the changelog, (e) it is fed."""
    async with counting() as stage:
        first = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        await step(stage, first, due=True)
        stage.write("lines", (b"a", b"y"))
        assert await step(stage, first) == ["begin", "send out"]
        await stage.kill(first)
        stage.disks.stores.clear()
        begun = len(stage.calls)
        second = await stage.working("lines/0", epoch=2, unended=("a-1",))
        assert stage.calls[begun:] == [
            "join as a-2",
            "end a-1",
            "report ended ('a-1',)",
            f"fence {LOG} with 2",
            "ask for positions",
            f"disk to {len(stage.logs[LOG])}",
            "read lines@1",
        ]
        await step(stage, second, due=True)
        assert counts(stage) == [1, 2], "as of the last commit, and once"


@pytest.mark.parametrize("call", ["begin", "send out", f"send {LOG}", "commit lines@1"])
@pytest.mark.parametrize("error", [NotEnoughReplicas, ConcurrentTransactions, NetworkFailed])
async def test_what_fails_before_the_verdict_is_done_again(call: str, error: type[HeadraceError]) -> None:
    """The same rows with the same result: what was in memory alone is dropped, and read again from the disk."""
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        stage.fails[call].append(error())
        asked = await step(stage, worker, due=True)
        again = ["read lines@0", "begin", "send out", *COMMIT, f"disk to {len(stage.logs[LOG])}"]
        assert asked[asked.index(call) + 1 :] == [*([] if call == "begin" else ["abort"]), *again]
        assert (stage.group, counts(stage)) == ({TopicPartition("lines", 0): Committed(1)}, [1])
        assert worker.figures.counts["rewinds"] == 1


@pytest.mark.parametrize("cause", [InvalidRecord, RecordTooLarge])
async def test_what_a_broker_does_not_take_is_not_sent_for_ever(cause: type[HeadraceError]) -> None:
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        refused = TransactionAbortable("call abort_transaction() and do its work again: the broker says why")
        refused.__cause__ = cause("the broker says why")
        stage.fails["send out"].append(refused)
        with pytest.raises(cause, match=r"^the broker says why"):
            await step(stage, worker, due=True)


async def test_state_of_an_aborted_commit_is_that_of_the_disk() -> None:
    async with counting() as stage:
        worker = await stage.working("lines/0")
        for n in range(1, 4):
            stage.write("lines", (b"a", b"x"))
            stage.fails[f"commit lines@{n}"].append(NotEnoughReplicas())
            await step(stage, worker, due=True)
            await step(stage, worker, due=True)
        assert counts(stage) == [1, 2, 3]


@pytest.mark.parametrize("call", ["send out", f"send {LOG}", "commit lines@1", "abort"])
@pytest.mark.parametrize("error", [UnknownMemberId, ProducerFenced, InvalidProducerEpoch])
async def test_who_was_put_out_joins_anew(call: str, error: type[HeadraceError]) -> None:
    """It lets go of everything first, under another member id and another transactional id then."""
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        if call == "abort":
            stage.fails["commit lines@1"].append(NotEnoughReplicas())
        stage.fails[call].append(error())
        asked = await step(stage, worker, due=True)
        after = asked[asked.index(call) + 1 :]
        assert after == ["let go of the writer", "leave the group", "join as a-2"]
        assert (stage.group, counts(stage), worker._here.owned) == ({}, [], {})


async def test_a_member_whose_token_is_too_low_takes_its_tasks_anew() -> None:
    """The first time it only goes back: most who are fenced were put out, and hear of it."""
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        for _ in range(2):
            refused = TransactionAbortable("do it again")
            refused.__cause__ = FencedWriter("the fencing token is 9")
            stage.fails["commit lines@1"].append(refused)
        asked = await step(stage, worker, due=True)
        assert asked.count("abort") == 1
        assert asked[-1] == "join as a-2"
        stage.members[-1].changes.append(WorkChange(assigned=(GivenItem("lines/0", 10),)))
        for _ in range(40):
            if not counts(stage):
                await step(stage, worker, due=True)
        assert counts(stage) == [1]
        stage.write("lines", (b"a", b"y"))
        refused = TransactionAbortable("do it again")
        refused.__cause__ = FencedWriter("the fencing token is 11")
        stage.fails["commit lines@2"].append(refused)
        await step(stage, worker, due=True)
        assert (len(stage.members), counts(stage)) == (2, [1, 2]), "it has got on since"


async def test_another_process_is_this_worker_now() -> None:
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        stage.fails["commit lines@1"].append(FencedInstanceId())
        with pytest.raises(FencedInstanceId):
            await step(stage, worker, due=True)
        assert stage.calls[-1] == "commit lines@1", "the other one has its place"


async def test_a_disk_that_is_one_commit_behind_is_brought_up_from_the_changelog() -> None:
    """It is full: the commit stands, and its worker ends."""
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        await step(stage, worker, due=True)
        end = len(stage.logs[LOG])
        stage.write("lines", (b"a", b"y"))
        stage.fails[f"disk to {end + 2}"].append(StateStorageFailed("no space left"))
        with pytest.raises(StateStorageFailed):
            await step(stage, worker, due=True)
        assert stage.group == {TopicPartition("lines", 0): Committed(2)}
        kept = stage.disks.open("lines", 0).checkpoint()
        assert kept is not None
        assert kept.next_offset == end, "it says so"
        await stage.kill(worker)
        again = await stage.working("lines/0", epoch=2)
        assert stage.calls[-2:] == [f"disk to {end + 3}", "read lines@2"], "two rows, and the fence"
        stage.write("lines", (b"a", b"z"))
        await step(stage, again, due=True)
        assert counts(stage) == [1, 2, 3]


def failing_at_the_commit(on_error: str) -> Stage:
    """A function that fails for rows that leave only when a commit begins."""
    app = App("a", on_error=on_error)

    def fail(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] > 1:
            raise ValueError("too many")
        return row

    grouped = app.stream("lines", value=string, key="k").group_by("k")
    grouped.agg(n=agg.count(), name="counts").map(fail).to("out")
    return Stage(app, "lines", "out", "dead")


async def test_what_fails_in_a_commit_goes_the_way_of_errors() -> None:
    for on_error, sent in (("skip", []), ("dead", ["send dead"])):
        async with failing_at_the_commit(on_error) as stage:
            worker = await stage.working("lines/0")
            stage.write("lines", (b"a", b"x"), (b"a", b"y"))
            asked = await step(stage, worker, due=True)
            assert asked[:-1] == [*(["begin", *sent] if sent else ["begin"]), f"send {LOG}", "commit lines@2"]
    async with failing_at_the_commit("fail") as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"), (b"a", b"y"))
        with pytest.raises(RowFailed, match="ValueError: too many"):
            await step(stage, worker, due=True)
        assert (stage.group, stage.calls[-1]) == ({}, "read lines@0"), "nothing was begun"


async def test_state_that_no_changelog_takes_ends_the_app() -> None:
    """It is named with its key before anything of it is sent."""
    app = App("a")
    stream = app.stream("lines", value=string, key="k")

    @stream.process(name="all", state={"text": value(str)})
    def keep(row: Any, state: Any, context: Any) -> None:
        state.text += row["value"] * (ROW_BYTES_MAX if row["value"] == "x" else 1)

    async with Stage(app, "lines") as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"ann", b"x"))
        with pytest.raises(StateFailed, match=r"the state 'all' of key b'ann' has 8,\d+,\d+ bytes, and at most"):
            await step(stage, worker, due=True)
        assert stage.calls[-1] == "read lines@0"
        assert stage.group == {}


async def test_state_of_a_topic_that_was_made_anew_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        await step(stage, worker, due=True)
        await stage.kill(worker)

        async def find(names: list[str]) -> dict[str, TopicFacts]:
            of = {"lines": "another id"}
            return {name: TopicFacts(of.get(name, f"id of {name}"), 1) for name in names if name in stage.topics}

        monkeypatch.setattr(stage, "find", find)
        with pytest.raises(NotAllowed, match=r"topic lines was deleted and made anew.* headrace streams reset a"):
            await stage.working("lines/0", epoch=2)
        assert counts(stage) == [1]


async def test_a_program_that_keeps_its_state_otherwise_does_not_join() -> None:
    """It would get tasks without state, and write rows that the workers of the program before do not know."""
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        await step(stage, worker, due=True)
        for _ in range(200):  # the row that is looked for is the last one of a commit, however long the log is
            stage.logs[LOG].insert(0, (b"\x06countsz", b"z"))
        changed = App("a")
        rows = changed.stream("lines", value=string, key="k").group_by("k")
        rows.agg(n=agg.count(), keys=agg.count("k"), name="counts", emit="every").to("out")
        stage.app = changed
        with pytest.raises(NotAllowed, match=r"'counts' is kept as n=count\(\).*; the program wants .*keys=count"):
            await stage.worker().assemble()
        assert len(stage.members) == 1


async def test_a_producer_that_did_not_begin_is_begun_again() -> None:
    async with counting() as stage:
        worker = await stage.working()
        stage.members[-1].changes.append(WorkChange(assigned=(GivenItem("lines/0", 1),)))
        stage.fails["open"].append(NetworkFailed())
        with pytest.raises(NetworkFailed):
            await worker._hear()
        stage.write("lines", (b"a", b"x"))
        while not worker._here.owned:
            await worker._hear()
        await step(stage, worker, due=True)
        assert counts(stage) == [1]


async def test_what_is_revoked_is_committed_first() -> None:
    async with counting() as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        await step(stage, worker)
        stage.members[-1].changes.append(WorkChange(revoked=frozenset({"lines/0"})))
        stage.at_ms += 20
        asked = await step(stage, worker)
        assert asked == [*COMMIT, f"disk to {len(stage.logs[LOG])}", "give up lines/0", "read "]
        stage.write("lines", (b"a", b"y"))
        assert await step(stage, worker, due=True) == [], "it is not fed any more"


async def test_rows_do_not_wait_for_the_commit_at_least_once() -> None:
    """What was seen may come again; state is that of the commit."""
    async with counting(processing_guarantee="at_least_once") as stage:
        worker = await stage.working("lines/0")
        stage.write("lines", (b"a", b"x"))
        assert await step(stage, worker) == ["send out at once"]
        assert counts(stage) == [1]
        stage.fails["commit lines@1"].append(NotEnoughReplicas())
        asked = await step(stage, worker, due=True)
        assert asked[:4] == ["begin", *COMMIT, "abort"]
        await step(stage, worker, due=True)
        stage.write("lines", (b"a", b"y"))
        await step(stage, worker, due=True)
        assert counts(stage) == [1, 1, 2]


@pytest.mark.parametrize("item", ["lines/0", "by-word/0"])
async def test_rows_for_other_tasks_are_in_their_topic_before_positions_are_taken(item: str) -> None:
    """A worker that is put out in between has sent nothing that comes later."""
    app = App("a")
    words = app.stream("lines", value=string).group_by("value", name="by-word")
    words.agg(n=agg.count(), name="counts").to("out")
    async with Stage(app, "lines", "out") as stage:
        worker = await stage.working(item)
        stage.write("lines", (None, b"x"))
        calls = await step(stage, worker, due=True)
        sent = "send a.by-word.repartition"
        first = [call.split("@")[0] for call in calls if call in {sent, "flush"} or call.startswith("commit")]
        assert first == ([sent, "flush", "commit lines"] if item == "lines/0" else ["commit a.by-word.repartition"])


async def test_repartition_topics_are_trimmed_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """Below what is committed; it is only space, so a failure stops nothing."""
    app = App("a")
    words = app.stream("lines", value=string).group_by("value", name="by-word")
    words.agg(n=agg.count(), name="counts").to("out")
    async with Stage(app, "lines", "out", trim_interval_ms=30_000) as stage:
        worker = await stage.working("lines/0", "by-word/0")
        trims = []
        for turn in range(1, 9):
            stage.write("lines", (None, b"x"))
            stage.at_ms += 10_000
            if turn == 6:
                stage.fails[f"trim a.by-word.repartition@{turn}"].append(NetworkFailed("nobody there"))
            with caplog.at_level(logging.WARNING):
                trims += [one for one in await step(stage, worker, due=True) if one.startswith("trim")]
        assert trims == ["trim a.by-word.repartition@3", "trim a.by-word.repartition@6"]
        assert stage.group[TopicPartition("a.by-word.repartition", 0)].offset >= 5
