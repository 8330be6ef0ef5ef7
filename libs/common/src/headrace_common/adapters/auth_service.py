"""
``Auth``: who has a password gets a session for all nodes of the cluster here, and who logs in elsewhere hears where.
Brokers and admin services have it; no controller is asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from typing_extensions import override

from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.access.logging_in import EXCHANGE_MS_MAX, Login, Proven
from headrace_common.core.access.sessions import session_claims, session_header
from headrace_common.core.access.slowing import FailedLogins
from headrace_common.core.access.users import SALTING_BYTES
from headrace_common.core.errors import MetadataUnavailable, NotFound, Unauthenticated
from headrace_common.core.image import EMPTY_IMAGE
from headrace_common.rpc.peers import peer_of
from headrace_common.runtime.admission import address_of, host_of_peer
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.entropy import new_nonce, new_secret
from headrace_common.runtime.logs import logger
from headrace_proto.v1 import auth_pb2 as pb
from headrace_proto.v1.auth_pb2_grpc import AuthServicer as GeneratedServicer

_RPC: Final = "Auth/Authenticate"
SIGNING_MS_MAX: Final = 5_000.0
"""How long a login waits until other nodes know the key of this one."""

log = logger(__name__)


class AuthServicer(GeneratedServicer):
    """One for all servers of a process, so that failed logins are counted together."""

    def __init__(self, client: ControllerClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._failures = FailedLogins()
        self._unknown = new_secret(SALTING_BYTES)

    @override
    async def Authenticate(
        self, requests: AsyncIterator[pb.AuthenticateRequest], context: Any
    ) -> AsyncIterator[pb.AuthenticateResponse]:
        """Two rounds, then a session."""
        auditing, host = self._client.access.auditing, host_of_peer(peer_of(context))
        try:
            async with limit_ms(EXCHANGE_MS_MAX):
                first = await _next(requests)
                address = address_of(peer_of(context))
                login = Login(first.mechanism, address, self._failures, new_nonce(), self._unknown)
                if self._client.image.revision == EMPTY_IMAGE.revision:
                    raise MetadataUnavailable("this node has no metadata yet, so it knows no users; try again soon")
                yield pb.AuthenticateResponse(message=login.first(first.message, *self._now()))
                proven = login.last((await _next(requests)).message, *self._now())
                session = await self._session(proven)
                auditing.logged_in(proven.user.name, host, _RPC)  # who has it may hang up
                yield session
        except TimeoutError:
            raise Unauthenticated(f"a login takes at most {EXCHANGE_MS_MAX // 1_000} s; begin it again") from None
        except Unauthenticated as error:
            auditing.login_failed(error, host, _RPC)
            raise
        log.info("a user logged in", extra={"user": proven.user.name, "address": address})

    @override
    async def DescribeSignOn(self, request: pb.DescribeSignOnRequest, context: Any) -> pb.DescribeSignOnResponse:
        if self._client.image.revision == EMPTY_IMAGE.revision:
            raise MetadataUnavailable("this node has no metadata yet, so it knows no issuers; try again soon")
        known = self._client.access.view.issuers.get(request.alias)
        if known is None or known.sign_on is None:
            raise NotFound(
                f"people log in at no issuer {ascii(request.alias)[:80]} here; the controllers' oidc_issuers_file has "
                "those there are, with client_id"
            )
        sign_on = known.sign_on
        return pb.DescribeSignOnResponse(
            iss=known.issuer.iss, client_id=sign_on.client_id, scopes=sign_on.scopes, token=sign_on.token
        )

    def _now(self) -> tuple[Any, float, float]:
        return self._client.access.view, self._clock.now_ms(), self._clock.monotonic_ms()

    async def _session(self, proven: Proven) -> pb.AuthenticateResponse:
        signer = await self._client.wait_for_session_key(SIGNING_MS_MAX)
        if signer is None:
            raise MetadataUnavailable(
                "other nodes do not know the key of this one yet, with which it signs sessions; try again, or elsewhere"
            )
        now_ms = self._clock.now_ms()
        header = session_header(self._client.key, signer.epoch)
        claims = session_claims(self._client.image.cluster_id, proven.user, proven.password.id, now_ms)
        return pb.AuthenticateResponse(
            message=proven.message,
            session_token=signer.key.sign_session(header, claims),
            lifetime_ms=max(0, claims["exp"] * 1_000 - round(now_ms)),
        )


async def _next(requests: AsyncIterator[pb.AuthenticateRequest]) -> pb.AuthenticateRequest:
    try:
        return await anext(requests)
    except StopAsyncIteration:
        raise Unauthenticated("the login was ended before it was done") from None
