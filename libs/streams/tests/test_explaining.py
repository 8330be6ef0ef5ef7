"""What is said of a key, store by store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.records import TopicPartition
from headrace_common.core.errors import NetworkFailed, NotFound, Rejected, UnsupportedVersion
from headrace_streams import explaining
from headrace_streams.core.state.changelog import Progress
from headrace_streams.explaining import Place, explain, explained, stores_of
from headrace_streams.plan.compare import OF_FUNCTION
from headrace_streams.plan.reset import Standing
from headrace_streams.stores import NotListening, NoWorkers
from headrace_streams.upkeep import Facts

BY_WORD, LINES = "a.by-word.changelog", "a.lines.changelog"
PROGRESS = {
    TopicPartition(BY_WORD, 0): Progress(basis={"counts": "n=count", "topic a.by-word.repartition": "1"}),
    TopicPartition(BY_WORD, 1): Progress(
        {"a.by-word.repartition": 7}, {"z": 500, "y": 2_000, "x": 1_000, "": 1_000}, {"counts": "n", "sums": "s"}
    ),
    TopicPartition(LINES, 1): Progress({"lines": 6}, basis={"seen": OF_FUNCTION, "seen.n": "int", "topic lines": "2"}),
}
FACTS: Any = Facts(
    Standing("a", {BY_WORD: 2, LINES: 2, "a.by-word.repartition": 2}, progress=PROGRESS),
    SimpleNamespace(  # type: ignore[arg-type]
        members=[SimpleNamespace(member_id="m1", endpoint="h:1"), SimpleNamespace(member_id="m2", endpoint="")],
        items=[
            SimpleNamespace(
                id="by-word/1",
                owner="m1",
                followers=[SimpleNamespace(member_id="m2", lag=3, warm_up=False)],
            ),
            SimpleNamespace(id="by-word/0", owner="m2", followers=[]),
        ],
    ),
    {
        TopicPartition(topic, number): SimpleNamespace(committed_offset=5 + number, end_offset=9, lag=4 - number)
        for topic in ("a.by-word.repartition", "lines")
        for number in (0, 1)
    },  # type: ignore[arg-type]
    {TopicPartition(BY_WORD, 1): 3_000},
)


def test_the_stores_of_an_app_are_those_that_its_changelogs_name() -> None:
    assert stores_of(FACTS.standing) == {"counts": BY_WORD, "sums": BY_WORD, "seen": LINES}


def test_a_key_is_explained() -> None:
    assert explained(FACTS, "counts", BY_WORD, Place(b"tea\xff", 1, [{"n": 3}])) == {
        "store": "counts",
        "key": "tea\\xff",
        "task": "by-word/1",
        "worker": "m1",
        "listens": "h:1",
        "watermark": "1970-01-01T00:00:01.000Z",
        "held_back_by": "x",
        "committed_at": "1970-01-01T00:00:03.000Z",
        "note": None,
        "standbys": [{"worker": "m2", "listens": None, "lag": 3, "warm_up": False}],
        "reads": [{"topic": "a.by-word.repartition", "position": 6, "end_offset": 9, "lag": 3}],
        "rows": [{"n": 3}],
    }


def test_what_is_not_known_is_left_open() -> None:
    told = explained(FACTS, "seen", LINES, Place(b"x", 0, note="why"))
    assert [told[name] for name in ("worker", "listens", "watermark", "committed_at", "note")] == [None] * 4 + ["why"]
    assert [at["position"] for at in told["reads"]] == [5]


class Asked:
    """In place of ``Stores``."""

    error: Exception | None = None

    def __init__(self, *args: object, **more: object) -> None:
        pass

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def locate(self, store: str, texts: list[str]) -> tuple[bytes, int]:
        if self.error is not None:
            raise self.error
        if store == "seen":
            raise Rejected("the keys of 'seen' are: a, b")
        return texts[0].encode(), 1

    def __getitem__(self, store: str) -> Any:
        if store == "sums":
            raise NetworkFailed("gone")
        return SimpleNamespace(rows=lambda key: [{"n": 3}])


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "facts_of", lambda app, servers: FACTS)
    monkeypatch.setattr(explaining, "Stores", Asked)


def test_a_store_that_has_other_keys_is_told_among_the_others_and_refused_alone() -> None:
    told = explain("a", ["tea"], None, None)
    assert [(one["store"], one["note"]) for one in told] == [
        ("counts", None),
        ("sums", "its rows could not be read: gone"),
        ("seen", "the keys of 'seen' are: a, b"),
    ]
    with pytest.raises(Rejected, match="the keys of 'seen'"):
        explain("a", ["tea"], "seen", None)
    with pytest.raises(NotFound, match="a has no store 'none' that was committed to; there are: counts, sums, seen"):
        explain("a", ["tea"], "none", None)


@pytest.mark.parametrize("error", [NoWorkers("x"), NotListening("x"), UnsupportedVersion("x"), NetworkFailed("x")])
def test_where_no_worker_answers_the_key_is_taken_as_text(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(Asked, "error", error)
    (told,) = explain("a", ["tea"], "counts", None)
    assert told["note"] == "the key is taken as text, as no worker answers: x"
    assert told["task"] in ("by-word/0", "by-word/1")
    assert told["rows"] == []
