"""Issuers whose tokens a local cluster takes: the controllers read their keys from files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit import api_server
from libs.common.tests.kit.issuer import SigningIssuer, jwk, key_set


@contextmanager
def trusting(idp: SigningIssuer, directory: Path) -> Iterator[None]:
    """A cluster that is started in the block takes its tokens."""
    keys, issuers, issuer = directory / "keys.json", directory / "issuers.json", idp.issuer
    keys.write_bytes(key_set(*map(jwk, idp.keys.values())))
    known = {"alias": issuer.alias, "iss": issuer.iss, "audiences": sorted(issuer.audiences), "jwks": keys.as_uri()}
    issuers.write_text(json.dumps([known]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CONTROLLER_OIDC_ISSUERS_FILE", str(issuers))
        yield


@contextmanager
def trusting_accounts(accounts: SigningIssuer, directory: Path) -> Iterator[tuple[str, ...]]:
    """The same of an API server of Kubernetes and the tokens of its accounts; what controllers are to be started by."""
    files = api_server.make_certificates(directory / "api")
    account = api_server.make_account(directory / "account", files)
    keys = json.loads(key_set(*map(jwk, accounts.keys.values())))

    def answer(method: str, path: str, authorization: str | None, body: Any) -> tuple[int, Any]:
        assert (method, authorization, body) == ("GET", f"Bearer {api_server.BEARER}", None)
        return 200, keys if path in api_server.TYPES else {"issuer": accounts.issuer.iss}

    with api_server.serving(answer, files) as env, pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        patch.setenv("HEADRACE_CONTROLLER_KUBERNETES_AUDIENCE", min(accounts.issuer.audiences))
        yield sys.executable, "-P", str(Path(__file__).with_name("as_pod.py")), str(account)
