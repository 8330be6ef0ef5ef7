"""Issuers whose tokens a local cluster takes: the controllers read their keys from files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import Key
from libs.common.tests.kit import api_server
from libs.common.tests.kit.issuer import SigningIssuer, jwk, key_set
from tests.integration.running_with import running_with

KEYS = "keys.json"
"""In the directory of an issuer."""
ACCOUNT = "headrace_common.runtime.kubernetes:ACCOUNT"


def publish(directory: Path, *keys: Key) -> None:
    """What controllers find there from now on; none: nothing, as of an issuer that is away."""
    file = directory / KEYS
    if not keys:
        file.unlink()
        return
    partial = file.with_suffix(".partial")
    partial.write_bytes(key_set(*map(jwk, keys)))
    partial.replace(file)


@contextmanager
def trusting(idp: SigningIssuer, directory: Path) -> Iterator[None]:
    """A cluster that is started in the block takes its tokens."""
    keys, issuers, issuer = directory / KEYS, directory / "issuers.json", idp.issuer
    publish(directory, *idp.keys.values())
    known = {"alias": issuer.alias, "iss": issuer.iss, "audiences": sorted(issuer.audiences), "jwks": keys.as_uri()}
    issuers.write_text(json.dumps([known]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CONTROLLER_OIDC_ISSUERS_FILE", str(issuers))
        yield


@contextmanager
def trusting_accounts(
    accounts: SigningIssuer, directory: Path, constants: Mapping[str, object] | None = None
) -> Iterator[tuple[str, ...]]:
    """
    The same of an API server of Kubernetes and the tokens of its accounts; what controllers are to be started by.

    Args:
        constants: that these controllers have other; see ``running_with``.
    """
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
        yield running_with({ACCOUNT: account, **(constants or {})})
