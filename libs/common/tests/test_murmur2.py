"""Keys go where every Kafka client sends them."""

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as peer_murmur2
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.murmur2 import murmur2, partition_for, partitions_for, partitions_for_list

KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=60)


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_for(key, 13) == (signed & 0x7FFFFFFF) % 13


@given(st.binary(max_size=300))
def test_hashes_are_those_of_another_client(key: bytes) -> None:
    assert murmur2(key) == peer_murmur2(key) & 0xFFFFFFFF


@given(KEYS, st.integers(1, 100_000))
def test_a_column_goes_where_its_keys_go(keys: list[bytes | None], partitions: int) -> None:
    expected = [-1 if key is None else partition_for(key, partitions) for key in keys]
    assert partitions_for_list(keys, partitions) == expected
    found = partitions_for(pa.array(keys, pa.binary()), partitions)
    assert found.tolist() == expected
    assert found.dtype == "int32"
    assert partitions_for(pa.array(keys, pa.large_binary()), partitions).tolist() == expected


@given(KEYS, st.integers(0, 60), st.integers(0, 60))
def test_slices_and_chunks_give_the_same(keys: list[bytes | None], start: int, length: int) -> None:
    array = pa.array([b"before", *keys], pa.binary())[1:]
    expected = partitions_for_list(keys, 7)
    assert partitions_for(array, 7).tolist() == expected
    assert partitions_for(array.slice(start, length), 7).tolist() == expected[start : start + length]
    halves = pa.chunked_array([array[: len(keys) // 2], array[len(keys) // 2 :]], pa.binary())
    assert partitions_for(halves, 7).tolist() == expected


def test_one_long_key_among_many_short_ones() -> None:
    keys = [b"%d" % number for number in range(100)] + [bytes(range(256)) * 200]
    expected = [partition_for(key, 50) for key in keys]
    assert partitions_for_list(keys, 50) == expected
    assert partitions_for(pa.array(keys, pa.binary()), 50).tolist() == expected


@given(st.lists(st.binary(max_size=80), max_size=6), st.integers(1, 100_000))
def test_many_keys_of_few_lengths(keys: list[bytes], partitions: int) -> None:
    """So that each length has many, which are hashed together."""
    many = [bytes(byte ^ at for byte in key) for at in range(40) for key in keys]
    assert partitions_for_list(many, partitions) == [partition_for(key, partitions) for key in many]


def test_text_is_hashed_as_utf8() -> None:
    words = ["ö", "日本", "", "plain"] * 10
    assert partitions_for(pa.array(words), 9).tolist() == [partition_for(word.encode(), 9) for word in words]
    assert (
        partitions_for(pa.array(words).dictionary_encode(), 9).tolist() == partitions_for(pa.array(words), 9).tolist()
    )


@given(st.integers(1, 2**31 - 1) | st.sampled_from([1, 2, 255, 256, 257, 2**16, 2**31 - 1]))
def test_any_number_of_partitions(partitions: int) -> None:
    keys = [b"%03d" % number for number in range(1_000)]
    assert partitions_for_list(keys, partitions) == [partition_for(key, partitions) for key in keys]
