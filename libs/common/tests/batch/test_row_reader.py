"""
The reader of rows for where aiokafka is not installed, against aiokafka's C codec: the same records of whatever is
valid, and a refusal of whatever the codec refuses.
"""

import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_common.core.batch import (
    BatchHeader,
    Codec,
    RecordColumns,
    build_control_batch,
    build_row_batch,
    decode_batch,
    read_control,
    read_header,
    rows,
    stamp_log_append_time,
)
from headrace_common.core.batch.control import ControlType
from headrace_common.core.batch.row_reader import Rows, read_number, read_rows
from headrace_common.core.errors import CorruptBatch

from .samples import CODECS, Records, header_of, records, row, seal, varint
from .test_damage import BAD_ROWS, refused

Reader = Callable[[BatchHeader, bytes], Rows]


@pytest.fixture
def without_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are decoded as where aiokafka is not installed."""
    monkeypatch.setattr(rows, "row_reader", lambda: read_rows)


def read(reader: Reader, header: BatchHeader, body: bytes) -> Rows | None:
    """What the reader makes of ``body``; None: it refuses it."""
    try:
        return reader(header, body)
    except CorruptBatch:
        return None


def check_as_the_codec(header: BatchHeader, body: bytes) -> Rows | None:
    ours, codecs = read(read_rows, header, body), read(rows.read_by_codec, header, body)
    assert ours == codecs
    return ours


def test_where_aiokafka_is_installed_its_codec_reads() -> None:
    assert rows.row_reader() is rows.read_by_codec


WITHOUT_AIOKAFKA = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"aiokafka", "pyarrow"}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
sys.meta_path.insert(0, Blocked())
from headrace_common.core.batch import check_body, decode_batch, load_decoder, read_control, read_header
load_decoder(2)
for line in sys.stdin:
    batch = bytes.fromhex(line)
    check_body(batch, read_header(batch))
    decoded = decode_batch(batch)
    print(decoded.offsets(), decoded.timestamps(), decoded.keys(), decoded.values(), decoded.headers())
    if decoded.is_control:
        print(read_control(decoded)[0].name)
"""


def test_rows_and_control_records_are_read_without_aiokafka_and_pyarrow() -> None:
    columns = RecordColumns([b"v", None], [None, b"k"], [5, 3], [[("h", b"x"), ("n", None)], []])
    batches = [build_row_batch(columns, codec=codec, base_offset=7) for codec in CODECS]
    key, value = struct.pack(">hh", 0, ControlType.COMMIT), struct.pack(">hi", 0, 0)
    commit = row(key=varint(len(key)) + key, value=varint(len(value)) + value)
    batches.append(seal(header_of(1, magic=2, attributes=0x30, producer_id=1, producer_epoch=0), commit))
    batches.append(build_control_batch(ControlType.ABORT, b"", timestamp_ms=1, producer_id=1, producer_epoch=0))
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_AIOKAFKA],
        input="\n".join(batch.hex() for batch in batches),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.splitlines()
    assert told[: len(CODECS)] == ["[7, 8] [5, 3] [None, b'k'] [b'v', None] [[('h', b'x'), ('n', None)], []]"] * len(
        CODECS
    )
    assert (told[-3], told[-1]) == ("COMMIT", "ABORT")


@given(given_records=records(), base_offset=st.integers(0, 2**60), append_time=st.booleans())
def test_the_records_are_those_of_the_codec(given_records: Records, base_offset: int, append_time: bool) -> None:
    batch = build_row_batch(given_records.columns, base_offset=base_offset)
    if append_time:
        batch = stamp_log_append_time(batch, base_offset, 3, 555)
    read_by_both = check_as_the_codec(read_header(batch), batch[61:])
    assert read_by_both is not None
    assert read_by_both.values == given_records.values


@pytest.mark.parametrize("count", [63, 64, 65, 8191, 8192, 8193, 10_000])
def test_records_whose_numbers_grow_are_those_of_the_codec(count: int) -> None:
    values: list[bytes | None] = [bytes(number % 200) for number in range(count)]
    stamps = [10**12 + number * 10**7 * (-1) ** number for number in range(count)]
    batch = build_row_batch(RecordColumns(values, values, stamps, [[("naïve", b"w" * 70)]] * count))
    both = check_as_the_codec(read_header(batch), batch[61:])
    assert both is not None
    assert (both.values, both.timestamps) == (values, stamps)


NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300))


@settings(max_examples=500)
@given(first=NUMBERS, delta=NUMBERS, latest=NUMBERS, attributes=st.sampled_from([0, 8]))
@example(first=2**63 - 1, delta=1, latest=0, attributes=0)
@example(first=-(2**63), delta=-1, latest=0, attributes=0)
@example(first=0, delta=-1, latest=0, attributes=0)
@example(first=0, delta=0, latest=-1, attributes=8)
def test_timestamps_have_64_bits_as_those_of_the_codec(first: int, delta: int, latest: int, attributes: int) -> None:
    rest = b"\0" + varint(delta) + varint(0) + varint(-1) + varint(-1) + varint(0)
    header = header_of(1, magic=2, attributes=attributes, base_timestamp=first, max_timestamp=latest)
    assert check_as_the_codec(header, varint(len(rest)) + rest) is not None


