"""Issuers whose tokens a local cluster takes: the controllers read their keys from files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
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
