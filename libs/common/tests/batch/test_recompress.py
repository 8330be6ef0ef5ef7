"""A batch in another codec says the same in every field but codec, length and CRC."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.batch import Codec, RecordColumns, check_crc, decode_batch, read_header, recompress_batch
from headrace_common.core.errors import CorruptBatch

from .samples import BUILDERS, CODECS, column_batch, header_of, records, seal

PRODUCER = {"producer_id": 77, "producer_epoch": 3, "base_sequence": 500}


def contents(batch: bytes) -> tuple[Any, ...]:
    """All that readers get, and the header but for what may change."""
    header, decoded = read_header(batch), decode_batch(batch)
    same = header._replace(batch_length=0, crc=0, attributes=header.attributes & ~7)
    return same, decoded.offsets(), decoded.timestamps(), decoded.keys(), decoded.values(), decoded.headers()


@given(
    build=st.sampled_from(BUILDERS),
    given=records(),
    before=st.sampled_from(CODECS),
    after=st.sampled_from(CODECS),
    transactional=st.booleans(),
)
def test_nothing_but_the_codec_changes(
    build: Callable[..., bytes], given: Any, before: Codec, after: Codec, transactional: bool
) -> None:
    batch = build(given.columns, codec=before, base_offset=9, transactional=transactional, **PRODUCER)
    again = recompress_batch(batch, read_header(batch), after)
    check_crc(again, read_header(again))
    assert contents(again) == contents(batch)
    assert read_header(again).codec in (after, Codec.NONE)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("before", CODECS)
@pytest.mark.parametrize("after", CODECS)
def test_what_gains_is_compressed_and_what_has_the_codec_stays_as_it_is(
    build: Callable[..., bytes], before: Codec, after: Codec
) -> None:
    batch = build(RecordColumns([b"the same again and again"] * 300), codec=before)
    again = recompress_batch(batch, read_header(batch), after)
    assert read_header(again).codec is after
    assert (again is batch) is (before is after)


def test_what_gains_nothing_stays_uncompressed() -> None:
    batch = column_batch(1, [(3, 2, b"x")])
    assert recompress_batch(batch, read_header(batch), Codec.ZSTD) == batch


def test_columns_of_a_newer_version_are_carried_along() -> None:
    newer = column_batch(2, [(77, 0x55, b"whatever it is " * 40), (3, 2, b"ab")])
    packed = recompress_batch(newer, read_header(newer), Codec.LZ4)
    assert read_header(packed).codec is Codec.LZ4
    assert recompress_batch(packed, read_header(packed), Codec.NONE) == newer


@pytest.mark.parametrize("build", BUILDERS)
def test_a_bomb_is_refused(build: Callable[..., bytes]) -> None:
    bomb = build(RecordColumns([bytes(3 << 20)]), codec=Codec.ZSTD)
    with pytest.raises(CorruptBatch):
        recompress_batch(bomb, read_header(bomb), Codec.NONE, inflated_max=1 << 20)


def test_a_frame_that_is_none_is_refused() -> None:
    batch = seal(header_of(1, attributes=Codec.ZSTD), b"\0\0\0" + b"\x08\0\0\0" + bytes(20))
    with pytest.raises(CorruptBatch):
        recompress_batch(batch, read_header(batch), Codec.LZ4)
