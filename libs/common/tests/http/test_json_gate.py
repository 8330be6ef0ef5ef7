"""What it costs to find out that JSON has no single meaning, or too much of it."""

from __future__ import annotations

import json

import pytest

from headrace_common.http import json_gate
from headrace_common.http.json_gate import KEYS_MAX, VALUES_MAX, NotJson, _object, parse_strict


class Name(str):
    """A key that counts how often it is compared with another."""

    __slots__ = ()
    compared = 0
    compared_max = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        assert Name.compared <= Name.compared_max, "every key is compared with all others"
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"{}," * VALUES_MAX + b"0]",
        b"[" + b"[]," * VALUES_MAX + b"0]",
        b"[" + b'"",' * (VALUES_MAX + 1) + b"0]",
        b"{" + b",".join(b'"%d":0' % n for n in range(VALUES_MAX + 1)) + b"}",
        b'["a,' + b'\\",' * VALUES_MAX + b'",' + b"1," * (VALUES_MAX + 1) + b"0]",
    ],
)
def test_more_values_than_may_be_are_refused_before_any_is_made(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(NotJson, match="more than 100000 values"):
        parse_strict(body)


@pytest.mark.parametrize("text", ["," * 1_000_000, "[{" * 500_000, '\\",' * 500_000])
def test_what_stands_in_a_text_does_not_count(text: str) -> None:
    assert parse_strict(json.dumps([text, text]).encode()) == [text, text]


def test_a_text_without_an_end_is_told_as_such() -> None:
    with pytest.raises(NotJson, match="not JSON at line 1"):
        parse_strict(b'["' + b"," * VALUES_MAX + b'\\"' * 2_000_000)


def test_an_object_has_so_many_keys_at_most() -> None:
    keys = (b'"%d":0' % n for n in range(KEYS_MAX + 1))
    with pytest.raises(NotJson, match="10001 keys; 10000 is the most"):
        parse_strict(b"{" + b",".join(keys) + b"}")


@pytest.mark.parametrize("body_bytes", [120_000, 4 << 20])
def test_a_key_that_occurs_twice_is_found_in_one_pass(body_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_gate, "KEYS_MAX", body_bytes)
    count = body_bytes // len('"k1234567":0,')
    pairs = [(Name(f"k{n:07}"), 0) for n in range(count)]
    Name.compared, Name.compared_max = 0, 4 * count
    with pytest.raises(NotJson, match=f"'k{count - 1:07}' occurs twice"):
        _object([*pairs, (Name(f"k{count - 1:07}"), 0)])


def test_the_whole_text_is_refused_with_the_key() -> None:
    keys = ",".join(f'"k{n:07}":0' for n in [*range(9_000), 8_999])
    with pytest.raises(NotJson, match="'k0008999' occurs twice"):
        parse_strict(b"{" + keys.encode() + b"}")
