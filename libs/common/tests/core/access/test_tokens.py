"""Tokens: who is believed, and each way to be believed without a right to it."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from libs.common.tests.kit.access import IMPOSSIBLE
from libs.common.tests.kit.issuer import (
    AUDIENCE,
    ISS,
    NOW,
    NOW_MS,
    SigningIssuer,
    compact,
    jwk,
    kubernetes_issuer,
    make_key,
    segment,
    sign,
)

from headrace_common.core.access import signatures as signed
from headrace_common.core.access import tokens
from headrace_common.core.access.issuers import REFUSE_AFTER_MS, Issuer, IssuerKeys
from headrace_common.core.access.key_sets import ALGORITHMS, PublicKey
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.tokens import LEEWAY_MS, Identity, VerifiedTokens, verify
from headrace_common.core.errors import CredentialsExpired, CredentialsRevoked, Overloaded, Unauthenticated

IDP = SigningIssuer()
KNOWN = IDP.all
GROUP = PrincipalType.GROUP


def refusal(token: str, issuers: dict[str, IssuerKeys] = KNOWN, now_ms: float = NOW_MS) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as raised:
        verify(token, issuers, now_ms)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 600
    return raised.value


def test_who_shows_a_good_token_is_who_it_says() -> None:
    identity = verify(IDP.token(groups=["staff", "ops"]), KNOWN, NOW_MS)
    assert identity == Identity(
        Principal(PrincipalType.OIDC, "idp/alice"),
        frozenset({Principal(GROUP, "staff"), Principal(GROUP, "ops")}),
        NOW_MS + 3_600_000 + LEEWAY_MS,
        IDP.issuer,
        IDP.known.keys[0],
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_is_taken_where_the_issuer_has_it(algorithm: str) -> None:
    idp = SigningIssuer(replace(IDP.issuer, algorithms=frozenset({algorithm})), [algorithm])
    token = idp.token(algorithm=algorithm)
    assert str(verify(token, idp.all, NOW_MS).principal) == "Oidc:idp/alice"
    others = frozenset(ALGORITHMS) - {algorithm}
    assert "are taken" in str(
        refusal(token, {"idp": replace(idp.known, issuer=replace(idp.issuer, algorithms=others))})
    )
    body, dot, signature = token.rpartition(".")
    wrong = segment(bytes(reversed(urlsafe_b64decode(signature + "=="))))
    assert "signature" in str(refusal(body + dot + wrong, idp.all))


# --- Forged by who has no key of the issuer's

PUBLIC_KEY = make_key("RS256")
SECRETS = {
    "the public key in PEM": PUBLIC_KEY.as_pem(private=False),
    "the public key in DER": PUBLIC_KEY.as_der(private=False),
    "its modulus": str(jwk(PUBLIC_KEY)["n"]).encode(),
    "its JSON": json.dumps(jwk(PUBLIC_KEY)).encode(),
    "nothing": b"",
}


@pytest.mark.parametrize("bits", [256, 384, 512])
@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_the_public_key_is_nobodys_secret(secret: bytes, bits: int) -> None:
    """The classic confusion: HMAC with what everybody may read."""
    head = {"alg": f"HS{bits}", "kid": PUBLIC_KEY.kid}
    token = compact(head, IDP.claims(), lambda text: hmac.new(secret, text, f"sha{bits}").digest())
    assert "are taken" in str(refusal(token))


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "nOnE", "", None, 5, ["RS256"], "RS256 ", "rs256", "RS1"]
)
@pytest.mark.parametrize("signature", [b"", b"x"])
def test_what_is_not_signed_is_refused(algorithm: Any, signature: bytes) -> None:
    refusal(compact({"alg": algorithm, "kid": PUBLIC_KEY.kid}, IDP.claims(), lambda _: signature))
    refusal(compact({"kid": PUBLIC_KEY.kid}, IDP.claims(), lambda _: signature))
    refusal(f"{segment({'alg': algorithm})}.{segment(IDP.claims())}")


STRANGER = make_key("RS256", "stranger")
BROUGHT = {
    "its key": {"jwk": jwk(STRANGER)},
    "where its keys are": {"jku": "https://evil.example.com/keys"},
    "where its certificate is": {"x5u": "https://evil.example.com/cert"},
    "a certificate": {"x5c": ["MIIB"], "x5t": "abc", "x5t#S256": "abc"},
    "nothing": {},
}


@pytest.mark.parametrize("brought", BROUGHT.values(), ids=BROUGHT)
def test_a_token_that_brings_its_own_key_is_not_believed_for_it(brought: dict[str, Any]) -> None:
    head = {"alg": "RS256", "kid": PUBLIC_KEY.kid, **brought}
    assert "signature" in str(refusal(compact(head, IDP.claims(), sign("RS256", STRANGER))))
    assert verify(IDP.token(header=brought), KNOWN, NOW_MS), "and such a header harms no good token"


def test_a_header_may_be_as_long_as_a_chain_of_certificates() -> None:
    assert verify(IDP.token(header={"x5c": ["M" * 2_000]}), KNOWN, NOW_MS)


ALIEN_IDS = [
    "../../../dev/null",
    "/etc/passwd",
    "file:///dev/null",
    "' OR 1=1 --",
    "RS256-1\0",
    "RS256-1 ",
    "",
    "\u202e",
    5,
    [1],
]


@pytest.mark.parametrize("id", ALIEN_IDS, ids=repr)
def test_the_name_of_a_key_is_compared_and_nothing_else(id: Any) -> None:
    assert "signed with key" in str(refusal(IDP.token(header={"kid": id})))


def test_a_key_that_has_no_name_in_the_token_is_the_only_one_that_fits() -> None:
    token = IDP.token(header={"kid": None})
    assert verify(token, KNOWN, NOW_MS)
    two = SigningIssuer(algorithms=["RS256", "ES256"])
    assert verify(two.token(header={"kid": None}), two.all, NOW_MS)
    two = SigningIssuer(algorithms=["RS256", "PS256"])
    assert "names no key" in str(refusal(two.token(header={"kid": None}), two.all))


def test_a_key_signs_by_what_it_is_for_alone() -> None:
    """PS256 with a key that its issuer says is for RS256; and ES256 with a key of another curve."""
    key = {**jwk(PUBLIC_KEY), "alg": "RS256"}
    idp = SigningIssuer()
    idp.keys = {"RS256": PUBLIC_KEY, "PS256": PUBLIC_KEY}
    known = {"idp": replace(idp.known, keys=(replace(idp.known.keys[0], algorithm=key["alg"]),))}
    assert verify(idp.token(), known, NOW_MS)
    assert "has 0" in str(refusal(idp.token(algorithm="PS256"), known))
    assert verify(idp.token(algorithm="PS256"), idp.all, NOW_MS)
    curves = SigningIssuer(replace(IDP.issuer, algorithms=frozenset(ALGORITHMS)), ["ES256", "ES384"])
    head = {"alg": "ES256", "kid": "ES384-1"}
    assert "has 0" in str(refusal(compact(head, curves.claims(), sign("ES384", curves.keys["ES384"])), curves.all))


def test_a_key_that_signed_by_another_algorithm_than_the_token_says_has_not_signed_it() -> None:
    token = compact({"alg": "RS256"}, IDP.claims(), sign("PS256", PUBLIC_KEY))
    assert not KNOWN["idp"].keys[0].has_signed(token, "PS256")


def test_a_signature_of_nothing_but_zeros_is_none() -> None:
    idp = SigningIssuer(algorithms=["ES256", "EdDSA"])
    for algorithm in idp.keys:
        head = {"alg": algorithm, "kid": f"{algorithm}-1"}
        assert "signature" in str(refusal(compact(head, idp.claims(), lambda _: bytes(64)), idp.all))


# --- Signed by the issuer, and not for this

WRONG = {
    "another issuer": ({"iss": "https://evil.example.com"}, "none of this cluster's"),
    "a slash more": ({"iss": ISS + "/"}, "none of this cluster's"),
    "large letters": ({"iss": ISS.upper()}, "none of this cluster's"),
    "a space more": ({"iss": ISS + " "}, "none of this cluster's"),
    "a list with the issuer": ({"iss": [ISS]}, "is of issuer a list or an object"),
    "no issuer": ({"iss": None}, "none of this cluster's"),
    "for another": ({"aud": "billing"}, "for 'billing'"),
    "for one whose name begins so": ({"aud": AUDIENCE + "-dev"}, "has to be for headrace"),
    "for one in large letters": ({"aud": AUDIENCE.upper()}, "has to be for headrace"),
    "for nobody": ({"aud": None}, "for none"),
    "for no one of a list": ({"aud": []}, "for none"),
    "for others of a list": ({"aud": ["a", 1, None, ["headrace"]]}, "has to be for headrace"),
    "for an object": ({"aud": {"headrace": 1}}, "has to be for headrace"),
    "without an end": ({"exp": None}, "no end"),
    "an end in words": ({"exp": "tomorrow"}, "no time"),
    "an end in digits": ({"exp": str(NOW + 60)}, "no time"),
    "true as an end": ({"exp": True}, "no time"),
    "an end that never comes": ({"exp": 1e300}, "no time"),
    "an end that is larger than numbers": ({"exp": 10**400}, "no time"),
    "an end before time": ({"exp": -1}, "no time"),
    "a beginning that is a list": ({"nbf": [NOW]}, "no time"),
    "made in no time": ({"iat": "now"}, "no time"),
    "nobody": ({"sub": None}, "claim sub"),
    "nobody in a text": ({"sub": ""}, "claim sub"),
    "everybody": ({"sub": "*"}, "claim sub"),
    "a number": ({"sub": 5}, "claim sub"),
    "a list of names": ({"sub": ["alice"]}, "claim sub"),
    "for who has a key": ({"cnf": {"jkt": "x"}}, "cnf"),
    "the end of a session": ({"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}, "events"),
    "no group": ({"groups": [None]}, "claim groups"),
    "a group without a name": ({"groups": [""]}, "claim groups"),
    "a group of all": ({"groups": ["*"]}, "claim groups"),
    "a group that is none": ({"groups": {"staff": True}}, "claim groups"),
    "groups in a list": ({"groups": [["staff"]]}, "claim groups"),
    "too many groups": ({"groups": [f"g{n}" for n in range(201)]}, "201 groups"),
}


@pytest.mark.parametrize(("claims", "said"), WRONG.values(), ids=WRONG)
def test_what_the_issuer_signed_for_something_else_is_refused(claims: dict[str, Any], said: str) -> None:
    assert said in str(refusal(IDP.token(**claims)))


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=repr)
def test_who_cannot_be_is_nobody(name: str) -> None:
    refusal(IDP.token(sub=name))
    refusal(IDP.token(groups=["staff", name]))


def test_a_subject_is_what_it_says_and_never_of_another_kind() -> None:
    for sub in ("User:admin", "admin", "a/b", "Node:broker", "../x"):
        assert verify(IDP.token(sub=sub), KNOWN, NOW_MS).principal == Principal(PrincipalType.OIDC, f"idp/{sub}")


@pytest.mark.parametrize("type", ["logout+jwt", "secevent+jwt", "dpop+jwt", "JWE", "JOSE", "", 5, ["JWT"]])
def test_a_token_of_another_type_says_nothing_of_who_calls(type: Any) -> None:
    assert "of type" in str(refusal(IDP.token(header={"typ": type})))


@pytest.mark.parametrize("type", ["JWT", "jwt", "at+jwt", "application/at+jwt", None])
def test_the_types_of_tokens_that_say_who_calls(type: str | None) -> None:
    assert verify(IDP.token(header={"typ": type}), KNOWN, NOW_MS)


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": []}, {"b64": False}, {"b64": False, "crit": ["b64"]}])
def test_an_extension_that_must_be_understood_is_not(header: dict[str, Any]) -> None:
    assert "extension" in str(refusal(IDP.token(header=header)))


def test_other_claims_do_not_count() -> None:
    assert verify(IDP.token(admin=True, azp="other", nonce="n", email="x@example.com"), KNOWN, NOW_MS)


def test_claims_that_the_issuer_names_otherwise() -> None:
    issuer = replace(IDP.issuer, principal_claim="email", groups_claim="https://x/roles", groups_prefix="idp:")
    idp = SigningIssuer(issuer)
    identity = verify(idp.token(email="a@x", groups=["no"], **{"https://x/roles": "one"}), idp.all, NOW_MS)
    assert (str(identity.principal), set(map(str, identity.groups))) == ("Oidc:idp/a@x", {"Group:idp:one"})
    assert "claim email" in str(refusal(idp.token(), idp.all))
    without = SigningIssuer(replace(issuer, principal_claim="sub", groups_claim=None))
    assert verify(without.token(groups=["staff"]), without.all, NOW_MS).groups == frozenset()


# --- Times


@pytest.mark.parametrize("late_ms", [-1, 0, 1])
def test_a_token_is_good_until_half_a_minute_after_its_end(late_ms: int) -> None:
    token, now_ms = IDP.token(exp=NOW), NOW_MS + LEEWAY_MS + late_ms
    if late_ms < 0:
        assert verify(token, KNOWN, now_ms).expires_ms == NOW_MS + LEEWAY_MS
        return
    error = refusal(token, now_ms=now_ms)
    assert isinstance(error, CredentialsExpired)
    assert "2026-09-21T14:13:20.000Z" in str(error)
    assert f"2026-09-21T14:13:50.00{late_ms}Z" in str(error)


@pytest.mark.parametrize("claim", ["nbf", "iat"])
@pytest.mark.parametrize("early_ms", [-1, 0, 1])
def test_a_token_is_good_from_half_a_minute_before_its_beginning(claim: str, early_ms: int) -> None:
    token, now_ms = IDP.token(**{claim: NOW}), NOW_MS - LEEWAY_MS - early_ms
    if early_ms <= 0:
        assert verify(IDP.token(**{"iat": None, claim: NOW}), KNOWN, now_ms)
        return
    error = str(refusal(token, now_ms=now_ms))
    assert "2026-09-21T14:13:20.000Z" in error
    assert "2026-09-21T14:12:49.999Z" in error
    assert "clock" in error


def test_times_may_have_fractions_and_be_left_out() -> None:
    token = IDP.token(iat=None, exp=NOW + 0.5)
    assert verify(token, KNOWN, NOW_MS).expires_ms == NOW_MS + 500 + LEEWAY_MS


def test_keys_that_nobody_could_confirm_for_long_verify_nothing() -> None:
    confirmed_ms = NOW_MS - REFUSE_AFTER_MS
    old, fresh = (IssuerKeys(IDP.issuer, IDP.known.keys, confirmed_ms + more) for more in (0, 1))
    assert verify(IDP.token(), {"idp": fresh}, NOW_MS)
    error = str(refusal(IDP.token(), {"idp": old}))
    assert "2026-08-22T14:13:20.000Z" in error
    assert "2026-09-21T14:13:20.000Z" in error
    with pytest.raises(Unauthenticated, match="too old"):
        verify(IDP.token(), {"idp": fresh}, NOW_MS).check({"idp": old}, NOW_MS)


# --- Forms

NO_TOKENS = {
    "nothing": "",
    "one part": "eyJ",
    "two": "eyJ9.eyJ9",
    "encrypted": ".".join(["eyJ9"] * 5),
    "empty parts": "..",
    "no signature": f"{segment({'alg': 'RS256'})}.{segment(IDP.claims())}.",
    "padding": IDP.token() + "=",
    "other letters": IDP.token().replace("-", "+").replace("_", "/") + "+/",
    "a space": " " + IDP.token(),
    "a newline": IDP.token() + "\n",
    "not of ASCII": IDP.token() + "é",
    "no text": IDP.token() + "\ud800",
    "a header that is a list": compact("[]", IDP.claims(), lambda _: b"x"),
    "a header that is a text": compact('"alg b64"', IDP.claims(), lambda _: b"x"),
    "claims that are a number": compact({"alg": "RS256"}, "5", lambda _: b"x"),
    "no JSON": compact("{", "{", lambda _: b"x"),
    "no UTF-8": ".".join([segment(b'{"alg":"\xff"}'), segment(IDP.claims()), "eHg"]),
    "deep": compact({"alg": "RS256"}, "[" * 3_000, lambda _: b"x"),
    "deep and whole": compact({"alg": "RS256"}, '{"iss":' * 700 + "1" + "}" * 700, lambda _: b"x"),
    "a number without end": compact({"alg": "RS256"}, '{"exp":' + "9" * 5_000 + "}", lambda _: b"x"),
}


@pytest.mark.parametrize("token", NO_TOKENS.values(), ids=NO_TOKENS)
def test_what_has_not_the_form_is_refused(token: str) -> None:
    refusal(token)


@pytest.mark.parametrize("deep", range(300, 1_000, 7))
@pytest.mark.parametrize("claim", ["iss", "aud", "sub", "exp", "groups"])
def test_what_is_deep_is_refused_however_deep_it_is(deep: int, claim: str) -> None:
    body = json.dumps(IDP.claims())[:-1] + f',"x":1,"{claim}":' + "[" * deep + "]" * deep + "}"
    with pytest.raises(Unauthenticated):
        verify(compact({"alg": "RS256", "kid": PUBLIC_KEY.kid}, body, lambda _: b"x"), KNOWN, NOW_MS)


def test_a_token_is_8_kib_at_most() -> None:
    short = len(IDP.token(more=""))
    most = IDP.token(more="x" * ((8_192 - short) * 3 // 4 - 2))
    assert 8_185 < len(most) <= 8_192
    assert verify(most, KNOWN, NOW_MS)
    assert "8192 is the most" in str(refusal(IDP.token(more="x" * ((8_192 - short) * 3 // 4 + 8))))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_of_json_is_none(value: str) -> None:
    body = json.dumps(IDP.claims(exp=None))[:-1] + f', "exp": {value}}}'
    assert "no JSON" in str(refusal(IDP.token(claims=body)))


def test_a_claim_that_is_there_twice_is_none() -> None:
    body = json.dumps(IDP.claims())[:-1] + ', "sub": "admin"}'
    assert "no JSON" in str(refusal(IDP.token(claims=body)))


def test_a_token_in_a_token_is_none() -> None:
    nested = compact({"alg": "RS256", "kid": PUBLIC_KEY.kid, "cty": "JWT"}, IDP.token(), sign("RS256", PUBLIC_KEY))
    assert "no JSON" in str(refusal(nested))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_token_that_was_changed_anywhere_is_refused(at: int, bit: int) -> None:
    token = IDP.token(groups=["staff"])
    at %= len(token)
    changed = token[:at] + chr(ord(token[at]) ^ (1 << bit)) + token[at + 1 :]
    with pytest.raises(Unauthenticated):
        verify(changed, KNOWN, NOW_MS)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.text("eyJ.-_A09")))
def test_no_text_does_more_than_being_refused(text: str) -> None:
    with pytest.raises(Unauthenticated):
        verify("eyJ" + text, KNOWN, NOW_MS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "groups", "cnf", "events", "jti"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, JSON, min_size=1), st.dictionaries(st.sampled_from(["typ", "kid", "alg", "cty"]), JSON))
def test_who_is_believed_is_always_of_this_issuer(claims: dict[str, Any], header: dict[str, Any]) -> None:
    """Whatever the issuer signs."""
    token = IDP.token(claims={**IDP.claims(), **claims}, header=header)
    try:
        identity = verify(token, KNOWN, NOW_MS)
    except Unauthenticated:
        return
    assert identity.principal.name.startswith("idp/")
    assert identity.expires_ms > NOW_MS
    assert {group.type for group in identity.groups} <= {GROUP}


# --- Several issuers


def test_each_token_is_of_its_own_issuer_and_of_its_keys() -> None:
    other = SigningIssuer(Issuer("other", "https://other.example.com", frozenset({AUDIENCE})))
    other.keys = {"RS256": make_key("RS256", "other")}
    both = {**KNOWN, **other.all}
    assert str(verify(other.token(), both, NOW_MS).principal) == "Oidc:other/alice"
    assert str(verify(IDP.token(), both, NOW_MS).principal) == "Oidc:idp/alice"
    forged = compact({"alg": "RS256", "kid": PUBLIC_KEY.kid}, IDP.claims(), sign("RS256", other.keys["RS256"]))
    assert "signature" in str(refusal(forged, both))
    own = compact({"alg": "RS256", "kid": "RS256-other"}, IDP.claims(), sign("RS256", other.keys["RS256"]))
    assert "has 0" in str(refusal(own, both))


# --- Kubernetes

KUBERNETES = SigningIssuer(kubernetes_issuer())


def test_a_pod_is_its_account() -> None:
    about = {"namespace": "shop", "serviceaccount": {"name": "web", "uid": "1"}}
    token = KUBERNETES.token(header={"typ": None}, aud=["headrace:streams/main"], **{"kubernetes.io": about})
    identity = verify(token, KUBERNETES.all, NOW_MS)
    assert (str(identity.principal), identity.groups) == ("ServiceAccount:shop/web", frozenset())
    for audience in ("https://kubernetes.default.svc", "headrace:streams/other", "headrace:other/main"):
        assert "has to be for" in str(refusal(KUBERNETES.token(aud=audience), KUBERNETES.all))


ACCOUNTS = [
    "alice",
    "system:serviceaccount:shop",
    "system:serviceaccount:shop:",
    "system:serviceaccount::web",
    "system:serviceaccount:shop:web:more",
    "system:serviceaccount:shop:web/x",
    "system:serviceaccount:sh/op:web",
    "system:serviceaccount:Shop:web",
    "system:serviceaccount:shop:web\n",
    "system:serviceaccount:shop:*",
    "system:node:web",
    "prefix:system:serviceaccount:shop:web",
]


@pytest.mark.parametrize("subject", ACCOUNTS, ids=repr)
def test_what_is_no_account_of_a_pod_is_nobody(subject: str) -> None:
    assert "no account" in str(refusal(KUBERNETES.token(sub=subject), KUBERNETES.all))


# --- What is remembered


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tokens whose signatures were looked at."""
    seen: list[str] = []

    def spy(token: str, *given: Any) -> Identity:
        seen.append(token)
        return verify(token, *given)

    monkeypatch.setattr(tokens, "verify", spy)
    return seen


