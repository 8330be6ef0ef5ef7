"""Bodies of requests, as they are read: what they ask for, and what is wrong with those that ask for nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace_connect_worker.core import commands
from headrace_connect_worker.core.commands import Create, GivenOffset
from headrace_connect_worker.core.records import TargetState
from headrace_connect_worker.core.refusals import BadCommand


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_a_connector_is_made_of_name_config_and_state() -> None:
    made = commands.read_create(body({"name": " s ", "config": {"a": "b"}, "initial_state": "Paused"}))
    assert made == Create("s", {"a": "b", "name": "s"}, TargetState.PAUSED)
    assert commands.read_create(body({"name": "s", "config": {"name": "s"}})).target is TargetState.STARTED


def test_values_are_texts_as_they_are_written() -> None:
    given = b'{"a": 1, "b": true, "c": 1e3, "d": 0.10000000000000000001, "e": 12345678901234567890123, "f": "x"}'
    assert commands.read_config(given, "s") == {
        "a": "1",
        "b": "true",
        "c": "1e3",
        "d": "0.10000000000000000001",
        "e": "12345678901234567890123",
        "f": "x",
        "name": "s",
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (b"", "no body"),
        (b"{", "not JSON"),
        (b'"a"', "a text, not an object"),
        (b"[]", "a list, not an object"),
        (b"null", "null, not an object"),
        (body({"config": {}, "name": 5}), "name has|name is a text|Connector name|^$"),
        (body({"name": ["s"], "config": {}}), "name is a text"),
        (body({"name": "s"}), "config is missing"),
        (body({"name": "s", "config": []}), "config is a list"),
        (body({"name": "s", "config": {"a": None}}), "a: null value"),
        (body({"name": "s", "config": {"a": {"b": 1}}}), "a is an object, not a text"),
        (body({"name": "s", "config": {"a": []}}), "a is a list"),
        (body({"name": "s", "config": {}, "state": "PAUSED"}), "state is not known"),
        (body({"name": "s", "config": {}, "initial_state": "asleep"}), "RUNNING, PAUSED, STOPPED"),
        (body({"name": "s", "config": {"name": "t"}}), "doesn't match"),
        (body({"config": {}}), "name is empty"),
    ],
)
def test_what_is_no_connector(given: bytes, says: str) -> None:
    if b'"name": 5' in given:
        assert commands.read_create(given).name == "5", "a number is a text, as everywhere"
        return
    with pytest.raises(BadCommand, match=says):
        commands.read_create(given)


def test_a_null_takes_a_key_away() -> None:
    changes = commands.read_changes(b'{"a": null, "b": 2}')
    assert changes == {"a": None, "b": "2"}
    assert commands.changed({"name": "s", "a": "1", "c": "3"}, changes) == {"name": "s", "b": "2", "c": "3"}
    assert commands.changed({"name": "s"}, {"name": None}) == {"name": "s"}
    with pytest.raises(BadCommand, match="doesn't match"):
        commands.changed({"name": "s"}, {"name": "t"})


def test_so_much_and_no_more() -> None:
    most = {"k": "ü" * ((commands.CONFIG_BYTES_MAX - 1) // 2)}
    assert commands.named("s", most)["name"] == "s"
    with pytest.raises(BadCommand, match="is the most"):
        commands.named("s", {"k": most["k"] + "ü"})


SPLIT = {"partition": {"split": "a"}, "offset": {"at": [1, 2.5, None]}}
PART = {"partition": {"kafka_topic": "t", "kafka_partition": "3"}, "offset": {"kafka_offset": "12"}}


def test_offsets_of_sources_and_sinks() -> None:
    given = commands.read_offsets(body({"offsets": [SPLIT, {"partition": {"split": "b"}, "offset": None}]}))
    assert commands.offsets_of("source", given) == (
        GivenOffset({"split": "a"}, {"at": [1, 2.5, None]}),
        GivenOffset({"split": "b"}, None),
    )
    given = commands.read_offsets(body({"offsets": [PART, {"partition": {**PART["partition"], "kafka_partition": 4}}]}))
    assert commands.offsets_of("sink", given) == (
        GivenOffset({"kafka_topic": "t", "kafka_partition": 3}, {"kafka_offset": 12}),
        GivenOffset({"kafka_topic": "t", "kafka_partition": 4}, None),
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "need to be provided"),
        ({"offsets": []}, "need to be provided"),
        ({"offsets": None}, "need to be provided"),
        ({"offsets": "all"}, "is a list"),
        ({"offsets": [5]}, "number 0 of offsets"),
        ({"offsets": [{"part": {}}]}, "'part'"),
        ({"offsets": [{"partition": [], "offset": None}]}, "partition of number 0"),
        ({"offsets": [SPLIT] * 10_001}, "10000 is the most"),
        ({"offsets": [SPLIT], "more": 1}, "more is not known"),
    ],
)
def test_bodies_that_are_no_offsets(given: Any, says: str) -> None:
    with pytest.raises(BadCommand, match=says):
        commands.read_offsets(body(given))


@pytest.mark.parametrize(
    ("kind", "partition", "offset", "says"),
    [
        ("source", None, None, "cannot be null"),
        ("source", {}, None, "is {"),
        ("source", {"split": 5}, None, "is {"),
        ("source", {"split": ""}, None, "is {"),
        ("source", {"split": "s" * 250}, None, "is {"),
        ("source", {"split": "a", "more": 1}, None, "is {"),
        ("source", {"split": "a"}, {"at": "x" * 4096}, "4096 is the most"),
        ("sink", None, None, "cannot be null"),
        ("sink", {"kafka_topic": "t"}, None, "must contain the keys"),
        ("sink", {"kafka_topic": "t", "kafka_partition": 0, "more": 1}, None, "no other"),
        ("sink", {"kafka_topic": None, "kafka_partition": 0}, None, "topic names"),
        ("sink", {"kafka_topic": "t", "kafka_partition": None}, None, "'None'"),
        ("sink", {"kafka_topic": "t", "kafka_partition": -1}, None, "'-1'"),
        ("sink", {"kafka_topic": "t", "kafka_partition": True}, None, "'True'"),
        ("sink", {"kafka_topic": "t", "kafka_partition": 1.5}, None, "'1.5'"),
        ("sink", {"kafka_topic": "t", "kafka_partition": 2**31}, None, "2147483648"),
        ("source", {"split": "a"}, {"at": [{"n": 2**64}]}, "18446744073709551616"),
        ("source", {"split": "a"}, {"at": -(2**63) - 1}, "-9223372036854775809"),
        ("sink", {"kafka_topic": "t", "kafka_partition": 0}, {}, "kafka_offset"),
        ("sink", {"kafka_topic": "t", "kafka_partition": 0}, {"kafka_offset": 2**63}, "9223372036854775808"),
        ("sink", {"kafka_topic": "t", "kafka_partition": 0}, {"kafka_offset": "1_000"}, "1_000"),
    ],
)
def test_offsets_that_cannot_be(kind: str, partition: Any, offset: Any, says: str) -> None:
    with pytest.raises(BadCommand, match=says):
        commands.offsets_of(kind, [GivenOffset(partition, offset)])


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_partition_has_one_offset(kind: str) -> None:
    given = commands.read_offsets(body({"offsets": [SPLIT, SPLIT] if kind == "source" else [PART, PART]}))
    with pytest.raises(BadCommand, match="comes twice"):
        commands.offsets_of(kind, given)


@pytest.mark.parametrize("size", [4_096, 4_097])
def test_an_offset_has_as_many_bytes_as_it_is_written_with(size: int) -> None:
    """What is beyond ASCII is not escaped; it was counted as if it were."""
    text = "é" * ((size - 9) // 2)
    offset = {"at": text + "x" * (size - 9 - 2 * len(text))}
    given = (GivenOffset({"split": "a"}, offset),)
    if size == 4_096:
        assert commands.offsets_of("source", given) == given
    else:
        with pytest.raises(BadCommand, match="4097 bytes; 4096 is the most"):
            commands.offsets_of("source", given)
