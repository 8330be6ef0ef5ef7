"""Tables, and joins with them, as Kafka Streams defines them: its documented inputs and, with "every", its rows."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from libs.streams.tests.kit.feeding import raw

from headrace_streams import App, Stream, Table, agg, col, json
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.plan.cut import Assembly
from headrace_streams.testing import Driver

LEFT = {1: None, 3: "A", 5: "B", 7: None, 9: "C", 12: None, 15: "D"}
RIGHT = {2: None, 4: "a", 6: "b", 8: None, 10: "c", 11: None, 13: None, 14: "d"}


def stream(app: App, topic: str, column: str) -> Stream:
    return app.stream(topic, value=json(f"{column} string"), key="k")


def table(app: App, topic: str, column: str) -> Table:
    return app.table(topic, value=json(f"{column} string"), key="k", name=topic)


def written(outputs: list[Output], topic: str) -> list[dict[str, Any] | None]:
    return [
        None if value is None else orjson.loads(value)
        for output in outputs
        if output.topic == topic
        for value in output.records["value"].to_pylist()
    ]


def kafkas(app: App) -> list[Any]:
    """What each of Kafka's records brings about: the pair that is joined, or None where the result is deleted."""
    assembly = Assembly(app.name, app.graph, {"left": 1, "right": 1})
    task = assembly.make(assembly.parts[0], 0)
    task.open(lambda name: MemoryCold(), {})
    found: list[Any] = []
    for at in range(1, 16):
        topic, column, value = ("left", "l", LEFT[at]) if at in LEFT else ("right", "r", RIGHT[at])
        task.feed(topic, raw([(b"k", None if value is None else {column: value}, at)]))
        found += [(at, row and f"{row['l'] or ''}-{row['r'] or ''}") for row in written(task.take(), "out")]
    return found


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(5, "B-a"), (15, "D-d")]),
        ("left", [(3, "A-"), (5, "B-a"), (9, "C-"), (15, "D-d")]),
    ],
)
def test_stream_and_table(how: str, expected: list[Any]) -> None:
    app = App("kafka")
    stream(app, "left", "l").join(table(app, "right", "r"), how=how).to("out")
    assert kafkas(app) == expected


INNER = [(4, "A-a"), (5, "B-a"), (6, "B-b"), (7, None), (10, "C-c"), (11, None), (15, "D-d")]
OF_LEFT = [
    *[(3, "A-"), (4, "A-a"), (5, "B-a"), (6, "B-b"), (7, None)],
    *[(9, "C-"), (10, "C-c"), (11, "C-"), (12, None), (15, "D-d")],
]
OF_BOTH = [
    *[(3, "A-"), (4, "A-a"), (5, "B-a"), (6, "B-b"), (7, "-b"), (8, None)],
    *[(9, "C-"), (10, "C-c"), (11, "C-"), (12, None), (14, "-d"), (15, "D-d")],
]


@pytest.mark.parametrize(("how", "expected"), [("inner", INNER), ("left", OF_LEFT), ("outer", OF_BOTH)])
def test_table_and_table(how: str, expected: list[Any]) -> None:
    app = App("kafka")
    table(app, "left", "l").join(table(app, "right", "r"), how=how).to("out", emit="every")
    assert kafkas(app) == expected


def test_aggregation_of_a_table() -> None:
    """Kafka's users with a region each: the length of the names of a region's users."""
    given = [
        ("alice", "E"),
        ("bob", "A"),
        ("charlie", "A"),
        ("alice", "A"),
        ("charlie", None),
        (None, "E"),
        ("bob", "E"),
    ]
    app = App("kafka")
    users = app.table("users", value=json("region string"), key="user", name="users")
    sized = users.with_columns(size=col("user").str.len_chars())
    sized.group_by("region", name="by-region").agg(total=agg.sum("size"), name="sizes", emit="every").to("out")
    states = []
    with Driver(app) as driver:
        total: dict[str, int] = {}
        for user, region in given:
            value = None if region is None else orjson.dumps({"region": region})
            driver.pipe_raw("users", [user and user.encode()], [value])  # type: ignore[list-item]
            total |= {row["region"]: row["total"] or 0 for row in driver.read("out")}
            states.append(dict(total))
    assert states == [
        {"E": 5},
        {"A": 3, "E": 5},
        {"A": 10, "E": 5},
        {"A": 15, "E": 0},
        {"A": 8, "E": 0},
        {"A": 8, "E": 0},
        {"A": 5, "E": 3},
    ]
