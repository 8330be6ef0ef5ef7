"""Values of a JSON topic, sound and not, for tests."""

from __future__ import annotations

from hypothesis import strategies as st

SCHEMA = (
    "s string, d double, f float, i bigint, t tinyint, b boolean, at timestamp, "
    "l array<bigint>, o struct<x: double, y: string, z: array<struct<q: int>>>"
)


def _each(texts: str) -> list[str]:
    return texts.split()


NUMBERS = [
    *_each("1 0 -0 -0.0 -0e5 0.0 1.0 -1.5 1e3 1E+5 1e-0 128 -128 300 2147483648 123456789012345678 16777217 0.1"),
    *_each("9223372036854775807 9223372036854775808 -9223372036854775808 18446744073709551616 1e400 -1e400 1e-400"),
    *_each("3.4028235677973366e38 3.4028235677973365e38 1.00000017881393432617187499"),
    *_each("NaN -NaN Infinity -Infinity Inf nan 01 -01 1. .5 +1 - 0x1"),
    *("1" * 308, "1" * 400, "0." + "3" * 400),
]
TEXTS = [
    *_each(r'"" "a" "NaN" "Inf" "-0}" "\ud800" "\udc00" "\ud83d\ude00" "\u0000" "a\nb" "\x" "unclosed'),
    *('"In }x"', '"a\nb"', '"a\tb"', '"\x00"', '"\x7f"', '"\u2028é😀"'),
]
NESTED = [
    *_each("[] [1] [1,null] [1.0] [1,] [[1]] {}"),
    *_each('["a"] {"x":1} {"x":-0} {"x":NaN} {"x":1,"x":2} {"y":"a","w":1} {"z":[{"q":1},null,{}]} {"z":[1]}'),
    *('{"z":[{"q":2147483648}]}', "[" * 1030 + "]" * 1030, '{"a":' * 1030 + "1" + "}" * 1030),
]
SCALARS = [*NUMBERS, *TEXTS, *NESTED, *_each("null true false True nul 'a' //c /*c*/1")]
TIMES = [
    *_each("0 -1 1767225600123 -62135596800000 -62135596800001 253402300799999 253402300800000 1e3"),
    *_each('"2026-01-01T00:00:00Z" "2026-01-01T00:00:00.123Z" "1969-12-31T23:59:59.9999Z" "yesterday"'),
    *_each('"2026-01-01T00:00:00.123456Z" "2026-01-01T00:00:00.123456789Z" "1960-01-01T00:00:00.000001Z"'),
    *_each('"2026-01-01T00:00:00.1Z" "2026-01-01T00:00:00,5Z" "2026-01-01T00:00:00.Z" "2026-01-01T00:00Z"'),
    *_each('"2026-01-01T00Z" "20260101T000000Z" "2026-01-01" "2026-01-01T00:00:00" "2026-W01-1" "20260101"'),
    *_each('"2026-01-01T00:00:00+02:00" "2026-01-01T00:00:00+0200" "2026-01-01T00:00:00-02"'),
    *_each('"2026-01-01T00:00:00+24:00" "2026-01-01T00:00:00+00:60" "2026-01-01T00:00:00+23:59"'),
    *_each('"2026-01-01T24:00:00Z" "2026-01-01T23:59:60Z" "2026-02-29T00:00:00Z" "2026-1-1T00:00:00Z"'),
    *_each('"0000-01-01T00:00:00Z" "0001-01-01T00:00:00+01:00" "9999-12-31T23:59:59.999Z"'),
    *_each('"9999-12-31T23:59:59-01:00" "2026-01-01x00:00:00Z" "1767225600123" "2026-01-01T00:00:00z"'),
    *('"2026-01-01 00:00:00+02:00"', '" 2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00 Z"'),
    *('"2026-01-01T00:00:00.1234567Z"', '"0500-02-29T00:00:00Z"', '"2026-01-01T00:00:00+00:00:30"'),
]
WHOLE = [
    *(
        each.encode()
        for each in _each('null 1 [] [{}] "a" {} {}{} {},{} {}null{} {}null {"o": {}} "} {"i":1 , } { {,} {i:1}')
    ),
    *(each.encode() for each in _each(r'{"w":NaN} {"w":1e400} {"\u0073":"a"} {"s":"a","\u0073":"b"} {"S":"a"} {"":1}')),
    *(b"", b" ", b" {}", b"{} ", b"{}\n", b"{} {}", b"{}\nnull\n{}", b"{}\n{}", b'{"o":{"x":1} }', b'{"o":{"x":1}\n}'),
    *(b"\xef\xbb\xbf{}", b"{}\x00", b"\x00", b'{"s":"\xff"}', b'{"\xff":1}', b'{"w":"\xed\xa0\x80"}', b'{"i" 1}'),
]


def values() -> st.SearchStrategy[bytes]:
    """Mostly sound objects; with spellings, types and damage that parsers differ on."""
    odd = st.sampled_from(SCALARS + TIMES)
    space = st.sampled_from(["", "", "", "", " ", "\n", "\t", "\r\n"])
    right = st.fixed_dictionaries(
        {},
        optional={
            "s": st.sampled_from(['"ann"', '"bo\\"b"', '"é"', "null"]),
            "d": st.sampled_from(["1.5", "-0.5", "7", "1e22", "0.1", "null"]),
            "f": st.sampled_from(["0.1", "1", "1e-50", "null"]),
            "i": st.integers(-(2**63), 2**63 - 1).map(str),
            "t": st.integers(-128, 127).map(str),
            "b": st.sampled_from(["true", "false", "null"]),
            "at": st.sampled_from(TIMES),
            "l": st.sampled_from(["[]", "[1,2]", "[null]", "null"]),
            "o": st.sampled_from(['{"x":1.5,"y":"a"}', "{}", "null", '{"z":[{"q":1}],"k":{"s":[]}}']),
            "w": odd,
        },
    )
    wrong = st.dictionaries(st.sampled_from(["s", "d", "f", "i", "t", "b", "at", "l", "o", "w"]), odd, max_size=2)
    members = st.one_of(right, right, right, st.tuples(right, wrong).map(lambda both: {**both[0], **both[1]}))

    @st.composite
    def an_object(draw: st.DrawFn) -> bytes:
        between = draw(space)
        text = f",{between}".join(f'"{name}":{between}{value}' for name, value in draw(members).items())
        return f"{{{text}{draw(space)}}}".encode()

    @st.composite
    def damaged(draw: st.DrawFn) -> bytes:
        value = draw(an_object())
        at = draw(st.integers(0, len(value)))
        piece = draw(
            st.sampled_from([b"", b"}", b"{", b"\n", b"\xff", b'"', b",", b"null", b"}{", b"-0", b"NaN", b" "])
        )
        return value[:at] + piece + value[at + draw(st.integers(0, 2)) :]

    return st.one_of(an_object(), an_object(), an_object(), damaged(), st.sampled_from(WHOLE))
