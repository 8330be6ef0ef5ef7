"""
The four codecs, with every inflation bounded before it starts.

Both formats are inflated here, and columns are compressed here; rows are compressed in ``rows``. Magic 3 says the
inflated length, so inflation writes into a buffer of exactly that size. Kafka's rows do not, so theirs grows in steps
up to the caller's limit. The frames of rows are those of Kafka's clients: gzip members, snappy in xerial blocks, lz4
and zstd frames.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

from headrace_common.core.batch.header import Codec
from headrace_common.core.errors import CorruptBatch

_GZIP_WINDOW: Final = 31  # zlib's largest window, in a gzip wrapper
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3
_LZ4_LEVEL: Final = 1
_FIRST_GUESS_BYTES: Final = 64 << 10
_RATIO_MAX: Final = {Codec.GZIP: 1040, Codec.SNAPPY: 32, Codec.LZ4: 256, Codec.ZSTD: 32_768}
"""What one byte can inflate to at most, rounded up: so a few bytes cannot ask for the whole of the limit."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE: Final = 16
_BLOCK_LENGTH: Final = struct.Struct(">i")
_GZIP_MEMBER: Final = b"\x1f\x8b\x08"
_GZIP_SIZE: Final = struct.Struct("<I")
_GZIP_BYTES_MIN: Final = 18
_LZ4_FRAME: Final = b"\x04\x22\x4d\x18"
_LZ4_VERSION: Final = 0x40
_LZ4_SIZE_FLAG: Final = 0x08
_LZ4_SIZE: Final = struct.Struct("<Q")
_LZ4_SIZE_AT: Final = 6
_ZSTD_FRAME: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SINGLE_SEGMENT: Final = 0x20
_ZSTD_WINDOW_LOG_MAX: Final = 27
"""What a decoder of zstd takes unless it is told otherwise."""


def compress(codec: Codec, data: bytes | memoryview) -> bytes | memoryview:
    """One frame of ``data``; snappy is a raw block."""
    import cramjam

    match codec:
        case Codec.GZIP:
            deflate = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
            return deflate.compress(data) + deflate.flush()
        case Codec.SNAPPY:
            return memoryview(cramjam.snappy.compress_raw(data))
        case Codec.LZ4:
            return memoryview(cramjam.lz4.compress(data, level=_LZ4_LEVEL))
        case Codec.ZSTD:
            return memoryview(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    raise AssertionError("nothing to compress with")


def inflate_exact(codec: Codec, data: memoryview, size: int) -> bytes | bytearray:
    """
    Inflate one frame to exactly ``size`` bytes, which the caller has checked against its limit.

    Raises:
        CorruptBatch: not a frame of that codec, or it inflates to another size.
    """
    assert size > 0, "a body is never empty"
    if size > _limit_inflation(codec, data):
        raise CorruptBatch(f"{len(data)} bytes of {codec.name.lower()} cannot inflate to {size} bytes")
    if codec is Codec.GZIP:
        out = _gunzip(data, size)
        if len(out) != size:
            raise CorruptBatch(f"the body inflates to {len(out)} bytes, not to the {size} that it says")
        return out
    buffer = bytearray(size)
    written = _inflate_into(codec, data, buffer)
    if written != size:
        raise CorruptBatch(f"the body inflates to {written} bytes, not to the {size} that it says")
    return buffer


def check_frame(codec: Codec, data: memoryview, size: int) -> None:
    """
    Check what one frame says of itself against the ``size`` to which it is to inflate, without inflating it.

    Raises:
        CorruptBatch: not a frame of that codec, or it inflates to another size. A frame may leave its size unsaid.
    """
    if size > _limit_inflation(codec, data):
        raise CorruptBatch(f"{len(data)} bytes of {codec.name.lower()} cannot inflate to {size} bytes")
    said = _FRAME_SIZES[codec](data)
    if said is not None and said != size:
        raise CorruptBatch(f"the body inflates to {said} bytes, not to the {size} that it says")


def _gzip_size(data: memoryview) -> int:
    if bytes(data[:3]) != _GZIP_MEMBER or len(data) < _GZIP_BYTES_MIN:
        raise CorruptBatch("the body is not valid gzip: it does not begin as a member")
    return int(_GZIP_SIZE.unpack_from(data, len(data) - _GZIP_SIZE.size)[0])


def _snappy_size(data: memoryview) -> int:
    import cramjam

    try:
        return int(cramjam.snappy.decompress_raw_len(data))
    except cramjam.DecompressionError as failed:
        raise CorruptBatch(f"the body is not valid snappy: {failed}") from None


def _lz4_size(data: memoryview) -> int | None:
    if bytes(data[:4]) != _LZ4_FRAME or len(data) < _LZ4_SIZE_AT + 1 or data[4] & 0xC0 != _LZ4_VERSION:
        raise CorruptBatch("the body is not valid lz4: it does not begin as a frame")
    if not data[4] & _LZ4_SIZE_FLAG:
        return None
    if len(data) < _LZ4_SIZE_AT + _LZ4_SIZE.size:
        raise CorruptBatch("the body is not valid lz4: it ends too early")
    return int(_LZ4_SIZE.unpack_from(data, _LZ4_SIZE_AT)[0])


def _zstd_size(data: memoryview) -> int | None:
    """As RFC 8878, 3.1.1.1, has it: descriptor, window, dictionary id, size."""
    if bytes(data[:4]) != _ZSTD_FRAME or len(data) < 6:
        raise CorruptBatch("the body is not valid zstd: it does not begin as a frame")
    descriptor = data[4]
    single = descriptor & _ZSTD_SINGLE_SEGMENT
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if not single and 10 + (data[5] >> 3) > _ZSTD_WINDOW_LOG_MAX:
        raise CorruptBatch(f"the body needs a window of zstd above {1 << _ZSTD_WINDOW_LOG_MAX} bytes to be read")
    if len(data) < at + width:
        raise CorruptBatch("the body is not valid zstd: it ends too early")
    if not width:
        return None
    return int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)


