"""A person logs in with a browser that the provider sends back here, or by a code; and others who come to that port."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from threading import Thread
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
from libs.common.tests.kit.provider import CLIENT, Provider, serving

from headrace._sign_on import SignOn, Tokens
from headrace_cli import signing_on
from headrace_cli.exits import CommandFailed
from headrace_cli.signing_on import ask_provider, has_browser, log_in_by_browser, log_in_by_device
from headrace_common.core.errors import NetworkFailed, Rejected, Unauthenticated


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving() as made:
        yield made


def sign_on_at(provider: Provider) -> SignOn:
    return SignOn("idp", provider.iss, CLIENT, ("openid",), "id_token")


class Person:
    """Looks at the page that a browser is opened with, after what ``before`` does with its address."""

    def __init__(self, before: Callable[[str], None] = lambda url: None) -> None:
        self.before = before
        self.seen: list[str] = []
        self.said: list[str] = []

    def open(self, url: str) -> bool:
        def browse() -> None:
            self.before(url)
            try:
                with urlopen(url, timeout=10) as page:
                    self.seen.append(page.read().decode())
            except OSError as error:
                self.seen.append(str(error))

        Thread(target=browse, daemon=True).start()
        return True

    def log_in(self, provider: Provider) -> Tokens:
        sign_on = sign_on_at(provider)
        return log_in_by_browser(ask_provider(sign_on), sign_on, self.said.append, opens=self.open)


def test_who_logs_in_with_a_browser_has_the_token(provider: Provider) -> None:
    person = Person()
    tokens = person.log_in(provider)
    assert tokens.bearer.reveal().startswith("eyJ")
    assert tokens.refresh is not None
    assert provider.asked == ["/.well-known/openid-configuration", "/authorize", "/token", "authorization_code"]
    assert f"{provider.iss}/authorize?" in person.said[0]


def test_what_others_send_to_the_port_ends_no_login(provider: Provider) -> None:
    answers: list[int] = []

    def attack(url: str) -> None:
        asked = parse_qs(urlsplit(url).query)
        place, state = urlsplit(asked["redirect_uri"][0]), asked["state"][0]
        for target, host in (
            ("/callback?code=evil&state=guess", place.netloc),
            ("/callback?code=evil", place.netloc),
            (f"/elsewhere?code=evil&state={state}", place.netloc),
            (f"/callback?code=evil&state={state}", f"evil.example.com:{place.port}"),
        ):
            assert place.hostname is not None
            line = http.client.HTTPConnection(place.hostname, place.port, timeout=5)
            line.request("GET", target, headers={"Host": host})
            answers.append(line.getresponse().status)
            line.close()

    tokens = Person(attack).log_in(provider)
    assert answers == [404] * 4
    assert tokens.bearer.reveal().startswith("eyJ")


@pytest.mark.parametrize(
    ("sent_back", "said"),
    [
        ({"iss": "https://evil.example.com"}, "was ended by"),
        ({"error": "access_denied"}, "access_denied"),
        ({"code": ""}, "no code"),
        ({"code": "made-up"}, "invalid_grant"),
    ],
    ids=["another provider", "refused", "no code", "another code"],
)
def test_what_the_provider_did_not_give_is_not_taken(provider: Provider, sent_back: dict[str, str], said: str) -> None:
    provider.sent_back = sent_back
    with pytest.raises(Unauthenticated, match=said):
        Person().log_in(provider)


def test_a_token_of_another_login_is_not_kept(provider: Provider) -> None:
    provider.claims = {"nonce": "another"}
    with pytest.raises(Unauthenticated, match="another login"):
        Person().log_in(provider)


def test_who_does_not_come_is_waited_for_so_long(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing_on, "BROWSER_S_MAX", 0.01)
    said: list[str] = []
    sign_on = sign_on_at(provider)
    with pytest.raises(Unauthenticated, match="nobody has logged in"):
        log_in_by_browser(ask_provider(sign_on), sign_on, said.append, opens=lambda url: False)
    assert said[0] == "no browser could be opened here"


def test_a_port_that_somebody_has_is_said(provider: Provider) -> None:
    taken = urlsplit(provider.iss).port
    assert taken is not None
    sign_on = sign_on_at(provider)
    with pytest.raises(CommandFailed, match=f"port {taken}"):
        log_in_by_browser(ask_provider(sign_on), sign_on, print, port=taken, opens=lambda url: False)


def test_a_code_is_asked_for_as_slowly_as_the_provider_wants(provider: Provider) -> None:
    provider.device_says = ["authorization_pending", "slow_down", "authorization_pending"]
    said, waits = list[str](), list[float]()
    sign_on = sign_on_at(provider)
    tokens = log_in_by_device(ask_provider(sign_on), sign_on, said.append, waits.append)
    assert tokens.bearer.reveal().startswith("eyJ")
    assert waits == [1, 1, 6, 6]
    assert said == [f"open {provider.iss}/activate in any browser, and type there: ABCD-EFGH"]


def test_a_code_that_is_refused_is_asked_for_no_more(provider: Provider) -> None:
    provider.device_says = ["authorization_pending", "access_denied", "never"]
    sign_on = sign_on_at(provider)
    with pytest.raises(Unauthenticated, match="access_denied"):
        log_in_by_device(ask_provider(sign_on), sign_on, print, lambda s: None)
    assert provider.device_says == ["never"]


def test_a_provider_without_codes(provider: Provider) -> None:
    provider.says = {"device_authorization_endpoint": None}
    sign_on = sign_on_at(provider)
    with pytest.raises(CommandFailed, match="no device codes"):
        log_in_by_device(ask_provider(sign_on), sign_on, print, lambda s: None)


def test_a_provider_that_is_another_or_nowhere(provider: Provider) -> None:
    provider.says = {"issuer": f"{provider.iss}/"}
    with pytest.raises(Rejected, match="same to the letter"):
        ask_provider(sign_on_at(provider))
    with pytest.raises(NetworkFailed, match="404"):
        ask_provider(SignOn("idp", f"{provider.iss}/realms/none", CLIENT, ("openid",), "id_token"))
    with pytest.raises(NetworkFailed, match="no answer"):
        ask_provider(SignOn("idp", "http://127.0.0.1:1", CLIENT, ("openid",), "id_token"))


@pytest.mark.parametrize(
    ("env", "platform", "has"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "a"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "a"}, "darwin", False),
        ({"BROWSER": "links", "SSH_CONNECTION": "a"}, "linux", True),
    ],
)
def test_whether_a_browser_that_is_opened_here_is_seen(env: dict[str, str], platform: str, has: bool) -> None:
    assert has_browser(env, platform) is has
