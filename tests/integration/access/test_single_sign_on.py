"""
``headrace login --oidc`` at a provider that is a server of its own and speaks TLS: its keys come to the brokers by the
image, and what the command has got is renewed, refused and taken back.
"""

from __future__ import annotations

import json
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.issuer import SigningIssuer
from libs.common.tests.kit.provider import CLIENT, Provider, serving
from typer.testing import CliRunner

from headrace import AdminClient, access
from headrace._renewing import Issued, read_issued, renew, write_issued
from headrace.errors import CredentialsExpired
from headrace_cli.app import app
from headrace_cli.exits import ExitCode
from headrace_cli.local import LocalCluster

pytestmark = pytest.mark.integration

ALICE: Final = "Oidc:idp/alice"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def idp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    files = Authority().files(tmp_path_factory.mktemp("idp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(files.ca))  # people's machines trust the CA of their provider
        with serving(tls=files) as made:
            yield made


@pytest.fixture(scope="module")
def cluster(home: Path, idp: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    del home
    directory = tmp_path_factory.mktemp("single-sign-on")
    issuers = directory / "issuers.json"
    issuer = {"alias": "idp", "iss": idp.iss, "audiences": [CLIENT], "jwks": f"{idp.iss}/keys", "client_id": CLIENT}
    trusted = {"ca_file": str(idp.ca_file), "scopes": ["openid", "offline_access"]}
    issuers.write_text(json.dumps([issuer | trusted]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CONTROLLER_OIDC_ISSUERS_FILE", str(issuers))
        with LocalCluster(directory / "data", brokers=1, coordinators=0, closed=True) as made:
            with AdminClient(made.bootstrap_servers) as admin:
                admin.create_topic("orders")
                admin.alter_access([access.Put(access.allow(ALICE, ["DESCRIBE"], "TOPIC", "orders"))])
            yield made


@pytest.fixture
def run(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, by somebody who is not the administrator of the machine."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def invoke(*argv: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*argv, "--bootstrap", cluster.bootstrap_servers[0], "--output", "json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if code == 0 and result.stdout.strip() else result.output

    return invoke


class Browser(webbrowser.BaseBrowser):
    """Of a person who is logged in at the provider already: it goes where that sends it."""

    def __init__(self) -> None:
        super().__init__("of a test")
        self.pages: list[bytes] = []

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        def browse() -> None:
            with urlopen(url, timeout=20) as page:
                self.pages.append(page.read())

        threading.Thread(target=browse, daemon=True).start()
        return True


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    made = Browser()
    monkeypatch.setenv("BROWSER", "of a test")
    webbrowser.register("of a test", None, made, preferred=True)
    return made


def change(file: Path, **changes: Any) -> Issued:
    """What is kept of a login, as if time had gone by."""
    login = read_issued(file)
    assert login is not None
    tokens = {name: changes.pop(name) for name in ("expires_ms",) if name in changes}
    changed = replace(login, tokens=replace(login.tokens, **tokens), **changes)
    write_issued(file.parent, file.stem, changed)
    return changed


def test_a_person_logs_in_is_renewed_and_logs_out(idp: Provider, run: Run, browser: Browser) -> None:
    run("topic", "list", code=ExitCode.FAILED)
    idp.asked.clear()
    made = run("login", "--oidc", "idp")
    assert (made["principal"], made["renewed"]) == (ALICE, True)
    assert idp.asked[:4] == ["/.well-known/openid-configuration", "/authorize", "/token", "authorization_code"]
    assert b"logged in" in browser.pages[0]
    file = Path(made["file"])
    told = run("whoami")
    assert (told["principal"], told["credential"]) == (ALICE, f"headrace login ({file})")
    assert "orders" in json.dumps(run("topic", "list"))
    first = read_issued(file)
    assert first is not None
    assert abs(first.renew_ms - (time.time() + 0.8 * idp.lifetime_s) * 1_000) < 60_000

    change(file, renew_ms=0)
    assert run("whoami")["principal"] == ALICE
    renewed = read_issued(file)
    assert renewed is not None
    assert renewed.tokens.bearer != first.tokens.bearer
    assert idp.asked.count("refresh_token") == 1
    run("whoami")
    assert idp.asked.count("refresh_token") == 1, "it is good for a while"

    idp.refusal = "invalid_grant"
    change(file, renew_ms=0)
    assert run("whoami")["principal"] == ALICE, "the token is good until its end"
    last = change(file, expires_ms=1)
    with pytest.raises(CredentialsExpired, match="headrace login --oidc idp"):
        renew(file, last.tokens.bearer)
    assert "log in again: headrace login --oidc idp" in run("whoami", code=ExitCode.FAILED), (
        "nothing is shown that is over"
    )
    idp.refusal = None

    run("logout")
    assert last.tokens.refresh is not None
    assert idp.revoked == [last.tokens.refresh.reveal()]
    assert not file.exists()
    run("topic", "list", code=ExitCode.FAILED)


def test_a_person_logs_in_by_a_code_and_may_do_nothing_more(idp: Provider, run: Run) -> None:
    idp.subject = "bob"
    made = run("login", "--oidc", "idp", "--device")
    assert made["principal"] == "Oidc:idp/bob"
    assert {"/device", "/token"} <= set(idp.asked)
    assert "orders" not in json.dumps(run("topic", "list"))
    run("topic", "create", "mine", code=ExitCode.FAILED)


def test_what_the_brokers_refuse_is_not_kept(idp: Provider, run: Run, browser: Browser, tmp_path: Path) -> None:
    """It has the provider's name, and a key of somebody else by the same id."""
    honest, idp.signer = idp.signer, SigningIssuer(idp.signer.issuer, ["RS256"])
    idp.signer.keys = {"PS256": SigningIssuer(algorithms=["PS256"]).keys["PS256"]}
    idp.kid = honest.keys["RS256"].kid
    try:
        run("login", "--oidc", "idp", code=ExitCode.FAILED)
    finally:
        idp.signer, idp.kid = honest, None
    assert not list(tmp_path.rglob("*.toml"))


def test_nobody_logs_in_at_a_provider_that_the_cluster_does_not_know(run: Run) -> None:
    assert "other" in run("login", "--oidc", "other", code=ExitCode.NOT_FOUND)
