"""Where pyarrow is not installed: the same bytes are written, and the same records read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core import arrow
from headrace_common.core.batch import RecordColumns, build_batch, column_reader, decode_batch
from headrace_common.core.errors import Rejected

MODULES = (arrow, column_reader)
BYTES = st.none() | st.binary(max_size=12)
COLUMN = st.one_of(
    st.lists(BYTES, min_size=1, max_size=80),
    st.lists(st.binary(max_size=12), min_size=1, max_size=80),
    st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=80),
    st.lists(st.none(), min_size=1, max_size=80),
)


@contextmanager
def without_arrow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "has_arrow", lambda: False)
        yield


@given(COLUMN, st.lists(BYTES, min_size=80, max_size=80), st.integers(0, 3))
def test_the_same_records(values: list[bytes | None], keys: list[bytes | None], headers: int) -> None:
    each = [[("name", b"text"), ("null", None)][: (headers + at) % 3] for at in range(len(values))]
    columns = RecordColumns(values, keys[: len(values)], 5, each)
    batch = build_batch(columns)
    with without_arrow():
        plain = decode_batch(batch)
        read = (plain.values(), plain.keys(), plain.headers())
    whole = decode_batch(batch)
    assert read == (whole.values(), whole.keys(), whole.headers()) == (values, keys[: len(values)], each)


def test_a_large_column_with_nulls() -> None:
    values = [None if at % 3 == 0 else b"%d" % at for at in range(10_000)]
    batch = build_batch(RecordColumns(values))
    assert build_batch(RecordColumns(pa.array(values, pa.binary()))) == batch
    with without_arrow():
        assert decode_batch(batch).values() == values


def test_what_needs_it_says_how_to_get_it() -> None:
    arrow.need_arrow("this")
    with without_arrow(), pytest.raises(Rejected, match=r"a table needs pyarrow.*pip install 'headrace\[arrow\]'"):
        arrow.need_arrow("a table")
