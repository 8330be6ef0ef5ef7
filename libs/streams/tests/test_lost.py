"""State that does not belong to what an app has read, as a plan finds it; a worker asks the same of each task."""

from __future__ import annotations

import re

import pytest

from headrace.records import TopicPartition
from headrace_streams import App, agg, json
from headrace_streams.core.state.changelog import Progress
from headrace_streams.plan.cut import Assembly
from headrace_streams.plan.known import Known
from headrace_streams.plan.lost import find_apart, find_lost

HOP, LOG = "a.by-user.repartition", "a.by-user.changelog"


def assembled() -> Assembly:
    app = App("a")
    rows = app.stream("orders", value=json("user string, n bigint"))
    rows.group_by("user", name="by-user").agg(n=agg.sum("n"), name="totals").to("out")
    return Assembly("a", app.graph, {"orders": 1, "out": 1})


def knows(members: int = 0, **at: int) -> Known:
    positions = {TopicPartition({"hop": HOP}.get(name, name), 0): offset for name, offset in at.items()}
    return Known("a", True, members, frozenset({"by-user"}), positions=positions)


def kept(**at: int) -> dict[TopicPartition, Progress]:
    return {TopicPartition(LOG, 0): Progress({HOP: at["hop"]})} if at else {}


@pytest.mark.parametrize(
    ("known", "progress", "text"),
    [
        (knows(orders=5, hop=7), kept(), f"by-user/0 belongs to offset None of {HOP}, and the group a stands at 7"),
        (knows(orders=5, hop=7), kept(hop=6), f"by-user/0 belongs to offset 6 of {HOP}, and the group a stands at 7"),
        (knows(1, orders=5, hop=7), kept(), "belongs to offset None"),
        (knows(), kept(hop=7), "the group a has no offsets, .* and task by-user/0 has state"),
    ],
    ids=["an empty changelog", "another commit", "an empty changelog while it runs", "no positions"],
)
def test_state_of_another_commit_is_said(known: Known, progress: dict[TopicPartition, Progress], text: str) -> None:
    ((name, (what, do)),) = find_apart(assembled(), known, progress).items()
    assert name == "by-user"
    assert re.search(text, what)
    assert do.endswith("to begin anew, headrace streams reset a")


@pytest.mark.parametrize(
    ("known", "progress"),
    [
        (knows(orders=5, hop=7), kept(hop=7)),
        (knows(orders=5), kept()),
        (knows(), kept()),
        (knows(1, orders=5, hop=7), kept(hop=6)),
        (knows(1), kept(hop=6)),
    ],
    ids=["one commit", "nothing read behind", "a new app", "it runs", "its first commit"],
)
def test_state_of_one_commit_is_no_difference(known: Known, progress: dict[TopicPartition, Progress]) -> None:
    assert find_apart(assembled(), known, progress) == {}


def test_one_table_more_in_a_join_is_another_part() -> None:
    app = App("a")
    stock = app.table("stock", value=json("n bigint"), key="item", name="stock")
    prices = app.table("prices", value=json("eur double"), key="item", name="prices")
    stock.join(prices).to("out")
    assembly = Assembly("a", app.graph, {"stock": 1, "prices": 1, "out": 1})
    known = Known("a", True, parts=frozenset({"stock", "other"}), positions={TopicPartition("stock", 0): 5})
    assert find_lost(assembly, known, []) == {
        "prices_and_stock": (
            "the state 'stock', 'prices' would begin empty: a has read stock-0 up to 5, and its state belongs to what "
            "stock reads; the program has it where prices_and_stock is read",
            "read the topics together as before, or, to begin anew, headrace streams reset a",
        )
    }


def test_what_is_lost_is_found() -> None:
    assert list(find_lost(assembled(), knows(orders=5), [HOP])) == ["by-user"]
    assert find_lost(assembled(), knows(orders=5), [HOP, LOG]) == {}
