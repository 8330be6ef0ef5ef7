"""
The web hook: answers a request when its records are committed. An ASGI application; the server around it bounds
connections, heads and the time that bodies take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace_common.http.foreign_pages import Refusal
from headrace_common.http.json_gate import answer_and_drain
from headrace_common.http.problems import problem_of_refusal
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.tasks import first_of
from headrace_common.runtime.traceparent import HEADER as TRACE
from headrace_common.runtime.traceparent import TraceParent, to_header
from headrace_connect.connectors.http.bodies import BadBody, parse
from headrace_connect.connectors.http.intake import Arrival, Intake, Outcome, Room
from headrace_connect.connectors.http.settings import SourceSettings
from headrace_connect.connectors.http.signatures import Verifier
from headrace_connect.connectors.http.window import digest_of

ID_CHARS_MAX: Final = 1_024
_LATER: Final = "Send it again after a while."
_AGAIN: Final = "Send it again, with the same id: it may have been written."


class _Refused(Exception):
    """The request is answered so, and nothing of it is written."""

    def __init__(self, status: int, detail: str, step: str, *, drains: bool = False) -> None:
        super().__init__(detail)
        self.refusal = Refusal(status, detail, step)
        self.drains = drains
        """Whether its body is still to come."""


class Hook:
    """Of one instance of the source."""

    def __init__(
        self, settings: SourceSettings, room: Room, intakes: Sequence[Intake], clock: Clock, *, traces: bool = False
    ) -> None:
        """
        Args:
            intakes: each has the ids of its share.
            traces: whether records carry on the trace of their request.
        """
        self._traces = traces
        self._settings = settings
        self._room = room
        self._intakes = intakes
        self._clock = clock
        self._verifier = (
            Verifier(settings.signature_form, settings.signature_algorithm, settings.secrets)
            if settings.secrets
            else None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        try:
            await self._handle(scope, receive, send)
        except ClientDisconnect:
            return
        except _Refused as refused:
            response = problem_of_refusal(refused.refusal, scope["path"])
            if refused.refusal.status in (429, 503):
                response.headers["retry-after"] = str(self._settings.retry_after_s)
            if refused.refusal.status == 405:
                response.headers["allow"] = "POST"
            if refused.drains:
                response.headers["connection"] = "close"
                await answer_and_drain(response, scope, receive, send)
            else:
                await response(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._check_head(scope["method"], scope["path"], headers)
        if not self._room.enter():
            raise self._no_room("requests")
        arrival, size = None, 0
        try:
            body = bytearray()
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientDisconnect
                chunk, more = message.get("body", b""), message.get("more_body", False)
                if len(body) + len(chunk) > self._settings.body_bytes_max:
                    raise self._too_large()
                if not self._room.grow(len(chunk)):
                    raise self._no_room("bytes")
                size += len(chunk)
                body += chunk
            arrival = self._arrival(headers, bytes(body))
        finally:
            if arrival is None:
                self._room.leave(size)
        await self._wait(arrival, receive)
        await Response(status_code=202)(scope, receive, send)

    def _check_head(self, method: str, path: str, headers: Headers) -> None:
        """
        Raises:
            _Refused: nothing of the body has to be read for that.
        """
        settings = self._settings
        if path != settings.route:
            raise _Refused(404, "there is nothing at this path", "Use the path of the setting route.", drains=True)
        if method != "POST":
            raise _Refused(405, f"{method[:20]} is not answered here", "Use POST.", drains=True)
        if self._verifier is None and "origin" in headers:
            step = "Set signature.secret where browsers may send."
            raise _Refused(403, "a page of a browser may not write here", step, drains=True)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise _Refused(415, "the body is compressed", "Send it as it is.", drains=True)
        if self._verifier is not None and not self._verifier.needs_body:
            self._check_signature(headers, b"", drains=True)
        if len(headers.get(settings.id_header, "") if settings.id_header else "") > ID_CHARS_MAX:
            raise _Refused(400, f"the id is longer than {ID_CHARS_MAX} characters", "Send a shorter one.", drains=True)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > settings.body_bytes_max:
            raise self._too_large()

    def _check_signature(self, headers: Headers, body: bytes, *, drains: bool = False) -> None:
        name = self._settings.signature_header
        if self._verifier is not None and not self._verifier.accepts(headers.get(name), body):
            what = "is not right" if name in headers else "is missing"
            raise _Refused(401, f"the header {name} {what}", "Sign the body with the secret of both.", drains=drains)

    def _arrival(self, headers: Headers, body: bytes) -> Arrival:
        settings = self._settings
        if self._verifier is not None and self._verifier.needs_body:
            self._check_signature(headers, body)
        try:
            parsed = parse(body, settings.format, settings.batch, settings.body_bytes_max)
        except BadBody as error:
            raise _Refused(400, str(error), "Correct the body.") from None
        id_ = headers.get(settings.id_header, "") if settings.id_header else ""
        kept = [(name, value.encode("latin-1")) for name in settings.headers_include for value in headers.getlist(name)]
        if self._traces and TRACE not in settings.headers_include:
            parent = TraceParent.parse(headers.get(TRACE, ""))
            kept += [] if parent is None else [to_header(parent)]
        digest = digest_of(id_) if id_ else None
        return Arrival(parsed, len(body), self._clock.now_ms(), kept, digest)

    async def _wait(self, arrival: Arrival, receive: Receive) -> None:
        """
        Until its records are committed, or those of the request that it repeats.

        Raises:
            _Refused: they are not, as far as one knows.
        """
        share = int.from_bytes(arrival.digest[:4]) if arrival.digest is not None else 0
        intake = self._intakes[share % len(self._intakes)]
        first = intake.offer(arrival)
        if first is None:
            return
        first.waiters += 1
        try:
            async with limit_ms(self._settings.answer_timeout_ms):
                await first_of(first.done.wait(), _left(receive))
        except TimeoutError:
            pass
        finally:
            first.waiters -= 1
            withdrawn = intake.withdraw(first)
        if first.outcome is Outcome.TAKEN:
            return
        if withdrawn:
            raise _Refused(503, "nobody has written it in time, and nobody will", _LATER)
        raise _Refused(503, "it is not known whether it is written", _AGAIN)

    def _no_room(self, what: str) -> _Refused:
        if self._room.closed:
            return _Refused(503, "this instance ends", _LATER, drains=True)
        return _Refused(429, f"there are too many {what} that wait to be written", _LATER, drains=True)

    def _too_large(self) -> _Refused:
        step = "Send less at once, or raise body.bytes.max."
        return _Refused(413, f"the body is larger than {self._settings.body_bytes_max} bytes", step, drains=True)


async def _left(receive: Receive) -> None:
    """Until the client has left."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
