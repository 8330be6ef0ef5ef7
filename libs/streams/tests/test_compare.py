"""Two programs under one name: what becomes of the state of the first."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable
from typing import Any

import pytest

from headrace_streams import App, agg, col, json, tumbling, value
from headrace_streams.core.errors import NotAllowed
from headrace_streams.dsl.stream import Stream
from headrace_streams.plan.compare import Change, Fate, compare, differing, store_of
from headrace_streams.plan.cut import Assembly
from headrace_streams.plan.describe import as_data


def orders(app: App, topic: str = "orders") -> Stream:
    return app.stream(topic, value=json("x bigint, y double"), key="user")


def count(stream: Stream, **more: agg.Agg) -> Stream:
    return stream.group_by("user", name="by-user").agg(**(more or {"n": agg.count()}), name="totals")


def described(build: Callable[[App], Any], partitions: int = 3) -> dict[str, Any]:
    app = App("a")
    build(app)
    topics = {topic: partitions for node in app.graph.nodes for topic in node.topics}
    internal = Assembly("a", app.graph, topics).internal()
    data = as_data("a", app.graph, internal)
    return dict(json_text.loads(json_text.dumps(data)))


def plain(app: App) -> None:
    count(orders(app)).to("out")


BEFORE = described(plain)


def changes(build: Callable[[App], Any], **more: Any) -> list[Change]:
    return compare(BEFORE, described(build, **more))


def test_the_same_program_is_the_same() -> None:
    assert changes(plain) == []


def test_state_that_was_lost_is_not_new() -> None:
    def both(app: App) -> None:
        rows = orders(app)
        count(rows).to("out")
        rows.group_by("x", name="by-x").agg(n=agg.count(), name="more").to("out2")

    nothing = {"app": "a", "topics": {}, "sub_topologies": [], "lost": {"orders": ("'totals' is lost", "begin anew")}}
    moved = nothing | {"sub_topologies": [{"name": "lines", "stores": {"totals": "n=count()"}}]}
    assert compare(moved, described(both)) == compare(nothing, described(both))
    assert compare(nothing, described(both)) == [
        Change(Fate.NEEDS, "'totals' is lost", "begin anew"),
        Change(Fate.SAFE, "the state 'more' is new and begins empty"),
    ]


def test_the_place_in_the_file_is_no_difference() -> None:
    def elsewhere(app: App) -> None:
        rows = orders(app)
        count(rows).to("out")

    assert changes(elsewhere) == []


def test_one_more_filter_is_safe() -> None:
    def filtered(app: App) -> None:
        count(orders(app).filter(col("x") > 1)).to("out")

    (change,) = changes(filtered)
    assert change.fate is Fate.SAFE
    assert change.what.startswith("+ filter")


def test_the_order_of_steps_is_told() -> None:
    def first(app: App) -> None:
        count(orders(app).filter(col("x") > 1).with_columns(x=col("x") + 1)).to("out")

    def then(app: App) -> None:
        count(orders(app).with_columns(x=col("x") + 1).filter(col("x") > 1)).to("out")

    found = compare(described(first), described(then))
    assert {change.fate for change in found} == {Fate.SAFE}
    assert sorted(change.what[0] for change in found) == ["+", "-"]


def of_a_function(app: App, **state: Any) -> None:
    stream = orders(app)
    count(stream).to("out")
    stream.process(lambda *_: [], name="seen", state=state)


def test_a_store_more_and_a_store_less_are_safe() -> None:
    more = described(lambda app: of_a_function(app, n=value(int)))
    found = [change for change in compare(BEFORE, more) if "state" in change.what.split("{")[0]]
    assert found == [Change(Fate.SAFE, "the state 'seen' is new and begins empty")]
    (less,) = [change for change in compare(more, BEFORE) if change.do]
    assert less == Change(
        Fate.SAFE,
        "the state 'seen' is not in the program; it stays as it is for one that has it again",
        "headrace streams reset a --store seen deletes it",
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda app: count(orders(app), n=agg.sum("x")).to("out"),
        lambda app: (
            orders(app)
            .group_by("user", name="by-user")
            .window(tumbling("1m"), late="drop")
            .agg(n=agg.count(), name="totals")
            .to("out")
        ),
    ],
)
def test_state_of_another_form_needs_a_reset_of_the_store(build: Callable[[App], Any]) -> None:
    change = changes(build)[0]
    assert change.fate is Fate.NEEDS
    assert change.what.startswith("the state 'totals' is kept as n=count() as int64")
    assert "headrace streams reset a --store totals" in change.do


def test_a_value_of_a_function_is_of_the_functions_store() -> None:
    old, new = (described(lambda app, of=of: of_a_function(app, n=value(of))) for of in (int, str))
    change = compare(old, new)[0]
    assert (change.fate, change.what[:20]) == (Fate.NEEDS, "the state 'seen.n' i")
    assert "--store seen lets" in change.do


def test_values_of_a_function_may_come_and_go() -> None:
    old, new = described(lambda app: of_a_function(app, n=value(int))), described(lambda app: of_a_function(app))
    assert {change.fate for change in [*compare(old, new), *compare(new, old)]} == {Fate.SAFE}


def test_another_input_takes_the_state_away() -> None:
    change = changes(lambda app: orders(app, "payments").group_by("user").agg(n=agg.count(), name="totals").to("out"))[
        0
    ]
    assert change.fate is Fate.REFUSED
    assert change.what.startswith("the state 'totals' belongs to what orders reads; the program has it where payments")


def test_state_that_an_older_program_left_elsewhere_is_in_nobodys_way() -> None:
    here = {"name": "orders", "stores": {"totals": "n"}}
    both = {"app": "a", "topics": {}, "sub_topologies": [here, {"name": "old", "stores": {"totals": "n"}}]}
    assert compare(both, {"app": "a", "topics": {}, "sub_topologies": [here]}) == []


@pytest.mark.parametrize(("count", "said"), [(1, "1 partition"), (3, "3 partitions")])
def test_another_number_of_partitions_is_refused(count: int, said: str) -> None:
    text = f"the topic a.orders.changelog has {said}, and the program needs 4: "
    change = compare(described(plain, count), described(plain, 4))[0]
    assert change.fate is Fate.REFUSED
    assert change.what.startswith(text)
    app = App("a")
    plain(app)
    assembly = Assembly("a", app.graph, {"orders": 4, "out": 4})
    with pytest.raises(NotAllowed, match=text):
        assembly.check(dict.fromkeys(assembly.internal(), count))
    assert change.do == "headrace streams reset a begins anew"


def test_where_the_topics_are_not_known_their_partitions_are_not_compared() -> None:
    assert compare(BEFORE | {"topics": {}}, described(plain, partitions=4)) == []


def moved(app: App, **columns: Any) -> None:
    orders(app).with_columns(**columns).key_by("x").repartition(name="by-x").to("out")


def test_rows_that_wait_with_other_columns_are_read_by_the_program_that_sent_them() -> None:
    old, new = described(moved), described(lambda app: moved(app, z=col("y") * 2))
    change = compare(old, new)[0]
    assert change.fate is Fate.NEEDS
    assert change.what.startswith("rows in a.by-x.repartition have the columns user string, x int64, y double; ")
    assert "until `headrace group lag a` says 0" in change.do


def test_a_topic_that_was_made_anew_needs_a_reset() -> None:
    def belongs(to: str) -> dict[str, Any]:
        return {
            "app": "a",
            "topics": {},
            "sub_topologies": [{"name": "orders", "stores": {}, "topic_ids": {"orders": to}}],
        }

    (change,) = compare(belongs("1"), belongs("2"))
    assert (change.fate, change.do) == (Fate.NEEDS, "headrace streams reset a begins anew")
    assert compare(belongs("1"), belongs("1")) == []


def test_of_what_a_cluster_has_the_steps_are_not_compared() -> None:
    kept = {**BEFORE, "sub_topologies": [{"name": "orders", "stores": {"totals": "n=sum()"}}]}
    (change,) = compare(kept, BEFORE)
    assert change.fate is Fate.NEEDS


def test_what_one_alone_says_does_not_differ() -> None:
    assert differing({"a": "1", "b": "1", "c": "1"}, {"b": "2", "c": "1", "d": "1"}) == ["b"]


def test_a_store_with_a_dot_is_its_own_unless_a_function_has_it() -> None:
    forms = {"v1": "n=count()", "v1.totals": "n=count()", "f": "values and timers of a function", "f.n": "int"}
    assert [store_of(name, forms) for name in forms] == ["v1", "v1.totals", "f", "f"]
