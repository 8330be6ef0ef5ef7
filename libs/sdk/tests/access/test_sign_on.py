"""A person logs in at a provider: what is asked, what is believed, and each way to be made to believe more."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from libs.common.tests.kit.issuer import ISS, NOW, NOW_MS, SigningIssuer

from headrace._sign_on import (
    Attempt,
    Provider,
    SignOn,
    challenge_of,
    discovery_url,
    read_device_code,
    read_provider,
    read_tokens,
    renewal,
    waits_on,
)
from headrace_common.core.errors import CredentialsExpired, Rejected, Unauthenticated
from headrace_common.core.secret import Secret

IDP = SigningIssuer()
SIGN_ON = SignOn("idp", ISS, "headrace", ("openid", "profile"), "id_token")
PROVIDER = Provider(ISS, f"{ISS}/authorize?tenant=a", f"{ISS}/token")
ATTEMPT = Attempt(PROVIDER, SIGN_ON, "http://127.0.0.1:4321/callback", "state", "nonce", Secret("verifier"))
CONFIGURATION = {"issuer": ISS, "authorization_endpoint": f"{ISS}/authorize", "token_endpoint": f"{ISS}/token"}


def answered(status: int = 200, *, sign_on: SignOn = SIGN_ON, nonce: str | None = "nonce", **said: Any) -> Any:
    return read_tokens(status, said, sign_on, NOW_MS, nonce)


# --- the provider


def test_a_provider_is_found_by_its_name_to_the_letter() -> None:
    assert discovery_url(ISS) == f"{ISS}/.well-known/openid-configuration"
    assert discovery_url(f"{ISS}/realms/a/") == f"{ISS}/realms/a/.well-known/openid-configuration"
    assert read_provider(CONFIGURATION, ISS) == Provider(ISS, f"{ISS}/authorize", f"{ISS}/token")


@pytest.mark.parametrize("iss", ["", None, f"{ISS}/", ISS.upper(), "https://evil.example.com", [ISS]], ids=repr)
def test_what_is_published_there_for_another_issuer_is_not_believed(iss: Any) -> None:
    with pytest.raises(Rejected, match="same to the letter"):
        read_provider({**CONFIGURATION, "issuer": iss}, ISS)


@pytest.mark.parametrize(
    "place",
    [
        "http://login.example.com/token",
        "http://127.0.0.1:80/token",
        "https://",
        "https:///token",
        "https://a@login.example.com/",
        "https://login.example.com/#a",
        "https://login.example.com/\x7f",
        "https://login.example.com/" + "a" * 9_000,
        "file:///etc/passwd",
        "https://[::1",
        5,
        None,
    ],
    ids=lambda place: repr(place)[:40],
)
@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint"])
def test_nothing_is_sent_to_a_place_that_others_may_read(name: str, place: Any) -> None:
    with pytest.raises(Rejected, match=name):
        read_provider({**CONFIGURATION, name: place}, ISS)


def test_plain_text_is_for_a_provider_on_this_machine() -> None:
    here = "http://127.0.0.1:5556/dex"
    said = {"issuer": here, "authorization_endpoint": f"{here}/auth", "token_endpoint": f"{here}/token"}
    assert read_provider(said, here).token == f"{here}/token"
    with pytest.raises(Rejected):
        discovery_url("http://login.example.com")
    with pytest.raises(Rejected, match="device_authorization_endpoint"):
        read_provider({**said, "device_authorization_endpoint": "http://login.example.com/"}, here)


# --- the browser


def test_a_browser_is_sent_with_all_that_ties_the_answer_to_this_login() -> None:
    url = ATTEMPT.url()
    assert url.startswith(f"{ISS}/authorize?")
    assert parse_qs(urlsplit(url).query) == {
        "tenant": ["a"],
        "response_type": ["code"],
        "client_id": ["headrace"],
        "redirect_uri": ["http://127.0.0.1:4321/callback"],
        "scope": ["openid profile"],
        "state": ["state"],
        "nonce": ["nonce"],
        "code_challenge": ["iMnq5o6zALKXGivsnlom_0F5_WYda32GHkxlV7mq7hQ"],
        "code_challenge_method": ["S256"],
    }
    assert "verifier" not in url


def test_who_asks_for_what_renews_a_login_asks_the_person_too() -> None:
    scopes = SignOn("idp", ISS, "headrace", ("openid", "offline_access"), "id_token")
    url = Attempt(PROVIDER, scopes, "http://127.0.0.1:4321/callback", "s", "n", Secret("v")).url()
    assert parse_qs(urlsplit(url).query)["prompt"] == ["consent"]


def test_the_challenge_is_that_of_the_standard() -> None:
    """RFC 7636, appendix B."""
    verifier = Secret("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    assert challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.parametrize(
    "target",
    [
        "/callback?code=c",
        "/callback?code=c&state=",
        "/callback?code=c&state=stat",
        "/callback?code=c&state=state2",
        "/callback?code=c&state=state&state=state",
        "/callback/?code=c&state=state",
        "/?code=c&state=state",
        "/callback?code=c&state=%ff",
    ],
)
def test_what_another_page_sends_a_browser_here_with_is_nothing_of_this_login(target: str) -> None:
    assert not ATTEMPT.is_mine(target)


def test_the_code_is_what_the_provider_itself_sent() -> None:
    target = "/callback?code=c&state=state"
    assert ATTEMPT.is_mine(target)
    assert ATTEMPT.code(target) == ATTEMPT.code(f"{target}&iss=https%3A%2F%2Flogin.example.com") == Secret("c")
    for other in ("iss=https%3A%2F%2Fevil", "iss=", f"iss={ISS}&iss={ISS}", f"iss={ISS}/"):
        with pytest.raises(Unauthenticated, match="was ended by"):
            ATTEMPT.code(f"{target}&{other}")
    says = Attempt(Provider(ISS, "a", "t", says_iss=True), SIGN_ON, "http://h/callback", "s", "n", Secret("v"))
    with pytest.raises(Unauthenticated, match="was ended by"):
        says.code(target)
    for without in ("/callback?state=state", "/callback?state=state&code=", f"{target}&code=d"):
        with pytest.raises(Unauthenticated, match="no code"):
            ATTEMPT.code(without)
    with pytest.raises(Unauthenticated, match=r"access_denied'.*'she said no"):
        ATTEMPT.code("/callback?state=state&error=access_denied&error_description=she+said+no&code=c")


def test_the_code_is_given_for_the_same_redirect_and_with_what_only_this_login_knows() -> None:
    assert ATTEMPT.exchange(Secret("c")) == {
        "grant_type": "authorization_code",
        "code": "c",
        "redirect_uri": ATTEMPT.redirect_uri,
        "client_id": "headrace",
        "code_verifier": "verifier",
    }


# --- tokens


def test_the_token_that_the_cluster_takes_and_what_renews_it() -> None:
    token = IDP.token(nonce="nonce")
    tokens = answered(id_token=token, access_token="opaque", refresh_token="r")
    assert (tokens.bearer, tokens.expires_ms, tokens.refresh) == (Secret(token), (NOW + 3_600) * 1_000, Secret("r"))
    assert "r" not in repr(tokens.refresh)
    assert answered(id_token=token, refresh_token="").refresh is None
    access = SignOn("idp", ISS, "headrace", ("openid",), "access_token")
    for_api = IDP.token(aud="api")
    assert answered(sign_on=access, access_token=for_api, id_token=token).bearer == Secret(for_api)
    assert renewal(SIGN_ON, Secret("r")) == {
        "grant_type": "refresh_token",
        "refresh_token": "r",
        "client_id": "headrace",
    }


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"nonce": None}, "another login"),
        ({"nonce": "other"}, "another login"),
        ({"nonce": ["nonce"]}, "another login"),
        ({"nonce": "nonce", "iss": f"{ISS}/"}, "of issuer"),
        ({"nonce": "nonce", "aud": "others"}, "is for"),
        ({"nonce": "nonce", "aud": ["others"]}, "is for"),
        ({"nonce": "nonce", "exp": None}, "no end"),
        ({"nonce": "nonce", "exp": True}, "no end"),
        ({"nonce": "nonce", "exp": 1e30}, "no end"),
        ({"nonce": "nonce", "exp": NOW - 31}, "over already"),
    ],
    ids=repr,
)
def test_a_token_of_something_else_is_not_kept(claims: dict[str, Any], said: str) -> None:
    with pytest.raises(Unauthenticated, match=said):
        answered(id_token=IDP.token(**claims))


def test_what_a_provider_refuses_is_said_and_whether_only_a_person_can_go_on() -> None:
    with pytest.raises(CredentialsExpired, match="headrace login --oidc idp"):
        answered(400, error="invalid_grant", error_description="session \x1b[2J over")
    for status, said in ((400, {"error": "invalid_client"}), (500, {}), (200, {"error": "x"})):
        with pytest.raises(Unauthenticated) as refused:
            answered(status, **said)
        assert not isinstance(refused.value, CredentialsExpired)
    with pytest.raises(Unauthenticated) as refused:
        answered(400, error="bad", error_description="a\nb\x1b[2J" + "c" * 5_000)
    assert refused.value.args[0].isprintable()
    assert len(refused.value.args[0]) < 500
    with pytest.raises(Unauthenticated, match="no id_token"):
        answered(nonce=None, access_token="a")
    with pytest.raises(Unauthenticated):
        answered(id_token="opaque")


# --- a code that is typed elsewhere


def test_a_device_code_and_how_long_it_is_waited_for() -> None:
    said = {"user_code": "AB-CD", "verification_uri": f"{ISS}/device", "device_code": "d"}
    code = read_device_code(said, ISS)
    assert (code.user_code, code.place, code.place_with_code) == ("AB-CD", f"{ISS}/device", None)
    assert (code.expires_s, code.interval_s) == (900, 5)
    assert read_device_code({**said, "expires_in": 10**9, "interval": 0.001}, ISS).interval_s == 1
    assert read_device_code({**said, "expires_in": 10**9, "interval": 10**9}, ISS).expires_s == 900
    assert read_device_code({**said, "interval": 10**9}, ISS).interval_s == 60
    for wrong in ({"verification_uri": "http://evil"}, {"user_code": None}, {"device_code": ""}):
        with pytest.raises(Rejected):
            read_device_code({**said, **wrong}, ISS)
    assert [waits_on({"error": text}) for text in ("authorization_pending", "slow_down", "expired_token")] == [
        0,
        5,
        None,
    ]