@st.composite
def encodings(draw: st.DrawFn, numbers: st.SearchStrategy[int]) -> bytes:
    """A number in more bytes than it needs, up to ten, the last of which then has bits that do not fit."""
    number = draw(numbers)
    zigzag = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    size = draw(st.integers(len(varint(number)), 10))
    if size == 10:
        zigzag |= draw(st.integers(0, 63)) << 64
    septets = [zigzag >> 7 * place & 0x7F for place in range(size)]
    return bytes([*(septet | 0x80 for septet in septets[:-1]), septets[-1]])


ANY = encodings(NUMBERS)
EMPTY = encodings(st.integers(-3, 0))
NONE = encodings(st.just(0))


@settings(max_examples=500)
@given(st.tuples(ANY, ANY, ANY, EMPTY, EMPTY), NONE, st.data())
def test_numbers_of_any_length_are_those_of_the_codec(
    fields: tuple[bytes, ...], no_headers: bytes, data: st.DataObject
) -> None:
    rest = b"".join([*fields, no_headers])
    length = data.draw(encodings(st.just(len(rest))))
    ours, codecs = (reader(header_of(1, magic=2), length + rest) for reader in (read_rows, rows.read_by_codec))
    assert ours._replace(offsets=[]) == codecs._replace(offsets=[])
    assert (ours.offsets[0] - codecs.offsets[0]) % 2**64 == 0


def test_numbers_of_more_than_ten_bytes_are_refused() -> None:
    eleven = b"\x80" * 10 + b"\0"
    rest = eleven + varint(0) * 2 + varint(-1) * 2 + varint(0)
    assert check_as_the_codec(header_of(1, magic=2), varint(len(rest)) + rest) is None
    ten = eleven[1:] + rest[len(eleven) :]
    assert check_as_the_codec(header_of(1, magic=2), varint(len(ten)) + ten) is not None


@given(number=NUMBERS, before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_numbers_come_back(number: int, before: bytes, after: bytes) -> None:
    written = varint(number)
    assert read_number(before + written + after, len(before)) == (number, len(before + written))
    for cut in range(len(written)):
        with pytest.raises(CorruptBatch):
            read_number(before + written[:cut], len(before))


@settings(max_examples=1000)
@given(given_records=records(count_max=12), data=st.data())
def test_damaged_rows_are_refused_or_read_as_by_the_codec(given_records: Records, data: st.DataObject) -> None:
    batch = build_row_batch(given_records.columns)
    damaged = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])))
    cut = data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))
    body = bytes(damaged[:cut]) + data.draw(st.one_of(st.just(b""), st.binary(max_size=12)))
    check_as_the_codec(read_header(batch), body)


@settings(max_examples=500)
@given(body=st.binary(max_size=100), count=st.integers(1, 8))
def test_random_bytes_are_refused_or_read_as_by_the_codec(body: bytes, count: int) -> None:
    check_as_the_codec(header_of(count, magic=2), body)


@pytest.mark.usefixtures("without_codec")
@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_refused_without_much_memory(name: str) -> None:
    assert refused(seal(header_of(1, magic=2), BAD_ROWS[name]))
    good = row(value=varint(100) + bytes(100))
    if "offset" not in name:
        assert refused(seal(header_of(2, magic=2), good + BAD_ROWS[name]))


@pytest.mark.usefixtures("without_codec")
def test_more_headers_than_a_batch_may_hold() -> None:
    one = varint(2_000_000) + (varint(0) + varint(-1)) * 2_000_000
    assert "headers" in refused(seal(header_of(1, magic=2), row(headers=one)))
    thousand = varint(1000) + (varint(0) + varint(-1)) * 1000
    many = b"".join(row(delta=delta, headers=thousand) for delta in range(1100))
    with pytest.raises(CorruptBatch, match="headers"):
        decode_batch(seal(header_of(1100, magic=2), many))


@pytest.mark.usefixtures("without_codec")
@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_decoded_by_it(codec: Codec) -> None:
    values: list[bytes | None] = [b"a", bytes(3 << 20), None]
    decoded = decode_batch(build_row_batch(RecordColumns(values, timestamps_ms=[1, 2, 3]), codec=codec))
    assert (decoded.values(), decoded.timestamps()) == (values, [1, 2, 3])
    assert decoded.to_arrow()["value"].to_pylist() == values


def test_a_control_record_in_rows_says_what_it_ends() -> None:
    key = struct.pack(">hh", 0, ControlType.ABORT)
    header = header_of(1, magic=2, attributes=0x30, producer_id=1, producer_epoch=0)
    body = row(key=varint(len(key)) + key, value=varint(6) + struct.pack(">hi", 0, 0))
    assert check_as_the_codec(header, body) is not None
    assert read_control(decode_batch(seal(header, body)))[0] is ControlType.ABORT