def test_a_token_is_verified_once(verified: list[str]) -> None:
    remembered, token = VerifiedTokens(), IDP.token()
    first = remembered.verify(token, KNOWN, NOW_MS)
    assert remembered.verify(token, {"idp": replace(KNOWN["idp"], confirmed_ms=NOW_MS + 1)}, NOW_MS + 1) is first
    assert remembered.verify(IDP.token(sub="bob"), KNOWN, NOW_MS) != first
    assert len(verified) == 2


def test_what_was_refused_is_looked_at_again(verified: list[str]) -> None:
    remembered, token = VerifiedTokens(), IDP.token(nbf=NOW + 40)
    with pytest.raises(Unauthenticated):
        remembered.verify(token, KNOWN, NOW_MS)
    assert remembered.verify(token, KNOWN, NOW_MS + 10_000)
    assert len(verified) == 2


@pytest.mark.parametrize(
    ("token", "wanted"),
    [
        (IDP.token(header={"kid": "new"}), ["idp"]),
        (IDP.token(), []),
        (IDP.token(header={"kid": "new"}, aud="others"), []),
        (IDP.token(header={"kid": "new"}, exp=NOW - 60), []),
        (IDP.token(header={"kid": "new"}, iss="https://elsewhere"), []),
        (IDP.token(header={"kid": "new", "alg": "HS256"}), []),
    ],
    ids=["another key", "a known one", "for others", "over", "of another issuer", "by no key"],
)
def test_only_a_token_that_lacks_its_key_alone_is_a_reason_to_look_for_keys(token: str, wanted: list[str]) -> None:
    remembered, heard = VerifiedTokens(), list[str]()
    remembered.on_unknown_key = heard.append
    with suppress(Unauthenticated, CredentialsExpired):
        remembered.verify(token, KNOWN, NOW_MS)
    assert heard == wanted