_FRAME_SIZES: Final = {
    Codec.GZIP: _gzip_size,
    Codec.SNAPPY: _snappy_size,
    Codec.LZ4: _lz4_size,
    Codec.ZSTD: _zstd_size,
}


def inflate_rows(codec: Codec, data: memoryview, size_max: int) -> bytes | memoryview:
    """
    Inflate the records of a row batch, which does not say how long they are.

    Raises:
        CorruptBatch: not a frame of that codec, or it inflates to more than ``size_max`` bytes.
    """
    if codec is Codec.GZIP:
        return _gunzip(data, size_max)
    if codec is Codec.SNAPPY:
        return _unsnappy_rows(data, size_max)
    size_max = min(size_max, _limit_inflation(codec, data))
    guess = min(size_max, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        buffer = bytearray(guess)
        try:
            return memoryview(buffer)[: _inflate_into(codec, data, buffer)]
        except CorruptBatch as failed:
            if guess >= size_max:
                raise CorruptBatch(f"{failed}, or more than {size_max} bytes inflated") from None
            guess = min(size_max, guess * 4)


def _limit_inflation(codec: Codec, data: memoryview) -> int:
    return (len(data) + 1) * _RATIO_MAX[codec]


def _inflate_into(codec: Codec, data: memoryview, buffer: bytearray) -> int:
    import cramjam

    into: Any
    match codec:
        case Codec.SNAPPY:
            into = cramjam.snappy.decompress_raw_into
        case Codec.LZ4:
            into = cramjam.lz4.decompress_into
        case Codec.ZSTD:
            into = cramjam.zstd.decompress_into
        case _:
            raise AssertionError("gzip and none are not inflated here")
    try:
        return int(into(data, buffer))
    except cramjam.DecompressionError as failed:
        raise CorruptBatch(f"the body is not valid {codec.name.lower()}: {failed}") from None


def _gunzip(data: memoryview, size_max: int) -> bytes:
    """All gzip members of ``data``; never holds more than ``size_max`` bytes and a bit."""
    out: list[bytes] = []
    room = size_max + 1  # one more than allowed tells a bomb from a full buffer
    rest: bytes | memoryview = data
    while rest:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            while not member.eof:
                piece = member.decompress(rest, room)
                rest = member.unconsumed_tail
                room -= len(piece)
                out.append(piece)
                if room <= 0:
                    raise CorruptBatch(f"the body inflates to more than {size_max} bytes")
                if not piece and not rest and not member.eof:
                    raise CorruptBatch("the body is not valid gzip: it ends too early")
        except zlib.error as failed:
            raise CorruptBatch(f"the body is not valid gzip: {failed}") from None
        rest = member.unused_data
    return b"".join(out)


def _unsnappy_rows(data: memoryview, size_max: int) -> bytes:
    if len(data) <= _XERIAL_HEADER_SIZE or bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return bytes(_unsnappy_block(data, size_max))
    out: list[bytes | bytearray] = []
    room, at = size_max, _XERIAL_HEADER_SIZE
    while at < len(data):
        if at + _BLOCK_LENGTH.size > len(data):
            raise CorruptBatch("a snappy block has no length")
        (length,) = _BLOCK_LENGTH.unpack_from(data, at)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - at:
            raise CorruptBatch(f"a snappy block of {length} bytes where {len(data) - at} remain")
        block = _unsnappy_block(data[at : at + length], room)
        room -= len(block)
        at += length
        out.append(block)
    return b"".join(out)


def _unsnappy_block(data: memoryview, size_max: int) -> bytearray:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
    except cramjam.DecompressionError as failed:
        raise CorruptBatch(f"the body is not valid snappy: {failed}") from None
    if size > size_max:
        raise CorruptBatch(f"the body inflates to more than {size_max} bytes")
    buffer = bytearray(size)
    if _inflate_into(Codec.SNAPPY, data, buffer) != size:
        raise CorruptBatch("a snappy block is shorter than it says")
    return buffer
