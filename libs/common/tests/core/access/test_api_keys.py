"""API keys: what their text says, and what is kept of them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.access import ALICE, STAFF, allow

from headrace_common.core.access.api_keys import ApiKey, KeyId, digest_of, format_key, parse_key, verifier_of
from headrace_common.core.access.grants import scope_of
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType, literal
from headrace_common.core.errors import Rejected

TEXT = format_key(bytes(range(10)), bytes(range(32)))
ID, SECRET = parse_key(TEXT)


@given(st.binary(min_size=10, max_size=10), st.binary(min_size=32, max_size=32))
def test_all_randomness_is_in_the_text(id_bytes: bytes, secret_bytes: bytes) -> None:
    text = format_key(id_bytes, secret_bytes)
    assert text.isascii()
    assert len(text) == len(TEXT)
    parts = parse_key(text)
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    for part, raw in ((parts.id, id_bytes), (parts.secret, secret_bytes)):
        number = 0
        for digit in part:
            number = number * 62 + digits.index(digit)
        assert number == int.from_bytes(raw, "big")


@pytest.mark.parametrize("at", range(len(TEXT)))
def test_a_key_that_was_mistyped_is_told_from_one_that_is_unknown(at: int) -> None:
    other = "b" if TEXT[at] == "a" else "a"
    with pytest.raises(Rejected, match="no API key") as raised:
        parse_key(TEXT[:at] + other + TEXT[at + 1 :])
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("text", ["", TEXT[:-1], TEXT + "a", TEXT + "\n", " " + TEXT, TEXT.upper(), "hrk__", "é" * 68])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="no API key"):
        parse_key(text)


def test_only_the_digest_is_kept() -> None:
    key = ApiKey(ID, ALICE, digest_of(SECRET), 1)
    assert key.digest == hashlib.sha256(SECRET.encode()).digest()
    assert SECRET not in repr(key)
    assert key.matches(SECRET)
    assert not key.matches(SECRET[:-1] + "!")
    assert not key.matches("")


def test_a_verifier_has_the_id_and_the_digest_and_not_the_secret() -> None:
    assert verifier_of(TEXT) == f"{ID} {hashlib.sha256(SECRET.encode()).hexdigest()}"
    assert SECRET not in verifier_of(TEXT)
    with pytest.raises(Rejected, match="no API key"):
        verifier_of(TEXT[:-1])


def test_a_key_is_over_at_its_time() -> None:
    key = ApiKey(ID, ALICE, bytes(32), 1_000, 2_000)
    assert [key.expired(at) for at in (1_999, 2_000, 2_001)] == [False, True, True]
    assert not ApiKey(ID, ALICE, bytes(32), 1_000).expired(1e15)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"id": KeyId("short")}, "no id of a key"),
        ({"id": KeyId(ID + "\n")}, "no id of a key"),
        ({"owner": STAFF}, "has no keys"),
        ({"owner": Principal(PrincipalType.NODE, "broker-1")}, "has no keys"),
        ({"digest": b"short"}, "32 bytes"),
        ({"expires_ms": 5}, "expires after"),
        ({"note": "n" * 256}, "note"),
        ({"note": "a\nb"}, "note"),
    ],
)
def test_a_key_that_cannot_be_is_refused(fields: dict[str, object], says: str) -> None:
    whole = {"id": ID, "owner": ALICE, "digest": bytes(32), "created_ms": 5, **fields}
    with pytest.raises(Rejected, match=says):
        ApiKey(**whole)  # type: ignore[arg-type]


def test_a_key_may_have_a_scope_and_a_note() -> None:
    scope = scope_of([allow(ResourceType.TOPIC, literal("a"), Operation.READ)])
    key = ApiKey(ID, ALICE, bytes(32), 5, 6, scope, "nightly job")
    assert (key.scope, key.note) == (scope, "nightly job")