def test_two_keys_of_one_name_are_no_reason_to_look_for_keys() -> None:
    key = KNOWN["idp"].keys[0]
    two = replace(KNOWN["idp"], keys=(key, replace(key, algorithm="RS256")))
    remembered, heard = VerifiedTokens(), list[str]()
    remembered.on_unknown_key = heard.append
    with pytest.raises(Unauthenticated, match="has 2"):
        remembered.verify(IDP.token(), {"idp": two}, NOW_MS)
    assert heard == []


def test_a_token_that_is_known_is_over_when_it_is() -> None:
    remembered, token = VerifiedTokens(), IDP.token(exp=NOW + 1)
    remembered.verify(token, KNOWN, NOW_MS)
    assert remembered.verify(token, KNOWN, NOW_MS + LEEWAY_MS + 999)
    with pytest.raises(CredentialsExpired, match=r"14:13:21\.000Z .* 14:13:51|14:13:21\.000Z"):
        remembered.verify(token, KNOWN, NOW_MS + LEEWAY_MS + 1_000)


def test_a_token_that_is_known_is_not_known_by_another_issuer_key_or_setting() -> None:
    remembered, token = VerifiedTokens(), IDP.token()
    remembered.verify(token, KNOWN, NOW_MS)
    now = KNOWN["idp"]
    key = replace(SigningIssuer(algorithms=["ES256"]).known.keys[0], id=PUBLIC_KEY.kid)
    for issuers in (
        {},
        {"idp": replace(now, keys=())},
        {"idp": replace(now, keys=(key,))},
        {"idp": replace(now, issuer=replace(now.issuer, audiences=frozenset({"other"})))},
        {"idp": replace(now, issuer=replace(now.issuer, groups_claim=None))},
    ):
        with pytest.raises(CredentialsRevoked):
            remembered.verify(token, issuers, NOW_MS)
    rotated = SigningIssuer(algorithms=["RS256", "ES256"])
    assert remembered.verify(token, rotated.all, NOW_MS), "a key more takes nothing back"


