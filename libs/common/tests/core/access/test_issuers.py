"""Issuers as they are configured and as rows have them; and the sets of keys that they publish."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OctKey, OKPKey
from joserfc.util import int_to_base64
from libs.common.tests.kit.issuer import IDP_ISSUER, NOW_MS, SigningIssuer, jwk, key_set, kubernetes_issuer, make_key

from headrace_common.core.access.issuers import AUDIENCES_MAX, Issuer, IssuerKeys, IssuerKind
from headrace_common.core.access.key_sets import ALGORITHMS, KEY_SET_BYTES_MAX, read_key_set
from headrace_common.core.access.rows import STATE, Mode, Reader, write_issuer, write_state
from headrace_common.core.errors import Rejected
from headrace_common.core.moments import TIMESTAMP_MS_MAX

RSA = jwk(make_key("RS256"))
EC = jwk(make_key("ES256"))
ED = jwk(make_key("EdDSA"))
STATE_ROW = {STATE: write_state(Mode.CLOSED, 1)}


@pytest.mark.parametrize("issuer", [IDP_ISSUER, kubernetes_issuer()], ids=lambda issuer: issuer.alias)
def test_an_issuer_with_every_kind_of_key_is_read_as_it_was_written(issuer: Issuer) -> None:
    known = replace(SigningIssuer(issuer, ALGORITHMS).known, confirmed_ms=5)
    place, row = write_issuer(known)
    assert place == f"issuers/{issuer.alias}"
    view = Reader().read({**STATE_ROW, place: row})
    assert dict(view.issuers) == {issuer.alias: known}
    assert not view.faults


def test_no_row_is_longer_than_the_store_takes() -> None:
    keys = [{**RSA, "kid": str(number) * 100} for number in range(100)]
    issuer = replace(IDP_ISSUER, audiences=frozenset(f"{number}" * 250 for number in range(AUDIENCES_MAX)))
    assert len(write_issuer(IssuerKeys(issuer, read_key_set(key_set(*keys)), NOW_MS))[1]) < 128 << 10


BAD_FIELDS = {
    "another kind": {"kind": "saml"},
    "an algorithm that is none": {"algorithms": ["RS256", "HS256"]},
    "no time": {"confirmed_ms": TIMESTAMP_MS_MAX + 1},
    "time in words": {"confirmed_ms": "now"},
    "no audience": {"audiences": []},
    "keys that are none": {"keys": 5},
}


@pytest.mark.parametrize("fields", BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_a_row_that_cannot_be_read_is_a_fault(fields: dict[str, Any]) -> None:
    place, row = write_issuer(SigningIssuer().known)
    view = Reader().read({**STATE_ROW, place: json.dumps({**json.loads(row), **fields}).encode()})
    assert not view.issuers
    assert len(view.faults) == 1


def test_a_key_in_a_row_that_this_version_does_not_take_takes_no_other_with_it() -> None:
    place, row = write_issuer(SigningIssuer().known)
    fields = json.loads(row)
    fields["keys"].insert(0, {"kty": "AKP", "alg": "ML-DSA-44", "pub": "x"})
    view = Reader().read({**STATE_ROW, place: json.dumps(fields).encode()})
    assert not view.faults
    assert view.issuers["idp"] == SigningIssuer().known


BAD_ISSUERS = {
    "no alias": {"alias": ""},
    "an alias with a slash": {"alias": "a/b"},
    "an alias in large letters": {"alias": "Idp"},
    "an alias that is long": {"alias": "a" * 64},
    "an alias with a newline": {"alias": "idp\n"},
    "no iss": {"iss": ""},
    "an iss with a newline": {"iss": "https://x\n"},
    "an iss that is none": {"iss": None},
    "no audience": {"audiences": frozenset()},
    "an audience that is empty": {"audiences": frozenset({""})},
    "an audience that is all": {"audiences": frozenset({"*"})},
    "too many audiences": {"audiences": frozenset(map(str, range(AUDIENCES_MAX + 1)))},
    "no algorithm": {"algorithms": frozenset()},
    "none as one": {"algorithms": frozenset({"none"})},
    "one with a secret": {"algorithms": frozenset({"RS256", "HS256"})},
    "one of another curve": {"algorithms": frozenset({"ES256K"})},
    "a claim without a name": {"principal_claim": ""},
    "a claim of groups without a name": {"groups_claim": ""},
    "a prefix with a newline": {"groups_prefix": "a\n"},
    "Kubernetes by another claim": {"kind": IssuerKind.KUBERNETES, "principal_claim": "name"},
    "groups of Kubernetes": {"kind": IssuerKind.KUBERNETES, "groups_claim": "groups"},
}


@pytest.mark.parametrize("fields", BAD_ISSUERS.values(), ids=BAD_ISSUERS)
def test_an_issuer_that_cannot_be_is_not_made(fields: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        replace(Issuer("idp", "https://x", frozenset({"a"})), **fields)


def test_all_that_is_wrong_with_one_is_said_at_once() -> None:
    with pytest.raises(Rejected, match=r"^issuer 'A': its alias.*; iss is.*; audiences has.*; algorithms names none$"):
        Issuer("A", "", frozenset(), frozenset())


def small_rsa(bits: int, exponent: int = 65_537) -> dict[str, Any]:
    numbers = rsa.generate_private_key(65_537, bits).public_key().public_numbers()
    return {"kty": "RSA", "n": int_to_base64(numbers.n), "e": int_to_base64(exponent)}


SKIPPED = {
    "a secret": OctKey.generate_key(256).as_dict(),
    "of a type of later": {"kty": "AKP", "alg": "ML-DSA-44", "pub": "x"},
    "of no type": {"n": RSA["n"]},
    "of a type that is a list": {**RSA, "kty": ["RSA"]},
    "for encryption": {**RSA, "use": "enc"},
    "for no verification": {**RSA, "key_ops": ["sign"]},
    "for what is no list": {**RSA, "key_ops": 5},
    "with its private half": make_key("RS256").as_dict(private=True),
    "of a curve for something else": OKPKey.generate_key("X25519").as_dict(private=False),
    "of another curve": OKPKey.generate_key("Ed448").as_dict(private=False),
    "of a curve that is none": {**EC, "crv": "P-255"},
    "of a curve that it is not on": {**EC, "x": EC["y"]},
    "of another curve's length": {**EC, "crv": "P-384"},
    "for an algorithm with a secret": {**RSA, "alg": "HS256"},
    "for an algorithm of another type": {**RSA, "alg": "ES256"},
    "without a number": jwk(make_key("RS256"), e=None),
    "with a number that is one": {**RSA, "n": 5},
    "with a number in other letters": {**ED, "x": "+" + ED["x"][1:]},
    "with an empty number": {**RSA, "n": ""},
    "that is weak": small_rsa(1024),
    "that is slow": small_rsa(2048, (1 << 64) + 1),
    "that is huge": {**RSA, "n": "x" * 1_401},
    "with a name that is a number": {**RSA, "kid": 5},
    "with a name that is long": {**RSA, "kid": "k" * 256},
    "with a name that is no text": {**RSA, "kid": "\ud800"},
    "that is a text": "key",
    "that is nothing": None,
}


@pytest.mark.parametrize("other", SKIPPED.values(), ids=SKIPPED)
def test_a_key_that_signs_no_tokens_is_left_out(other: Any) -> None:
    keys = read_key_set(json.dumps({"keys": [other, EC]}).encode())
    assert [key.fields() for key in keys] == [EC]
    with pytest.raises(Rejected, match="it has no key that signs tokens: key 0 "):
        read_key_set(json.dumps({"keys": [other]}).encode())


def test_what_stands_beside_a_key_is_not_kept() -> None:
    more = {"x5c": ["MIIB"], "x5t": "x", "issuer": "https://x", "use": "sig", "key_ops": ["verify"], "alg": None}
    (key,) = read_key_set(key_set({**RSA, **more}))
    assert key.fields() == RSA


def test_the_same_key_twice_is_one() -> None:
    assert len(read_key_set(key_set(RSA, EC, RSA))) == 2


NO_SETS = {
    "nothing": b"",
    "no JSON": b"<html>sign in</html>",
    "no text": b"\xff\xfe\xfd",
    "a list": b"[]",
    "no keys": b"{}",
    "keys that are no list": b'{"keys":{"kid":{}}}',
    "no key": b'{"keys":[]}',
    "deep": b"[" * 100_000,
    "deep and whole": b'{"keys":' * 5_000 + b"1" + b"}" * 5_000,
    "a number without end": b'{"keys":' + b"9" * 9_999 + b"}",
    "long": b'{"keys":[' + b" " * KEY_SET_BYTES_MAX + b"]}",
    "many": key_set(*[RSA] * 101),
}


@pytest.mark.parametrize("raw", NO_SETS.values(), ids=NO_SETS)
def test_what_is_no_set_of_keys_is_refused(raw: bytes) -> None:
    with pytest.raises(Rejected) as raised:
        read_key_set(raw)
    assert len(str(raised.value)) < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
MEMBERS = st.sampled_from(["kty", "crv", "n", "e", "x", "y", "use", "key_ops", "kid", "alg", "d"])


@given(st.sampled_from([RSA, EC, ED]), st.dictionaries(MEMBERS, JSON, min_size=1))
def test_a_key_with_anything_in_it_is_taken_or_left_out(key: dict[str, Any], others: dict[str, Any]) -> None:
    assert len(read_key_set(json.dumps({"keys": [{**key, **others}, EC]}).encode())) in {1, 2}


@given(st.binary(max_size=40))
def test_any_bytes_are_a_set_or_refused(raw: bytes) -> None:
    with pytest.raises(Rejected):
        read_key_set(raw)


def test_a_key_of_8192_bits_is_taken() -> None:
    wide = int_to_base64((1 << 8_191) | (int.from_bytes(b"\x55" * 1_000, "big") << 1) | 1)
    assert read_key_set(key_set({"kty": "RSA", "n": wide, "e": "AQAB"}))
