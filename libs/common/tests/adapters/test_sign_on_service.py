"""What anybody hears of an issuer that people log in at: what is public, of the one that is named."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.issuer import IDP_ISSUER, SigningIssuer

from headrace_common.adapters.auth_service import AuthServicer
from headrace_common.core.access.issuers import IssuerKeys, SignOn
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.errors import MetadataUnavailable, NotFound
from headrace_common.core.image import EMPTY_IMAGE
from headrace_proto.v1 import auth_pb2 as pb

IDP = replace(SigningIssuer().known, sign_on=SignOn("cli", ("openid", "groups")))


def servicer(*issuers: IssuerKeys, revision: int = 1) -> AuthServicer:
    view = View(Mode.CLOSED, issuers={one.issuer.alias: one for one in issuers})
    client: Any = SimpleNamespace(image=replace(EMPTY_IMAGE, revision=revision), access=SimpleNamespace(view=view))
    return AuthServicer(client, FakeClock())


async def ask(at: AuthServicer, alias: str) -> pb.DescribeSignOnResponse:
    return await at.DescribeSignOn(pb.DescribeSignOnRequest(alias=alias), None)


async def test_who_names_an_issuer_hears_how_to_log_in_there() -> None:
    told = await ask(servicer(IDP), "idp")
    assert told == pb.DescribeSignOnResponse(
        iss=IDP_ISSUER.iss, client_id="cli", scopes=["openid", "groups"], token="id_token"
    )


@pytest.mark.parametrize("alias", ["", "other", "IDP", "a" * 10_000, "\x1b[2J"])
async def test_who_names_another_hears_of_none(alias: str) -> None:
    for at in (servicer(IDP), servicer(), servicer(replace(IDP, sign_on=None))):
        with pytest.raises(NotFound) as refused:
            await ask(at, alias)
        assert "idp" not in str(refused.value).replace("oidc", "")
        assert len(str(refused.value)) < 300
        assert str(refused.value).isprintable()
    with pytest.raises(NotFound):
        await ask(servicer(replace(IDP, sign_on=None)), "idp")


async def test_a_node_that_knows_no_cluster_yet_says_so() -> None:
    with pytest.raises(MetadataUnavailable):
        await ask(servicer(IDP, revision=EMPTY_IMAGE.revision), "idp")