def test_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch, verified: list[str]) -> None:
    monkeypatch.setattr(tokens, "VERIFIED_MAX", 2)
    remembered = VerifiedTokens()
    a, b, c = (IDP.token(sub=sub) for sub in "abc")
    for token in (a, b, c, b, c, a):
        remembered.verify(token, KNOWN, NOW_MS)
    assert verified == [a, b, c, a]


def test_no_token_is_kept() -> None:
    remembered, token = VerifiedTokens(), IDP.token()
    remembered.verify(token, KNOWN, NOW_MS)
    assert list(remembered._identities) == [hashlib.sha256(token.encode()).digest()]


# --- Wrong ones at a high rate

SIGNED = PublicKey.has_signed


@pytest.fixture
def signatures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens whose signature was looked at."""
    seen: list[str] = []

    def spy(key: PublicKey, token: str, algorithm: str) -> bool:
        seen.append(token)
        return SIGNED(key, token, algorithm)

    monkeypatch.setattr(PublicKey, "has_signed", spy)
    return seen


def wrong(number: int) -> str:
    """Signed by nobody."""
    body = IDP.token().rpartition(".")[0]
    return f"{body}.{segment(number.to_bytes(256, 'big'))}"


def test_the_same_wrong_token_is_looked_at_once_for_each_key(signatures: list[str]) -> None:
    remembered, token = VerifiedTokens(), wrong(1)
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="signature"):
            remembered.verify(token, KNOWN, NOW_MS)
    assert signatures == [token]
    other = replace(KNOWN["idp"].keys[0], algorithm="RS256")
    with pytest.raises(Unauthenticated, match="signature"):
        remembered.verify(token, {"idp": replace(KNOWN["idp"], keys=(other,))}, NOW_MS)
    assert len(signatures) == 2


def test_wrong_tokens_are_looked_at_so_often_and_known_ones_go_on(
    signatures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed, "WRONG_PER_S_MAX", 4)
    remembered, known = VerifiedTokens(), IDP.token()
    remembered.verify(known, KNOWN, NOW_MS)
    for number in range(4):
        with pytest.raises(Unauthenticated, match="signature"):
            remembered.verify(wrong(number), KNOWN, NOW_MS)
    for token in (wrong(5), IDP.token(sub="new"), "eyJ of anything, which is not read"):
        with pytest.raises(Overloaded, match="try again soon"):
            remembered.verify(token, KNOWN, NOW_MS)
    assert remembered.verify(known, KNOWN, NOW_MS)
    with pytest.raises(Unauthenticated, match="signature"):
        remembered.verify(wrong(0), KNOWN, NOW_MS)
    assert len(signatures) == 5
    assert remembered.verify(IDP.token(sub="new"), KNOWN, NOW_MS + 250)
    with pytest.raises(Unauthenticated, match="signature"):
        remembered.verify(wrong(7), KNOWN, NOW_MS + 250)
    with pytest.raises(Overloaded):
        remembered.verify(wrong(8), KNOWN, NOW_MS + 251)


def test_good_tokens_take_no_room_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed, "WRONG_PER_S_MAX", 2)
    remembered = VerifiedTokens()
    for number in range(9):
        assert remembered.verify(IDP.token(sub=f"s{number}"), KNOWN, NOW_MS)


def test_so_many_wrong_tokens_are_remembered(signatures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed, "WRONG_MAX", 2)
    remembered = VerifiedTokens()
    for number in (0, 1, 2, 1, 2, 0):
        with pytest.raises(Unauthenticated):
            remembered.verify(wrong(number), KNOWN, NOW_MS)
    assert signatures == [wrong(0), wrong(1), wrong(2), wrong(0)]
