"""
Decides what a broken call means to whoever awaits it: a typed error, in each of the ways in which ``grpc.aio`` tells.

Closing a channel cancels the calls under way on it, and their awaiters get ``CancelledError`` though nobody cancelled
*them*: a task that lets it through ends without a word. A call on a channel that is closed already is a misuse to
gRPC, and writing to one that has ended an invalid state. Processes that keep channels by address close them when a node
has moved, so to them all of this is the network. Used by every adapter and by the SDK around what awaits gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError

from headrace_common.core.errors import HeadraceError, NetworkFailed, UnknownOutcome
from headrace_common.rpc.library import library
from headrace_common.rpc.status import NOT_TAKEN, error_from_rpc

Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)

_NOT_SENT: Final = "the request was not sent"
_UNKNOWN_NAME: Final = ("errors resolving", "dns resolution failed", "lookup failed", "lookup error")
_REFUSED: Final = "connection refused"
_NEVER_SENT: Final = (_NOT_SENT, NOT_TAKEN, "failed to connect", *_UNKNOWN_NAME)
"""What we and gRPC say when there was nobody to send a request to, or nobody took it."""


class Method(Protocol[Q_contra, A_co]):
    """One RPC of a stub: ``lambda stub: stub.Heartbeat`` names it."""

    def __call__(self, request: Q_contra, /, *, timeout: float) -> Awaitable[A_co]:
        """Start the call; ``timeout`` is in seconds."""
        ...


class CallTo:
    """
    ``with CallTo(at):`` stands around calls that are opened and awaited in its block; ``at`` names the node in errors.

    For one unary call, or a whole loop over a stream: it costs once for each block. The task's own cancellation goes
    through as it is.

    Raises:
        HeadraceError: what the other side said; or ``NetworkFailed``: the connection broke or was closed, and whether
            the request was carried out is unknown.
    """

    __slots__ = ("_at",)

    def __init__(self, at: object) -> None:
        self._at = at

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        grpc = library()
        if isinstance(error, grpc.RpcError):
            del trace  # it holds the call, and so its channel, for as long as somebody keeps the error
            raise error_from_rpc(error) from error.with_traceback(None)
        if isinstance(error, grpc.aio.UsageError):
            raise NetworkFailed(f"the connection to {self._at} is gone: {_NOT_SENT} ({error})") from error
        if isinstance(error, (grpc.aio.BaseError, asyncio.InvalidStateError)):
            raise NetworkFailed(f"the connection to {self._at} is gone; the outcome is unknown ({error})") from error
        if isinstance(error, DecodeError):
            raise NetworkFailed(f"{self._at} answered with what is no answer: {error}") from error
        if isinstance(error, asyncio.CancelledError) and not _cancelled():
            raise NetworkFailed(
                f"the connection to {self._at} was closed: that node has moved or is gone; the outcome is unknown"
            ) from None


def nobody_there(error: HeadraceError) -> bool:
    """Whether the error of a call says that its address refuses connections, or is a name that is not known now."""
    text = str(error).lower()
    return isinstance(error, NetworkFailed) and any(sign in text for sign in (_REFUSED, *_UNKNOWN_NAME))


def never_sent(error: HeadraceError) -> bool:
    """Whether the error of a call says that nobody got its request, so that it may go out again whatever it asks."""
    text = str(error).lower()
    return isinstance(error, UnknownOutcome) and any(sign in text for sign in _NEVER_SENT)


def name_unknown(error: BaseException) -> bool:
    """
    Whether a call failed because the name of the other side led nowhere just then.

    Its channel is to be given up then, so that the next call asks for the name again: gRPC itself asks after 1 s, 1.6 s
    and so on, up to two minutes, while a name that is not known is what every pod has for its first seconds.
    """
    text = str(error.details() if isinstance(error, library().aio.AioRpcError) else error).lower()
    return any(sign in text for sign in _UNKNOWN_NAME)


def _cancelled() -> bool:
    """Whether somebody wants the running task to end."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
