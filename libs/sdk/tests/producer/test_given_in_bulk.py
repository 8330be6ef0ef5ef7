"""What may be given to ``send_many`` and ``send_table``: what looks like records and is none is refused, unsent."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import Producer
from headrace.errors import HeadraceError, Rejected, SerializationFailed

TABLE = pa.table({"key": ["UA", "AA"], "value": ["1545", "1141"]})


class Foreign:
    """A table of a library that nobody here has imported: it has Arrow's C interface, and views of text."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", 1)
    return backend


@pytest.fixture
def producer(memory: LabCluster) -> Iterator[Producer]:
    with memory.producer() as made:
        yield made


@pytest.mark.parametrize("name", ["values", "keys"])
@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (TABLE.to_pandas(), "send_table"),
        (TABLE, "send_table"),
        (TABLE.to_batches()[0], "send_table"),
        (TABLE.to_reader(), "send_table"),
        (SimpleNamespace(columns=["key", "value"]), "send_table"),
        ({"UA": b"1545", "AA": b"1141"}, "send_table"),
        ("ab", "for one record use send"),
        (b"ab", "for one record use send"),
        (memoryview(b"ab"), "for one record use send"),
        ({b"1545", b"1141"}, "give a list"),
        (frozenset([b"1545", b"1141"]), "give a list"),
        (7, "for one record use send"),
        (object(), "for one record use send"),
        (np.array(b"ab"), "for one record use send"),
        (pa.scalar(b"ab"), "for one record use send"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_is_no_list_of_records_is_refused(
    producer: Producer, memory: LabCluster, name: str, given: Any, hint: str
) -> None:
    arguments = {"values": [b"one", b"two"]} | {name: given}
    with pytest.raises(HeadraceError, match=hint):
        producer.send_many("t", **arguments)
    producer.flush()
    assert memory.values("t") == []


def test_a_serializer_does_not_make_names_of_columns_records(memory: LabCluster) -> None:
    with memory.producer(value_serializer="json") as producer, pytest.raises(Rejected, match="send_table"):
        producer.send_many("t", TABLE)
    assert memory.values("t") == []


@pytest.mark.parametrize(
    "values",
    [
        ["1545", "1141"],
        ("1545", "1141"),
        iter(["1545", "1141"]),
        np.array(["1545", "1141"], object),
        pa.array(["1545", "1141"]),
        TABLE.column("value"),
        TABLE.to_pandas()["value"],
    ],
    ids=lambda each: type(each).__name__,
)
def test_columns_and_lists_are_records(producer: Producer, memory: LabCluster, values: Any) -> None:
    producer.send_many("t", values).result()
    assert memory.values("t") == [b"1545", b"1141"]


@pytest.mark.parametrize(
    "table",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        TABLE.to_pandas(),
        Foreign(TABLE),
        Foreign(pa.table({name: TABLE.column(name).cast(pa.string_view()) for name in ("key", "value")})),
        Foreign(pa.table({name: TABLE.column(name).cast(pa.large_string()) for name in ("key", "value")})),
        Foreign(TABLE.to_batches()[0]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_tables_of_others_are_sent_by_arrows_interface(producer: Producer, memory: LabCluster, table: Any) -> None:
    producer.send_table("t", table).result()
    with memory.consumer("t") as consumer:
        assert [(r.key, r.value) for r in consumer.poll(timeout_ms=10_000)] == [(b"UA", b"1545"), (b"AA", b"1141")]


def test_nothing_at_all_is_no_list_of_values(producer: Producer, memory: LabCluster) -> None:
    nothing: Any = None
    with pytest.raises(SerializationFailed, match="takes a list of values, not NoneType"):
        producer.send_many("t", nothing)
    assert memory.values("t") == []


async def test_the_asyncio_twin_takes_and_refuses_the_same(memory: LabCluster) -> None:
    nothing: Any = None
    one_key: Any = 7
    async with memory.aio_producer() as producer:
        with pytest.raises(Rejected, match="send_table"):
            await producer.send_many("t", TABLE.to_pandas())
        with pytest.raises(SerializationFailed, match="takes a list of values, not NoneType"):
            await producer.send_many("t", nothing)
        with pytest.raises(SerializationFailed, match="takes a list of keys, not int"):
            await producer.send_many("t", [b"one"], keys=one_key)
        await (await producer.send_table("t", TABLE.to_pandas()))
    assert memory.values("t") == [b"1545", b"1141"]


@pytest.mark.parametrize("given", [[b"one"], {"value": [b"one"]}, b"one", Foreign(pa.table({"key": ["a"]}))])
def test_what_is_no_table_is_refused(producer: Producer, given: Any) -> None:
    with pytest.raises(Rejected, match=r"send_many|column 'value'"):
        producer.send_table("t", given)
