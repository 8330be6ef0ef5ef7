"""Each message of the protocol: read back as it was written, and refused when something is wrong with it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.connect.tests.postgres.encoder import encode

from headrace_connect.core.pgoutput import (
    Keepalive,
    MessageDamaged,
    Protocol,
    UnknownRelation,
    XLogData,
    decode,
    decode_frame,
    format_lsn,
    parse_lsn,
    status_update,
)
from headrace_connect.core.pgoutput.frames import EPOCH_US
from headrace_connect.core.pgoutput.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Column,
    Commit,
    CommitPrepared,
    Decoded,
    Delete,
    Insert,
    Message,
    Origin,
    Prepare,
    Relation,
    RelationDescribed,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeDescribed,
    Update,
)

V4 = Protocol(4, parallel=True)
LSN = 0x16_B374D848
ORDERS = Relation(16400, "public", "orders", "d", (Column("id", 23, -1, True), Column("näme", 1043, 24, False)))

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
times = st.integers(EPOCH_US - 2**62, EPOCH_US + 2**62)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
values = st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=9), st.binary(max_size=5).map(Binary))
rows = st.lists(values, min_size=2, max_size=2)
columns = st.builds(Column, names, u32, st.integers(-(2**31), 2**31 - 1), st.booleans())
relations = st.builds(
    Relation, u32, names.filter(bool), names, st.sampled_from("dnfi"), st.lists(columns, max_size=3).map(tuple)
)
orders = st.just(ORDERS)
prepared = (u64, u64, times, u32, names)


def in_block(xid: st.SearchStrategy[int] | st.SearchStrategy[None]) -> list[st.SearchStrategy[Decoded]]:
    updates = st.one_of(
        st.builds(Update, orders, rows, st.booleans(), rows, xid),
        st.builds(Update, orders, st.none(), st.just(False), rows, xid),
    )
    return [
        st.builds(RelationDescribed, relations, xid),
        st.builds(TypeDescribed, u32, names.filter(bool), names, xid),
        st.builds(Insert, orders, rows, xid),
        updates,
        st.builds(Delete, orders, rows, st.booleans(), xid),
        st.builds(Truncate, st.lists(orders, max_size=3).map(tuple), st.booleans(), st.booleans(), xid),
        st.builds(Message, st.booleans(), u64, names, st.binary(max_size=20), xid),
    ]


others: list[st.SearchStrategy[Decoded]] = [
    st.builds(Begin, u64, times, u32),
    st.builds(Commit, u64, u64, times),
    st.builds(Origin, u64, names),
    st.builds(StreamStart, u32, st.booleans()),
    st.builds(StreamStop),
    st.builds(StreamCommit, u32, u64, u64, times),
    st.builds(StreamAbort, u32, u32, u64, times),
    st.builds(BeginPrepare, *prepared),
    st.builds(Prepare, *prepared),
    st.builds(StreamPrepare, *prepared),
    st.builds(CommitPrepared, *prepared),
    st.builds(RollbackPrepared, u64, u64, times, times, u32, names),
]
messages = st.one_of(
    st.one_of(*others, *in_block(st.none())).map(lambda message: (message, False)),
    st.one_of(*in_block(u32)).map(lambda message: (message, True)),
)


def read(data: bytes, in_stream: bool = False, protocol: Protocol = V4) -> Decoded:
    return decode(data, LSN, protocol, {ORDERS.oid: ORDERS}, in_stream=in_stream)


@settings(max_examples=200, deadline=None)
@given(messages)
def test_what_is_written_is_read_and_each_prefix_of_it_is_refused(written: tuple[Decoded, bool]) -> None:
    message, in_stream = written
    data = encode(message)
    assert read(data, in_stream) == message
    for size in range(len(data)):
        with pytest.raises(MessageDamaged) as refused:
            read(data[:size], in_stream)
        assert refused.value.lsn == LSN
    with pytest.raises(MessageDamaged, match="1 bytes too many"):
        read(data + b"\0", in_stream)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(b"BCORYIUDTMSEcAbPKrp"), st.booleans())
def test_noise_is_refused_or_is_what_it_says(noise: bytes, kind: int, in_stream: bool) -> None:
    data = bytes([kind]) + noise
    try:
        message = read(data, in_stream)
    except MessageDamaged:
        return
    assert encode(message) == data


ROW = b"\0\2t\0\0\0\1an"


@pytest.mark.parametrize(
    ("data", "message", "cause"),
    [
        (b"", "b''", "unknown kind"),
        (b"Z", "b'Z'", "unknown kind"),
        (b"I" + struct.pack(">I", 7) + b"N" + ROW, "Insert", "relation 7, which no Relation message has described"),
        (b"T" + struct.pack(">IBI", 1, 0, 7), "Truncate", "relation 7, which"),
        (b"T" + struct.pack(">IB", 2**32 - 1, 0), "Truncate", "cut short"),
        (b"T" + struct.pack(">IB", 0, 4), "Truncate", "unknown flags 0x4"),
        (b"I" + struct.pack(">I", 16400) + b"K" + ROW, "Insert", "b'K' where one of b'N'"),
        (b"U" + struct.pack(">I", 16400) + b"K" + ROW + b"K" + ROW, "Update", "b'K' where one of b'N'"),
        (b"D" + struct.pack(">I", 16400) + b"N" + ROW, "Delete", "b'N' where one of b'KO'"),
        (b"I" + struct.pack(">I", 16400) + b"N\0\1n", "Insert", "1 values; public.orders has 2 columns"),
        (b"I" + struct.pack(">I", 16400) + b"N\0\2nx", "Insert", "unknown kind b'x'"),
        (b"I" + struct.pack(">I", 16400) + b"N\0\2nt\xff\xff\xff\xff", "Insert", "cut short"),
        (b"C\1" + bytes(24), "Commit", "unknown flags 0x1"),
        (b"S\0\0\0\1\2", "Stream Start", "where one of"),
        (b"R\0\0\0\1a\0b\0x\0\0", "Relation", "b'x' where one of"),
        (b"R\0\0\0\1\xff\0b\0d\0\0", "Relation", "not UTF-8"),
    ],
)
def test_a_refusal_names_the_message_and_where_it_is(data: bytes, message: str, cause: str) -> None:
    with pytest.raises(MessageDamaged) as refused:
        read(data)
    assert refused.value.message == message
    assert f"{message} at LSN 16/B374D848" in str(refused.value)
    assert cause in str(refused.value)


def test_a_relation_that_was_not_described_is_an_error_of_its_own() -> None:
    with pytest.raises(UnknownRelation) as refused:
        read(b"I" + struct.pack(">I", 7) + b"N" + ROW)
    assert refused.value.oid == 7


@pytest.mark.parametrize(("kind", "version"), [(b"S", 2), (b"E", 2), (b"c", 2), (b"A", 2), (b"b", 3), (b"p", 3)])
def test_a_version_has_no_messages_of_later_ones(kind: bytes, version: int) -> None:
    with pytest.raises(MessageDamaged, match=f"belongs to version {version} of the protocol; version {version - 1}"):
        read(kind + bytes(40), protocol=Protocol(version - 1))


def test_an_abort_says_where_it_is_only_if_streaming_is_parallel() -> None:
    short, long = encode(StreamAbort(1, 2, None, None)), encode(StreamAbort(1, 2, 3, EPOCH_US))
    assert read(short, protocol=Protocol(4)) == StreamAbort(1, 2, None, None)
    for data, protocol in ((long, Protocol(4)), (short, V4)):
        with pytest.raises(MessageDamaged):
            read(data, protocol=protocol)


@settings(deadline=None)
@given(u64, u64, times, st.binary(max_size=9), st.booleans())
def test_frames(lsn: int, end: int, time: int, payload: bytes, reply: bool) -> None:
    ours = time - EPOCH_US
    data = b"w" + struct.pack(">QQq", lsn, end, ours)
    assert decode_frame(memoryview(data + payload)) == XLogData(lsn, end, time, payload)
    alive = b"k" + struct.pack(">QqB", end, ours, reply)
    assert decode_frame(alive) == Keepalive(end, time, reply)
    wrong = [b"", b"x", alive + b"\0", alive[:-1] + b"\2"]
    for damaged in [*(data[:n] for n in range(len(data))), *(alive[:n] for n in range(len(alive))), *wrong]:
        with pytest.raises(MessageDamaged):
            decode_frame(damaged)
    assert status_update(end, lsn, lsn, time, reply=reply) == b"r" + struct.pack(">QQQqB", end, lsn, lsn, ours, reply)


@settings(deadline=None)
@given(u64)
def test_lsns_are_written_as_postgresql_writes_them(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn
    assert format_lsn(LSN) == "16/B374D848"


@pytest.mark.parametrize("text", ["", "0", "0/", "/0", "0/123456789", "0/G", " 0/0", "0/0/0"])
def test_what_is_no_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no LSN"):
        parse_lsn(text)
