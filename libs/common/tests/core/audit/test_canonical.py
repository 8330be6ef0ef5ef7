"""A line has one form in bytes, and no credential in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.access.api_keys import ID_BYTES, SECRET_BYTES, format_key
from headrace_common.core.audit.canonical import LINE_BYTES_MAX, read_line, write_line
from headrace_common.core.credential_forms import cut_credentials, sounds_secret
from headrace_common.core.errors import Rejected

KEY = format_key(b"i" * ID_BYTES, b"s" * SECRET_BYTES)
NODE_TOKEN = "hrn_" + "a" * 43
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJib2IifQ.c2lnbmF0dXJl"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
CREDENTIALS = (KEY, NODE_TOKEN, JWT, PEM, "https://bob:hunter2@db/x")

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
documents = st.dictionaries(st.text(max_size=5), plain, max_size=4)


@given(documents)
def test_what_is_written_is_read(document: dict[str, object]) -> None:
    line = write_line(document)
    assert read_line(line) == document
    assert line.isascii()
    assert b"\n" not in line


@given(documents)
def test_the_order_of_names_does_not_matter(document: dict[str, object]) -> None:
    assert write_line(dict(reversed(document.items()))) == write_line(document)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"1",
        b"{",
        b'{"a": 1}',
        b'{"a":1} ',
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e400}',
        b'{"a":1E2}',
        b'{"a":"\\u0041"}',
        '{"a":"é"}'.encode(),
        b'{"a":"\xff"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b"1" * 5_000 + b"}",
        write_line({"a": "x" * LINE_BYTES_MAX}),
    ],
)
def test_another_form_of_it_is_no_line(line: bytes) -> None:
    with pytest.raises(Rejected):
        read_line(line)


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_a_credential_is_never_written(credential: str) -> None:
    for text in (credential, f"it said {credential} and"):
        for document in ({"a": text}, {"a": [1, {"b": text}]}, {text: 1}):
            with pytest.raises(Rejected, match="never written") as refused:
                write_line(document)
            assert credential not in str(refused.value)


def test_texts_that_are_harmless_each_are_harmless_together() -> None:
    document = {"a": "see https://x", "b": "alice@example.com", "c": "-----BEGIN PRIVATE", "d": "KEY-----"}
    assert json.loads(write_line(document)) == document


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (KEY, f"{KEY[:19]}***"),
        (KEY[:-10], f"{KEY[:19]}***"),
        (f"({KEY})", f"({KEY[:19]}***)"),
        (NODE_TOKEN, "hrn_***"),
        (f"Bearer {JWT}!", "Bearer eyJ***!"),
        (f"a{PEM}b", "a***b"),
        ("postgres://bob:hunter2@db:5432/x", "postgres://bob:***@db:5432/x"),
        ("hrk_topic", "hrk_topic"),
        ("eyJ.eyJ.x", "eyJ.eyJ.x"),
        (f"0{JWT}", "0eyJ***"),
        ("spiffe://cluster/broker/1", "spiffe://cluster/broker/1"),
        ("http://a:80/b", "http://a:80/b"),
        ("Oidc:sso/alice@example.com", "Oidc:sso/alice@example.com"),
    ],
)
def test_what_logs_in_is_cut_out_and_nothing_else(text: str, left: str) -> None:
    assert cut_credentials(text) == left


pieces = st.sampled_from([*CREDENTIALS, KEY[:25], "hrk_", "hrn_", "eyJ", "://", ":", "@", "-----", "*", "a" * 16, "."])


@given(st.lists(pieces, max_size=8).map("".join))
def test_what_has_been_cut_is_not_cut_again(text: str) -> None:
    once = cut_credentials(text)
    assert cut_credentials(once) == once


@pytest.mark.parametrize("name", ["ssl.key.password", "sasl.jaas.config", "api_key", "api.key", "client_secret"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert sounds_secret(name)
    assert not sounds_secret("retention.ms")
