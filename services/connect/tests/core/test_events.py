"""What stands in the topic of events, and which events are kept."""

from __future__ import annotations

from headrace_connect_worker.core.events import CONNECTORS_MAX, KEPT_MAX, Happened, Kept, decode, encode

EVENT = Happened("ü/b", 17, "drift", "a column", 3, "w:1", {"table": "orders"})


def test_an_event_comes_back_as_it_was() -> None:
    key, value = encode(EVENT, "g")
    assert key == "ü/b".encode()
    assert decode(value, "g") == EVENT
    assert decode(encode(Happened("a", 1, "failed", "x"), "g")[1], "g") == Happened("a", 1, "failed", "x")


def test_what_is_not_ours_is_left_out() -> None:
    _, value = encode(EVENT, "g")
    assert decode(value, "another") is None
    assert decode(value.replace(b'"version":1', b'"version":2'), "g") is None
    for rubbish in (None, b"", b"[]", b"null", b"{}", value.replace(b'"detail":{', b'"detail":['), b"\xff"):
        assert decode(rubbish, "g") is None


def test_the_last_ones_of_each_connector_are_kept() -> None:
    kept = Kept()
    for number in range(KEPT_MAX + 5):
        kept.add(Happened("a", number, "drift" if number % 2 else "failed", ""))
    assert [event.at_ms for event in kept.find("a", 2)] == [KEPT_MAX + 3, KEPT_MAX + 4]
    assert len(kept.find("a", 1_000)) == KEPT_MAX
    assert {event.kind for event in kept.find("a", 3, "drift")} == {"drift"}
    assert kept.find("b", 5) == []
    for number in range(CONNECTORS_MAX):
        kept.add(Happened(f"c{number}", 0, "failed", ""))
    assert kept.find("a", 1) == []
