"""A reset: its steps, what is left when one of them fails, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from libs.streams.tests.kit.upkeep import COMPACTED, MemoryUpkeep

from headrace.records import TopicPartition
from headrace_common.core.errors import HeadraceError, NetworkFailed, NonEmptyGroup, NotFound, Rejected
from headrace_streams.core.state.changelog import CONTROL, Progress, prefix, rows
from headrace_streams.core.state.store import Changes
from headrace_streams.plan import reset
from headrace_streams.plan.known import Known
from headrace_streams.plan.reset import Delete, Drop, Forget, Mark, Place, Standing, Stateful, Step, Unmark
from headrace_streams.runtime.filling import check_new
from headrace_streams.runtime.resetting import carry_out, survey

HOP, HOP_LOG, LOG = "a.by-word.repartition", "a.by-word.changelog", "a.lines.changelog"
MARK = "a.being-reset"
FORMS = {"counts": "n=count()", "seen": "values and timers of a function", "seen.n": "int, 0 at first"}
BASIS = FORMS | {"topic lines": "1"}
TOTALS = {"totals": "n=sum()", f"topic {HOP}": "2"}


def lines(partition: int) -> TopicPartition:
    return TopicPartition("lines", partition)


def log(partition: int, topic: str = LOG) -> TopicPartition:
    return TopicPartition(topic, partition)


def cluster() -> MemoryUpkeep:
    """An app that has counted: two tasks that read lines, two behind a repartition."""
    upkeep = MemoryUpkeep()
    upkeep.groups_ = {"a": 0}
    upkeep.add("lines", 2, {})
    upkeep.add(HOP, 2)
    upkeep.add(HOP_LOG, 2, COMPACTED)
    upkeep.add(LOG, 2, COMPACTED)
    upkeep.positions = {lines(0): 5, lines(1): 7, TopicPartition(HOP, 0): 3}
    state: dict[str, Changes] = {"counts": [(b"x", b"1"), (b"y", b"2")], "seen": [(b"x", b"3")]}
    for partition in (0, 1):
        progress = Progress({"lines": 5 + 2 * partition}, {"lines": 100}, BASIS)
        upkeep.logs[log(partition)] = rows(state, progress)
    upkeep.logs[log(0, HOP_LOG)] = rows({"totals": [(b"x", b"1")]}, Progress({HOP: 3}, {}, TOTALS))
    return upkeep


async def done(upkeep: MemoryUpkeep, steps: list[Step]) -> None:
    await carry_out(upkeep, "a", steps)


# --- what there is ----------------------------------------------------------------------------------------------------


async def test_what_there_is() -> None:
    standing = await survey(cluster(), "a")
    assert standing.topics == {HOP: 2, HOP_LOG: 2, LOG: 2}
    assert standing.positions == {lines(0): 5, lines(1): 7}
    assert list(standing.progress) == [log(0, HOP_LOG), log(0), log(1)]
    assert (standing.members, standing.marked, standing.foreign) == (0, False, [])


async def test_topics_that_only_have_such_a_name_are_left_alone() -> None:
    upkeep = cluster()
    upkeep.add("a.orders.changelog", 1, {})  # nothing of how Streams makes one
    upkeep.add("a.words.repartition", 1, COMPACTED)  # not as a repartition is made
    upkeep.groups_["a.b"] = 0
    upkeep.add("a.b.lines.changelog", 1, COMPACTED)  # the app a.b has it, by its name
    standing = await survey(upkeep, "a")
    assert standing.topics == {HOP: 2, HOP_LOG: 2, LOG: 2}
    assert standing.foreign == ["a.b.lines.changelog", "a.orders.changelog", "a.words.repartition"]


def beside(name: str, members: int = 0, *topics: str, parts: tuple[str, ...] = ()) -> Known:
    """Another app, whose group stands in these topics."""
    positions = {TopicPartition(topic, 0): 3 for topic in topics}
    return Known(name, True, members, frozenset(parts), frozenset(), positions)


@pytest.mark.parametrize("members", [0, 1])
async def test_topics_are_the_apps_whose_group_says_so_whatever_their_names(members: int) -> None:
    """The app a has a step called b.x; of the app a.b, with a step x, the topics would be called the same."""
    upkeep = cluster()
    upkeep.add("a.b.x.repartition")
    upkeep.add("a.b.x.changelog", 1, COMPACTED)
    upkeep.groups_ |= {"a": members, "a.b": 0}
    upkeep.known_["a"] = beside("a", members, "a.b.x.repartition", parts=("b.x",))
    other = await survey(upkeep, "a.b")
    assert (other.topics, other.foreign) == ({}, ["a.b.x.changelog", "a.b.x.repartition"])
    standing = await survey(upkeep, "a")
    assert {"a.b.x.repartition", "a.b.x.changelog"} < standing.topics.keys()
    assert standing.foreign == []


async def test_topics_that_an_app_that_runs_may_have_made_are_left_alone() -> None:
    upkeep = cluster()
    upkeep.add("a.b.x.changelog", 1, COMPACTED)
    upkeep.groups_ = {"a": 1, "a.b": 0}
    upkeep.known_["a"] = beside("a", 1, parts=("y",))
    assert (await survey(upkeep, "a.b")).foreign == ["a.b.x.changelog"]
    assert (await survey(upkeep, "a.b", own=["a.b.x.changelog"])).topics == {"a.b.x.changelog": 1}
    upkeep.known_["a.b"] = beside("a.b", parts=("x",))
    assert (await survey(upkeep, "a.b")).topics == {"a.b.x.changelog": 1}
    upkeep.known_ = {"a": beside("a", 0, parts=("y",))}
    assert (await survey(upkeep, "a.b")).topics == {"a.b.x.changelog": 1}


@pytest.mark.parametrize("own", [("a.b.x.repartition",), ()])
async def test_nothing_is_changed_of_an_app_that_shares_a_topic(own: tuple[str, ...]) -> None:
    upkeep = cluster()
    upkeep.add("a.b.x.repartition")
    upkeep.groups_ = {"a": 1, "a.b": 0}
    upkeep.known_["a"] = beside("a", 1, "a.b.x.repartition")
    if not own:
        upkeep.known_["a.b"] = beside("a.b", 0, "a.b.x.repartition")
    standing = await survey(upkeep, "a.b", own)
    assert (standing.topics, standing.foreign, standing.shared) == ({}, [], {"a.b.x.repartition": "a"})
    for plan in (lambda: reset.whole(standing, {}, None), lambda: reset.of_store(standing, "c")):
        with pytest.raises(
            Rejected, match=r"a\.b\.x\.repartition belongs to the app a, .* headrace group delete a, then"
        ):
            plan()
    with pytest.raises(Rejected, match="belongs to the app a"):
        check_new(standing)


async def test_a_topic_that_is_not_there_yet_may_be_anothers() -> None:
    upkeep = cluster()
    upkeep.groups_ = {"a": 0, "a.b": 0}
    upkeep.known_["a"] = beside("a", 0, parts=("b.x",))
    assert (await survey(upkeep, "a.b", own=["a.b.x.changelog"])).shared == {"a.b.x.changelog": "a"}


async def test_a_repartition_that_workers_send_to_is_theirs_before_anything_of_it_is_read() -> None:
    upkeep = cluster()
    upkeep.groups_ = {"a": 1, "a.b": 0}
    upkeep.known_["a"] = replace(beside("a", 1), hops=frozenset({"a.b.x.repartition"}))
    assert (await survey(upkeep, "a.b", own=["a.b.x.repartition"])).shared == {"a.b.x.repartition": "a"}


async def test_who_only_reads_a_topic_does_not_have_it() -> None:
    upkeep = cluster()
    upkeep.add("a.b.x.repartition")
    upkeep.groups_ = {"a": 1, "a.b": 0}
    upkeep.known_["a"] = replace(beside("a", 1, "a.b.x.repartition"), works=False)
    assert (await survey(upkeep, "a.b")).topics == {"a.b.x.repartition": 1}


async def test_a_program_knows_its_own_topics_and_those_of_others() -> None:
    upkeep = cluster()
    upkeep.add("a.orders.changelog", 1, {})
    standing = await survey(upkeep, "a", own=["a.orders.changelog"], outside=[LOG])
    assert standing.topics == {HOP: 2, HOP_LOG: 2, "a.orders.changelog": 1}


async def test_a_topic_that_somebody_writes_is_no_mark() -> None:
    upkeep = cluster()
    upkeep.add(MARK)
    assert (await survey(upkeep, "a")).marked
    upkeep.written.add(MARK)
    with pytest.raises(Rejected, match=rf"there are records in the topic {MARK}, .*give the app another name"):
        await survey(upkeep, "a")


async def test_what_there_is_can_be_compared_with_a_program() -> None:
    data = reset.as_data(await survey(cluster(), "a"))
    assert data["topics"] == {HOP: 2, HOP_LOG: 2, LOG: 2}
    assert data["sub_topologies"] == [
        {"name": "by-word", "stores": {"totals": "n=sum()"}, "topic_ids": {HOP: "2"}},
        {"name": "lines", "stores": FORMS, "topic_ids": {"lines": "1"}},
    ]


# --- the whole --------------------------------------------------------------------------------------------------------

PARTS = [Stateful(LOG, 2, {"lines": "1"}), Stateful(HOP_LOG, 2, {})]


async def test_from_the_first_record_on() -> None:
    upkeep = cluster()
    steps = reset.whole(await survey(upkeep, "a"), {}, None)
    assert steps == [
        Mark(MARK),
        Delete(HOP_LOG, 2),
        Delete(HOP, 2),
        Delete(LOG, 2),
        Forget({lines(0): 5, lines(1): 7}),
        Unmark(MARK),
    ]
    await done(upkeep, steps)
    assert list(upkeep.listed) == ["lines"]
    assert upkeep.positions == {}


async def test_from_elsewhere_on() -> None:
    """Tasks with state go by the positions in their changelogs; behind a repartition there are none."""
    upkeep = cluster()
    steps = reset.whole(await survey(upkeep, "a"), {lines(0): 9, lines(1): 9}, PARTS)
    belongs = {"topic lines": "1"}
    at = {log(0): Progress({"lines": 9}, basis=belongs), log(1): Progress({"lines": 9}, basis=belongs)}
    assert steps[4:] == [Place({lines(0): 9, lines(1): 9}, {LOG: 2, HOP_LOG: 2}, at), Unmark(MARK)]
    await done(upkeep, steps)
    assert sorted(upkeep.listed) == [HOP_LOG, LOG, "lines"]
    assert upkeep.positions == {lines(0): 9, lines(1): 9}
    assert await upkeep.progress([log(0), log(1)]) == at


async def test_partitions_without_a_place_begin_at_the_first_record() -> None:
    steps = reset.whole(await survey(cluster(), "a"), {lines(1): 9}, PARTS)
    assert steps[4] == Forget({lines(0): 5})
    place = steps[5]
    assert isinstance(place, Place)
    assert list(place.progress) == [log(1)]


async def test_where_state_begins_is_not_known_without_the_program() -> None:
    upkeep = cluster()
    with pytest.raises(Rejected, match="give the program in place of the name"):
        reset.whole(await survey(upkeep, "a"), {lines(0): 9}, None)
    lost = Standing("a", positions={lines(0): 5}, known=Known("a", True, parts=frozenset({"by-word"})))
    with pytest.raises(Rejected, match="give the program in place of the name"):
        reset.whole(lost, {lines(0): 9}, None)
    stateless = Standing("a", positions={lines(0): 5})
    assert reset.whole(stateless, {lines(0): 9}, None) == [Mark(MARK), Place({lines(0): 9}), Unmark(MARK)]


@pytest.mark.parametrize("targets", [{}, {lines(0): 9, lines(1): 9}])
async def test_cut_off_anywhere_the_mark_is_left_and_the_next_reset_ends_it(targets: dict[TopicPartition, int]) -> None:
    whole = cluster()
    await done(whole, reset.whole(await survey(whole, "a"), targets, PARTS))
    for number in range(1, len(whole.calls)):
        upkeep = cluster()
        upkeep.fails_at = number
        with pytest.raises(NetworkFailed):
            await done(upkeep, reset.whole(await survey(upkeep, "a"), targets, PARTS))
        assert MARK in upkeep.listed, whole.calls[number]
        standing = await survey(upkeep, "a")
        assert standing.marked
        await done(upkeep, reset.whole(standing, targets, PARTS))
        assert list(upkeep.listed) == list(whole.listed)
        assert upkeep.positions == whole.positions
        assert upkeep.logs == whole.logs


async def test_before_the_first_step_nothing_has_changed() -> None:
    upkeep = cluster()
    upkeep.fails_at = 0
    with pytest.raises(NetworkFailed):
        await done(upkeep, reset.whole(await survey(upkeep, "a"), {}, PARTS))
    assert upkeep.listed == cluster().listed


async def test_an_app_that_runs_is_left_alone() -> None:
    upkeep = cluster()
    steps = reset.whole(await survey(upkeep, "a"), {}, None)
    upkeep.groups_["a"] = 2
    with pytest.raises(NonEmptyGroup, match="the app a runs: its group has 2 members; stop all workers first"):
        await done(upkeep, steps)
    assert upkeep.calls == []


async def test_a_worker_that_starts_while_the_mark_is_set_is_seen() -> None:
    """It did not see the mark, so it must be seen; one that starts later sees it."""
    upkeep = cluster()
    steps = reset.whole(await survey(upkeep, "a"), {}, None)
    upkeep.joins_at = f"make {MARK}"
    with pytest.raises(NonEmptyGroup):
        await done(upkeep, steps)
    assert upkeep.listed == cluster().listed


async def test_an_app_that_has_read_nothing_is_as_it_would_be() -> None:
    assert reset.whole(Standing("a"), {}, PARTS) == []
    assert reset.whole(Standing("a", marked=True), {}, PARTS) == [Mark(MARK), Unmark(MARK)]


# --- one store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["counts", "seen"])
async def test_the_rows_of_one_store(store: str) -> None:
    upkeep = cluster()
    before = upkeep.rows(log(0))
    steps = reset.of_store(await survey(upkeep, "a"), store)
    assert steps == [Drop(store, (log(0), log(1)))]
    await done(upkeep, steps)
    after = upkeep.rows(log(0))
    assert set(after) == {key for key in before if not key.startswith(prefix(store))}
    assert all(after[key] == before[key] for key in after if key != CONTROL)
    progress = (await upkeep.progress([log(0)]))[log(0)]
    assert (progress.positions, progress.watermarks) == ({"lines": 5}, {"lines": 100})
    assert progress.basis == {name: said for name, said in BASIS.items() if name.partition(".")[0] != store}
    assert upkeep.positions == cluster().positions


async def test_there_is_no_such_store() -> None:
    with pytest.raises(NotFound, match="a has no state 'n'; it has counts, seen, totals"):
        reset.of_store(await survey(cluster(), "a"), "n")


async def test_one_store_is_all_or_nothing() -> None:
    whole = cluster()
    await done(whole, reset.of_store(await survey(whole, "a"), "counts"))
    for number in range(len(whole.calls)):
        upkeep = cluster()
        upkeep.fails_at = number
        with pytest.raises(NetworkFailed):
            await done(upkeep, reset.of_store(await survey(upkeep, "a"), "counts"))
        assert upkeep.logs == cluster().logs
        assert upkeep.positions == cluster().positions


async def test_what_is_read_of_a_store_is_all_there_will_be() -> None:
    """Nobody of before can write any more, and who writes meanwhile has nothing overwritten."""
    upkeep = cluster()
    steps = reset.of_store(await survey(upkeep, "a"), "counts")
    await done(upkeep, steps)
    first, second = log(0), log(1)
    of_partitions = [f"take over {first}", f"read {first}", f"take over {second}", f"read {second}"]
    assert upkeep.calls == [*of_partitions, "begin", f"append {first}", f"append {second}", "commit"]

    late = cluster()
    late.writes_at = "begin"
    with pytest.raises(Rejected, match="a worker of a has written to its state meanwhile; nothing was changed"):
        await done(late, steps)
    assert late.rows(first) == cluster().rows(first)


async def test_a_worker_that_starts_while_a_store_is_deleted_is_seen() -> None:
    upkeep = cluster()
    upkeep.joins_at = "begin"
    with pytest.raises(NonEmptyGroup):
        await done(upkeep, reset.of_store(await survey(upkeep, "a"), "counts"))
    assert upkeep.logs == cluster().logs


async def test_a_store_of_an_app_whose_reset_was_cut_off() -> None:
    upkeep = cluster()
    upkeep.add(MARK)
    with pytest.raises(HeadraceError, match=r"a reset of a has begun and not ended: .* run it again, without --store"):
        reset.of_store(await survey(upkeep, "a"), "counts")


# --- what people see --------------------------------------------------------------------------------------------------


async def test_the_steps_as_rows() -> None:
    standing = await survey(cluster(), "a")
    found = reset.rows(standing, reset.whole(standing, {lines(1): 9}, PARTS))
    assert [tuple(row.values()) for row in found] == [
        ("mark", MARK, None, None, None),
        ("delete", HOP_LOG, "0-1", None, None),
        ("delete", HOP, "0-1", None, None),
        ("delete", LOG, "0-1", None, None),
        ("forget", "lines", 0, 5, "first"),
        ("place", "lines", 1, 7, 9),
        ("unmark", MARK, None, None, None),
    ]
    assert [row["partition"] for row in reset.rows(standing, reset.of_store(standing, "counts"))] == [0, 1]
