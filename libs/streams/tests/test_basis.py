"""To which topics the state of a sub-topology belongs: to those that it reads, and to those that its senders read."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.records import TopicPartition
from headrace_streams import App, agg, json
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.state.changelog import Progress
from headrace_streams.plan.basis import basis_of
from headrace_streams.plan.compare import Fate, compare
from headrace_streams.plan.cut import Assembly
from headrace_streams.plan.reset import Standing
from headrace_streams.plan.reset import as_data as kept_as_data
from headrace_streams.ports import TopicFacts
from headrace_streams.runtime.owned import Spec
from headrace_streams.runtime.taking import check_basis
from headrace_streams.upkeep import _described, _Program

HOP, LOG = "a.by-user.repartition", "a.by-user.changelog"


def counted(*topics: str) -> App:
    app = App("a")
    rows = app.stream(topics or "orders", value=json("user string, n bigint"))
    rows.group_by("user", name="by-user").agg(n=agg.count(), name="counts")
    return app


def joined() -> App:
    """Two tables that ask each other."""
    app = App("a")
    users = app.table("users", value=json("name string"), key="id", name="users")
    orders = app.table("orders", value=json("user string, n bigint"), key="order", name="orders")
    orders.join(users, on="user", name="named")
    return app


def chained() -> App:
    """Two repartitions one behind the other."""
    app = App("a")
    rows = app.stream("orders", value=json("user string, n bigint"))
    rows.key_by("user").repartition(name="by-user").group_by("n", name="by-n").agg(m=agg.count(), name="counts")
    return app


def assembled(app: App) -> Assembly:
    return Assembly("a", app.graph, {topic: 2 for node in app.graph.nodes for topic in node.topics})


def facts(assembly: Assembly, *anew: str) -> dict[str, TopicFacts]:
    topics = {topic for part in assembly.parts for topic in part.topics} | assembly.internal().keys()
    return {topic: TopicFacts(f"{topic} 2" if topic in anew else topic, 2) for topic in topics}


def bases(app: App, *anew: str) -> dict[str, dict[str, str]]:
    """By sub-topology, of those with state."""
    assembly = assembled(app)
    ids = {topic: fact.topic_id for topic, fact in facts(assembly, *anew).items()}
    return {part.name: basis_of(assembly, part, ids) for part in assembly.parts if part.stateful}


def topics_of(app: App) -> dict[str, set[str]]:
    return {
        part: {name.removeprefix("topic ") for name in basis if name.startswith("topic ")}
        for part, basis in bases(app).items()
    }


def test_state_behind_a_repartition_belongs_to_the_topics_before_it() -> None:
    assert topics_of(counted("orders", "payments")) == {"by-user": {HOP, "orders", "payments"}}
    assert topics_of(chained()) == {"by-n": {"a.by-n.repartition", "orders"}}


def test_tables_that_ask_each_other_belong_to_the_topics_of_both() -> None:
    found = topics_of(joined())
    assert len(found) == 2
    assert all({"orders", "users"} < topics for topics in found.values())


def take(then: dict[str, str], app: App, *anew: str) -> None:
    """A worker holds state against its program."""
    assembly = assembled(app)
    (part,) = [part for part in assembly.parts if part.stateful]
    spec = Spec(part, 0, (HOP,), bases(app, *anew)[part.name], TopicPartition(LOG, 0))
    check_basis("a", spec, then)


def plan(then: dict[str, str], app: App, *anew: str) -> list[Any]:
    """What ``headrace streams plan`` says of the same."""
    assembly = assembled(app)
    standing = Standing("a", assembly.internal(), progress={TopicPartition(LOG, 0): Progress(basis=then)})
    described = _described(app, _Program(app.graph, assembly, facts(assembly, *anew)))
    return [change for change in compare(kept_as_data(standing), described) if change.fate > Fate.SAFE]


def test_a_topic_before_a_repartition_that_was_made_anew_is_refused() -> None:
    then = bases(counted())["by-user"]
    with pytest.raises(NotAllowed, match=r"topic orders was deleted and made anew.* headrace streams reset a"):
        take(then, counted(), "orders")
    (change,) = plan(then, counted(), "orders")
    assert change.fate is Fate.NEEDS
    assert change.what.startswith("the topic orders was deleted and made anew")


OLDER = {name: said for name, said in bases(counted())["by-user"].items() if name != "topic orders"}


@pytest.mark.parametrize(
    ("then", "app", "anew"),
    [
        (bases(counted())["by-user"], counted(), ()),
        (OLDER, counted(), ("orders",)),
        (bases(counted())["by-user"], counted("orders", "payments"), ()),
        (bases(counted("orders", "payments"))["by-user"], counted(), ("payments",)),
    ],
    ids=["the same", "state that an older version wrote", "one more topic", "one topic less"],
)
def test_what_only_one_side_says_is_no_difference(then: dict[str, str], app: App, anew: tuple[str, ...]) -> None:
    take(then, app, *anew)
    assert plan(then, app, *anew) == []


def test_state_of_a_part_that_the_program_has_no_more_is_in_nobodys_way() -> None:
    """It may belong to a topic that was made anew since; what the program has is not held against it."""
    assembly = assembled(counted())
    gone = {TopicPartition("a.old.changelog", 0): Progress(basis={"topic orders": "0", "old": "n"})}
    standing = Standing("a", assembly.internal() | {"a.old.changelog": 1}, progress=gone)
    described = _described(counted(), _Program(counted().graph, assembly, facts(assembly)))
    assert [change for change in compare(kept_as_data(standing), described) if change.fate > Fate.SAFE] == []


def test_one_task_that_belongs_to_the_old_topic_is_enough() -> None:
    """Another task of the same part began after the topic was made anew."""
    then, now = bases(counted())["by-user"], bases(counted(), "orders")["by-user"]
    assembly = assembled(counted())
    progress = {TopicPartition(LOG, 0): Progress(basis=then), TopicPartition(LOG, 1): Progress(basis=now)}
    standing = Standing("a", assembly.internal(), progress=progress)
    described = _described(counted(), _Program(counted().graph, assembly, facts(assembly, "orders")))
    assert [c.fate for c in compare(kept_as_data(standing), described)][:1] == [Fate.NEEDS]


def test_who_reads_a_topic_is_not_who_has_state_of_it() -> None:
    basis = bases(counted())["by-user"]
    standing = Standing("a", {HOP: 2, LOG: 2}, progress={TopicPartition(LOG, 0): Progress({HOP: 3}, basis=basis)})
    assert (standing.reader_of("orders"), standing.reader_of(HOP)) == ("orders", "by-user")
