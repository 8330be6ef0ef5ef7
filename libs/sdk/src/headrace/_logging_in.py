"""Logs a user in at a broker, by SCRAM: what a client shows when it has a password, which it never sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace._credentials import Granted, LogIn
from headrace._sign_on import SignOn
from headrace_common.core.errors import (
    Denied,
    HeadraceError,
    InvalidConfig,
    NetworkFailed,
    NotFound,
    Rejected,
    Unauthenticated,
)
from headrace_common.core.secret import Secret
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.library import library
from headrace_common.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from headrace_common.core.access.scram import ClientExchange

LOGIN_S: Final = 10.0
NO_LIBRARY: Final = "logging in with a password needs the library scramp: pip install 'headrace[login]'"


def new_exchange(user: str, password: Secret, mechanism: str) -> ClientExchange:
    """
    A client's side of a login.

    Raises:
        InvalidConfig: its library is not installed.
        Rejected: there can be no such user or password.
    """
    from headrace_common.core.access.scram import ClientExchange
    from headrace_common.runtime.entropy import new_nonce

    try:
        return ClientExchange(mechanism, user, password.reveal(), new_nonce())
    except ImportError:
        raise InvalidConfig(NO_LIBRARY) from None


async def log_in(address: str, security: Security, user: str, password: Secret, mechanism: str) -> Granted:
    """
    A session of ``user``, from the broker at ``address``.

    Raises:
        Unauthenticated: the name or the password is wrong, or cannot be; or this is no broker of the cluster.
        HeadraceError: nothing is known; another broker may be asked.
    """
    from headrace_proto.v1 import auth_pb2 as pb
    from headrace_proto.v1.auth_pb2_grpc import AuthStub

    try:
        exchange = await run_in_thread(lambda: new_exchange(user, password, mechanism))
    except Rejected as error:
        raise Unauthenticated(str(error)) from error  # no other broker would help
    async with open_channel(address, security, own_connection=True) as channel:
        with CallTo(f"the broker at {address}"):
            call: Any = AuthStub(channel).Authenticate(timeout=LOGIN_S)
            await call.write(pb.AuthenticateRequest(mechanism=mechanism, message=exchange.first()))
            challenge = await _read(call)
            last = await run_in_thread(lambda: exchange.last(challenge.message))
            await call.write(pb.AuthenticateRequest(message=last))
            answer = await _read(call)
            call.cancel()
    exchange.check(answer.message)
    return Granted(Secret(answer.session_token), answer.lifetime_ms)


async def describe_sign_on(addresses: Sequence[str], security: Security, alias: str) -> SignOn:
    """
    How a person logs in at an issuer, as the first of these brokers that answers says.

    Raises:
        NotFound: people log in at no such issuer in this cluster.
        HeadraceError: no broker answers.
    """
    from headrace_proto.v1 import auth_pb2 as pb
    from headrace_proto.v1.auth_pb2_grpc import AuthStub

    failed: HeadraceError = NetworkFailed("no broker is named")
    for address in addresses:
        try:
            async with open_channel(address, security, own_connection=True) as channel:
                with CallTo(f"the broker at {address}"):
                    stub: Any = AuthStub(channel)
                    told = await stub.DescribeSignOn(pb.DescribeSignOnRequest(alias=alias), timeout=LOGIN_S)
        except NotFound:
            raise
        except HeadraceError as error:
            failed = error
        else:
            return SignOn(alias, told.iss, told.client_id, tuple(told.scopes), told.token)
    raise failed


def log_in_at_any(addresses: Sequence[str], security: Security) -> LogIn:
    """Logs in at the first of these brokers that answers."""

    async def at_any(user: str, password: Secret, mechanism: str) -> Granted:
        failed: HeadraceError = NetworkFailed("no broker is named")
        for address in addresses:
            try:
                return await log_in(address, security, user, password, mechanism)
            except HeadraceError as error:
                failed = error
                if isinstance(error, Unauthenticated | Denied):
                    raise
        raise failed

    return at_any


async def _read(call: Any) -> Any:
    answer = await call.read()
    if answer is library().aio.EOF:
        raise NetworkFailed("the broker ended the login")
    return answer
