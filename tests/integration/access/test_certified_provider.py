"""
``headrace login --oidc`` at the certified OIDC provider, by its own pages; and its tokens, changed in each way that has
deceived others. What it cannot be made to do is tested with stand-ins: ``test_issuer_keys.py``, ``test_tokens.py``.
"""

from __future__ import annotations

import json
import os
import threading
import webbrowser
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.issuer import compact, make_key, segment, sign
from libs.common.tests.kit.provider import CLIENT
from typer.testing import CliRunner

from headrace import AdminClient, access
from headrace._renewing import read_issued, renew
from headrace.errors import InvalidConfig, Unauthenticated
from headrace_cli.app import app
from headrace_cli.local import LocalCluster

from .certified import Certified, Person

MODULES: Final = os.environ.get("HEADRACE_OIDC_PROVIDER", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(500),
    pytest.mark.skipif(not MODULES, reason="make e2e-oidc: it installs packages from npm"),
]

START_S: Final = 240.0
"""On a busy machine."""
ALICE: Final = "Oidc:idp/alice"
FIRST: Final = make_key("RS256")
SECOND: Final = make_key("RS256", "2")
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def idp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    files = Authority().files(tmp_path_factory.mktemp("tls"))
    made = Certified(MODULES, files, tmp_path_factory.mktemp("idp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(files.ca))
        made.start([FIRST])
        yield made
        made.stop()


@pytest.fixture(scope="module")
def cluster(home: Path, idp: Certified, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    del home
    directory = tmp_path_factory.mktemp("certified")
    issuers = directory / "issuers.json"
    with pytest.MonkeyPatch.context() as patch:
        issuer = {"alias": "idp", "iss": idp.iss, "audiences": [CLIENT], "jwks": f"{idp.iss}/jwks", "client_id": CLIENT}
        issuer |= {"ca_file": str(idp.tls.ca), "scopes": ["openid", "offline_access"]}
        issuers.write_text(json.dumps([issuer]))
        patch.setenv("HEADRACE_CONTROLLER_OIDC_ISSUERS_FILE", str(issuers))
        made = LocalCluster(directory / "data", brokers=1, coordinators=0, closed=True)
        try:
            made.start(START_S)
            with AdminClient(made.bootstrap_servers) as admin:
                admin.alter_access([access.Put(access.allow(ALICE, ["DESCRIBE"], "TOPIC", "orders"))])
            yield made
        finally:
            made.stop()


@pytest.fixture
def run(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("BROWSER", "of a test")

    def invoke(*argv: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*argv, "--bootstrap", cluster.bootstrap_servers[0], "--output", "json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if code == 0 and result.stdout.strip() else result.output

    return invoke


class Browser(webbrowser.BaseBrowser):
    def __init__(self, person: Person) -> None:
        super().__init__("of a test")
        self.person = person
        self.last: list[str] = []

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        threading.Thread(target=lambda: self.last.append(self.person.visit(url)), daemon=True).start()
        return True


def log_in(run: Run) -> Path:
    browser = Browser(Person("alice"))
    webbrowser.register("of a test", None, browser, preferred=True)
    made = run("login", "--oidc", "idp")
    assert made["principal"] == ALICE
    assert browser.person.seen == ["login", "consent"]
    assert made["renewed"], "it gives what renews the login"
    return Path(made["file"])


def test_the_whole_way_by_a_browser(run: Run) -> None:
    file = log_in(run)
    assert run("whoami")["principal"] == ALICE
    before = read_issued(file)
    assert before is not None
    renew(file, before.tokens.bearer)
    after = read_issued(file)
    assert after is not None
    assert after.tokens.refresh != before.tokens.refresh, "it is good once"
    assert run("whoami")["principal"] == ALICE
    kept = file.read_bytes()
    run("logout")
    file.write_bytes(kept)
    with pytest.raises(Unauthenticated, match="headrace login --oidc idp"):
        renew(file, after.tokens.bearer)


def test_the_whole_way_by_a_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    person, places = Person("alice"), list[str]()

    def say(text: str) -> None:
        if text.startswith("or open "):
            places.append(person.visit(text.removeprefix("or open ")))

    monkeypatch.setattr("headrace_cli.session.Session.say", lambda self, text: say(text))
    assert run("login", "--oidc", "idp", "--device")["principal"] == ALICE
    assert "login" in person.seen
    assert places


def changed(token: str, key: Any, head: dict[str, Any], **claims: Any) -> str:
    """With other parts, signed by ``key``; None takes a claim away."""
    said = {name: value for name, value in {**claims_of(token), **claims}.items() if value is not None}
    return compact({**json.loads(urlsafe_b64decode(token.split(".", maxsplit=1)[0] + "==")), **head}, said, key)


def claims_of(token: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))
    return found


def test_its_tokens_are_taken_as_they_are_alone(cluster: LocalCluster, idp: Certified, run: Run) -> None:
    login = read_issued(log_in(run))
    assert login is not None
    token = login.tokens.bearer.reveal()
    head, claims, signature = token.split(".")
    other, mine = sign("RS256", SECOND), sign("RS256", FIRST)
    public = FIRST.as_pem(private=False)

    def hmac_of(text: bytes) -> bytes:
        import hashlib
        import hmac

        return hmac.digest(public, text, hashlib.sha256)

    wrong = {
        "no algorithm": f"{segment({'alg': 'none'})}.{claims}.",
        "the public key as a secret": changed(token, hmac_of, {"alg": "HS256"}),
        "another key by the same id": changed(token, other, {}),
        "a key of its own": changed(token, other, {"jwk": SECOND.as_dict(private=False)}),
        "a key from elsewhere": changed(token, other, {"jku": "https://evil.example/jwks", "kid": "x"}),
        "the id of a path": changed(token, other, {"kid": "../../../../dev/null"}),
        "another algorithm": changed(token, mine, {"alg": "PS256"}),
        "another audience": changed(token, mine, {}, aud="another"),
        "a slash more": changed(token, mine, {}, iss=f"{idp.iss}/"),
        "no end": changed(token, mine, {}, exp=None),
        "over": changed(token, mine, {}, exp=1),
        "another's name": f"{head}.{segment(claims_of(token) | {'sub': 'root'})}.{signature}",
    }
    assert who(cluster, token) == ALICE
    assert who(cluster, changed(token, mine, {})) == ALICE, "the changes are what is refused"
    for what, one in wrong.items():
        with pytest.raises((Unauthenticated, InvalidConfig)):  # the latter: the client itself sees what it is
            pytest.fail(f"{what}: {who(cluster, one)}")


def who(cluster: LocalCluster, token: str) -> str:
    with AdminClient(cluster.bootstrap_servers, api_key=token) as admin:
        return admin.who_am_i().principal


def test_keys_that_are_rotated(cluster: LocalCluster, idp: Certified, run: Run) -> None:
    """The provider comes back with another key: nodes learn it when they see it, and forget the first one."""
    login = read_issued(log_in(run))
    assert login is not None
    idp.stop()
    idp.start([SECOND])
    log_in(run)
    assert run("whoami")["principal"] == ALICE
    with pytest.raises(Unauthenticated):
        pytest.fail(who(cluster, login.tokens.bearer.reveal()))
