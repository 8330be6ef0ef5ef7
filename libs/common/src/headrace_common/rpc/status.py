"""
Decides how a typed error travels as a gRPC status, and back.

The status code is for proxies and other tools; Headrace's own sides read the ``headrace.v1.ErrorDetail`` inside the
``google.rpc.Status`` that goes along. Called by the error interceptor and by every client of a service.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from headrace_common.core.errors import (
    Denied,
    ErrorCode,
    HeadraceError,
    Internal,
    Kind,
    NetworkFailed,
    Overloaded,
    RecordTooLarge,
    Rejected,
    RequestTimedOut,
    TlsFailed,
    Unauthenticated,
    UnsupportedVersion,
    error_for,
)
from headrace_common.rpc.handshakes import explain_handshake
from headrace_common.rpc.library import library
from headrace_proto.v1 import errors_pb2

STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
MESSAGE_BYTES_MAX: Final = 4096
"""Longest text of an error on the wire, in bytes of UTF-8."""

_STATUS_TEXT_BYTES_MAX: Final = 1024

_STATUS_OF_KIND: Final = {
    Kind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Kind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Kind.DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Kind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Kind.CONFLICT: grpc.StatusCode.ABORTED,
    Kind.MOVED: grpc.StatusCode.FAILED_PRECONDITION,
    Kind.FENCED: grpc.StatusCode.FAILED_PRECONDITION,
    Kind.BUSY: grpc.StatusCode.UNAVAILABLE,
    Kind.UNKNOWN: grpc.StatusCode.DEADLINE_EXCEEDED,
    Kind.DAMAGED: grpc.StatusCode.DATA_LOSS,
    Kind.INTERNAL: grpc.StatusCode.INTERNAL,
}
_STATUS_OF_CODE: Final = {
    ErrorCode.OFFSET_OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.TOPIC_ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.UNSUPPORTED_VERSION: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.NETWORK_EXCEPTION: grpc.StatusCode.UNAVAILABLE,
}

NOT_TAKEN: Final = "the server took no more calls on this connection"
"""A server that stops, or has new certificates, drops what arrived and went to no handler. Nothing was done."""

_DROPPED: Final = "CANCELLED"
"""What gRPC says of a call that ended without any word of a handler. Handlers of ours always say one (``interceptor``),
and who cancels a call on this side has other texts."""

_CONNECTION_BROKE: Final = ("RST_STREAM", "Stream removed", "GOAWAY", "Socket closed", "Internal error from Core")
"""What gRPC says of it; the last where a write meets a stream that the server has just ended, whose status is lost."""


def status_code_of(error: HeadraceError) -> grpc.StatusCode:
    """The gRPC status under which ``error`` travels."""
    return _STATUS_OF_CODE.get(error.code) or _STATUS_OF_KIND[error.kind]


def detail_of(error: HeadraceError) -> errors_pb2.ErrorDetail:
    """The error as a message, its text cut to what the wire allows."""
    return errors_pb2.ErrorDetail(
        code=errors_pb2.ErrorCode.ValueType(error.code),
        message=_cut(str(error), MESSAGE_BYTES_MAX),
        endpoint_hint=error.endpoint_hint,
    )


def error_of(detail: errors_pb2.ErrorDetail) -> HeadraceError:
    """The typed error of a detail whose code is not NONE."""
    hint = detail.endpoint_hint if detail.HasField("endpoint_hint") else None
    if detail.code == errors_pb2.NONE:
        return Internal(f"an error came without its code: {detail.message}")
    return error_for(int(detail.code), detail.message, endpoint_hint=hint)


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: HeadraceError) -> NoReturn:
    """End the call with ``error``; never returns."""
    code = status_code_of(error)
    number, _ = code.value
    text = _cut(str(error), _STATUS_TEXT_BYTES_MAX)
    status = errors_pb2.CallStatus(code=number, message=text)
    status.details.add().Pack(detail_of(error))
    await context.abort(code, text, ((STATUS_DETAILS_KEY, status.SerializeToString()),))
    raise AssertionError("abort raises")


def error_from_rpc(error: grpc.RpcError) -> HeadraceError:
    """
    The typed error of a failed call, sync or asyncio.

    Without details of ours the status decides: the connection or the deadline failed, and whether the request was
    carried out is not known.
    """
    detail = _detail_in(error)
    if detail is not None:
        return error_of(detail)
    code, text = _code_and_text(error)
    match code:
        case grpc.StatusCode.CANCELLED if text == _DROPPED:
            return NetworkFailed(f"the connection failed: {NOT_TAKEN}")
        case grpc.StatusCode.UNAVAILABLE if (why := explain_handshake(text)) is not None:
            return TlsFailed(f"the connection failed: {why} ({text})")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED | grpc.StatusCode.ABORTED:
            return NetworkFailed(f"the connection failed: {text}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return RequestTimedOut(f"no answer came in time: {text}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return UnsupportedVersion(f"the server does not know this operation; is it older, or another one? ({text})")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in text:
            return RecordTooLarge(f"the message is larger than a connection takes: {text}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(f"the server takes no more calls now; wait and try again ({text})")
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(f"the server refused the call: {text}")
        case grpc.StatusCode.PERMISSION_DENIED:
            return Denied(f"the server refused the call: {text}")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return Rejected(f"the server refused the call: {text}")
    if any(sign in text for sign in _CONNECTION_BROKE):
        return NetworkFailed(f"the connection broke: {text}")
    return Internal(f"the call failed with {code.name}: {text}")


def _code_and_text(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    call = _call(error)
    if call is None:
        return grpc.StatusCode.UNKNOWN, str(error)
    return grpc.StatusCode[call.code().name], call.details() or ""


def _call(error: grpc.RpcError) -> grpc.Call | grpc.aio.AioRpcError | None:
    mine = library()
    return error if isinstance(error, (mine.Call, mine.aio.AioRpcError)) else None


def _detail_in(error: grpc.RpcError) -> errors_pb2.ErrorDetail | None:
    call = _call(error)
    if call is None:
        return None
    for key, value in call.trailing_metadata() or ():
        if key != STATUS_DETAILS_KEY or isinstance(value, str):
            continue
        try:
            status = errors_pb2.CallStatus.FromString(value)
            for packed in status.details:
                detail = errors_pb2.ErrorDetail()
                if packed.Unpack(detail):
                    return detail
        except DecodeError:
            return None
    return None


def _cut(text: str, bytes_max: int) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= bytes_max:
        return raw.decode()
    return raw[: bytes_max - 3].decode("utf-8", "ignore") + "..."
