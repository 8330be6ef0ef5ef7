"""The offset map knows the newest offset of each key, as a dictionary would, and stays within its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_broker.core.compaction import offset_map
from headrace_broker.core.compaction.key_hash import LONG, hash_column, hash_list, hash_one
from headrace_broker.core.compaction.offset_map import KEY_BYTES, OffsetMap, in_order
from headrace_common.core.batch import (
    Codec,
    DecodedBatch,
    RecordColumns,
    build_batch,
    build_row_batch,
    decode_batch,
    filter_records,
)

from .world import SEED

KEYS = st.one_of(st.binary(max_size=20), st.integers(0, 2 * LONG).map(lambda size: b"k" * size))
MAYBE = st.one_of(st.none(), st.sampled_from([b"a", b"b", b"key 1", b"key 2", b"x" * 300]), st.binary(max_size=3))


@given(st.lists(KEYS, max_size=40), st.integers(0, 2**128 - 1))
@example([b"", b"\0", b"\0" * 8, b"\0" * 9, b"a" * LONG, b"a" * (LONG + 1)], SEED)
def test_many_keys_are_hashed_as_each_alone(keys: list[bytes], seed: int) -> None:
    wanted = [hash_one(key, seed) for key in keys]
    for column in (pa.array(keys, pa.binary()), pa.array([b"before", *keys], pa.binary()).slice(1)):
        assert list(zip(*(half.tolist() for half in hash_column(column, seed)), strict=True)) == wanted
    assert list(zip(*(half.tolist() for half in hash_list(keys, seed)), strict=True)) == wanted


@pytest.mark.parametrize("size", [3, LONG, LONG + 44])
def test_a_missing_key_may_have_bytes_in_its_place(size: int) -> None:
    """As Arrow arrays of a fixed width have them, and as a client may send them."""
    keys = [b"%0*d" % (size, at % 7) if at % 5 else None for at in range(40)]
    batch = build_batch(RecordColumns([b"v"] * 40, pa.array(keys, pa.binary(size))), base_offset=100)
    column = decode_batch(batch).key_column()
    lengths = np.diff(np.frombuffer(memoryview(column.buffers()[1]), "<i4", 41))
    assert column.null_count == 8
    assert set(lengths.tolist()) == {size}
    newest = {key: 100 + at for at, key in enumerate(keys) if key is not None}
    map = OffsetMap(1 << 20, SEED)
    map.add(decode_batch(batch))
    map.complete()
    assert map.newest_within(0, 1000).tolist() == sorted(newest.values())
    assert not map.newest(decode_batch(batch)).any(), "all are known, or missing"
    none = OffsetMap(1 << 20, SEED)
    none.complete()
    assert none.newest(decode_batch(batch)).tolist() == [key is not None for key in keys]


def test_keys_that_are_alike_have_hashes_that_are_not() -> None:
    """Each half alone tells 200,000 of them apart, under any seed."""
    keys = [b"key-%d" % at for at in range(100_000)] + [b"%016d" % at for at in range(50_000)]
    keys += [bytes(size) for size in range(200)] + [b"%08d" % at + b"same" * 3 for at in range(50_000)]
    for seed in (0, SEED):
        for half in hash_column(pa.array(keys, pa.binary()), seed):
            assert len(np.unique(half)) == len(keys)
            assert abs(int(np.bitwise_count(half).sum()) / len(keys) - 32) < 0.1


def batch_at(base: int, keys: list[bytes | None], *, rows: bool = False, codec: Codec = Codec.NONE) -> DecodedBatch:
    build: Any = build_row_batch if rows else build_batch
    return decode_batch(build(RecordColumns([b"v"] * len(keys), keys), base_offset=base, codec=codec))


@given(
    st.lists(
        st.tuples(st.lists(MAYBE, min_size=1, max_size=40), st.booleans(), st.sampled_from(list(Codec))), max_size=8
    ),
    st.lists(MAYBE, min_size=1, max_size=40),
    st.booleans(),
)
@settings(deadline=None)
def test_it_knows_what_a_dictionary_knows(
    batches: list[tuple[list[bytes | None], bool, Codec]], before: list[bytes | None], collide: bool
) -> None:
    """With keys that share the first half of their hash too: then nothing is taken for older than it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_map, "_HASHED_TOGETHER", 20)
        patch.setattr(offset_map, "_SORTED_IN_MIN", 50)
        if collide:
            patch.setattr(offset_map, "hash_column", _first_half_is_one(hash_column))
            patch.setattr(offset_map, "hash_list", _first_half_is_one(hash_list))
        newest: dict[bytes, int] = {}
        map, at = OffsetMap(1 << 20, SEED), 1000
        for keys, rows, codec in batches:
            map.add(batch_at(at, keys, rows=rows, codec=codec))
            newest.update({key: at + delta for delta, key in enumerate(keys) if key is not None})
            at += len(keys)
        map.complete()
        assert map.newest_within(0, at).tolist() == sorted(newest.values())
        assert map.newest_within(1010, 1020).tolist() == sorted(each for each in newest.values() if 1010 <= each < 1020)
        keep = map.newest(batch_at(0, before)).tolist()
        right = [key is not None and key not in newest for key in before]
        if collide:
            assert all(kept for kept, wanted in zip(keep, right, strict=True) if wanted)
        else:
            assert keep == right


def _first_half_is_one(hashes: Any) -> Any:
    def changed(keys: Any, seed: int) -> Any:
        first, second = hashes(keys, seed)
        return np.zeros_like(first), second

    return changed


def test_sparse_batches_are_taken_by_their_offsets() -> None:
    batch = build_batch(RecordColumns([b"v"] * 4, [b"a", b"b", b"a", b"c"]), base_offset=10)
    map = OffsetMap(1 << 20, SEED)
    map.add(decode_batch(filter_records(batch, [False, True, True, False])))
    map.complete()
    assert map.newest_within(0, 99).tolist() == [11, 12]
    assert (map.count_within(11, 12), len(map)) == (1, 2)


@pytest.mark.parametrize("bytes_max", [0, 10 * KEY_BYTES, 3000 * KEY_BYTES])
def test_it_is_full_at_its_bound_and_takes_one_batch_at_least(bytes_max: int) -> None:
    map, at = OffsetMap(bytes_max, SEED), 0
    while not map.full:
        map.add(batch_at(at, [b"%d" % (at + each) for each in range(20)]))
        at += 20
    assert at >= 20
    assert at * KEY_BYTES <= bytes_max + 20 * KEY_BYTES


def test_long_keys_that_were_compressed_well_do_not_wait_for_others() -> None:
    """A batch of a few hundred bytes may hold a key of many MiB."""
    map = OffsetMap(1 << 30, SEED)
    for at in range(40):
        key = b"%d" % at + bytes(1 << 20)
        map.add(batch_at(at, [key, None], codec=Codec.ZSTD))
        assert sum(len(each) for each in map._few[0] if each is not None) < 6 << 20
    map.complete()
    assert len(map) == 40


def test_keys_that_are_known_take_no_room() -> None:
    map = OffsetMap(90 * KEY_BYTES, SEED)
    for at in range(0, 10_000, 50):
        assert not map.full
        map.add(batch_at(at, [b"%d" % each for each in range(50)]))
    map.complete()
    assert len(map) == 50


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(2**63, 2**63 + 40), max_size=60))
def test_the_order_is_that_of_a_stable_sort(values: list[int]) -> None:
    """Of values that differ in their last bits only too, whose place the sort takes for its own."""
    words = np.array(values, np.uint64)
    assert in_order(words).tolist() == sorted(range(len(values)), key=values.__getitem__)
