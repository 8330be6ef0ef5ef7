"""
Verifications of ``/v1``: begun, looked at and deleted by a request each. The worker that leads has them; every worker
may be asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Final
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from headrace_connect_worker.core.verifications import Verification
from headrace_connect_worker.rpc import models
from headrace_connect_worker.rpc.answering import OURS, answer, no_body, status_and_text
from headrace_connect_worker.rpc.callers import current_caller
from headrace_connect_worker.rpc.forwarding import Forward, at_own_address
from headrace_connect_worker.rpc.kafka_shapes import Json
from headrace_connect_worker.rpc.models import NO_CONTENT, answers
from headrace_connect_worker.rpc.paths import ConnectorName, VerificationId
from headrace_connect_worker.rpc.workers import Worker

OF_CONNECTOR: Final = "/connectors/{name}/verify"
ONE: Final = f"{OF_CONNECTOR}/{{verification}}"


def verify_routes(worker: Worker) -> APIRouter:
    """The leader answers."""
    routes = APIRouter(prefix=OURS.rstrip("/"), tags=["ours"])

    @routes.post(
        OF_CONNECTOR,
        operation_id="verify",
        status_code=202,
        responses=answers(models.Verification, 202, "It has begun; `Location` is where it can be asked for"),
    )
    async def verify(request: Request, name: ConnectorName, wanted: models.Verify, forward: Forward = None) -> Response:
        """
        Begin to compare the target of a sink with its topics, range by range of offsets. The connector may run, unless
        it is to be repaired. One at a time of each connector.
        """

        async def here() -> Response:
            worker.views.find(name)
            begun = await worker.verifying.begin(name, wanted.topics, wanted.records, repair=wanted.repair)
            path = f"{request.scope['path']}/{begun.id}"
            return answer(_shape(begun, path), 202, {"location": at_own_address(request, path)})

        return await worker.leading.do(request, forward, here)

    @routes.get("/verifications", operation_id="listVerifications", responses=answers(models.Verifications))
    async def list_all(request: Request, forward: Forward = None) -> Response:
        """Verifications of all connectors: those that run, and the newest that have ended."""

        async def here() -> Response:
            found = list(worker.verifying.newest_first())
            seen = await _seen(one.connector for one in found)
            return answer(_list(one for one in found if one.connector in seen))

        async def of_leader(body: bytes) -> Response:
            found = orjson.loads(body)["verifications"]
            seen = await _seen(one["connector"] for one in found)
            return answer({"verifications": [one for one in found if one["connector"] in seen]})

        return await worker.leading.do(request, forward, here, select=of_leader)

    @routes.get(OF_CONNECTOR, operation_id="listVerificationsOf", responses=answers(models.Verifications))
    async def list_of(request: Request, name: ConnectorName, forward: Forward = None) -> Response:
        """The same of one connector, also of one that was deleted while it was verified."""

        async def here() -> Response:
            found = [one for one in worker.verifying.newest_first() if one.connector == name]
            if not found:
                worker.views.find(name)
            return answer(_list(found))

        return await worker.leading.do(request, forward, here)

    @routes.get(ONE, operation_id="getVerification", responses=answers(models.Verification))
    async def get(
        request: Request, name: ConnectorName, verification: VerificationId, forward: Forward = None
    ) -> Response:
        """How far a verification is, and its result or why it failed when it has ended. The newest are retained."""

        async def here() -> Response:
            return answer(_shape(worker.verifying.find(name, verification), request.scope["path"]))

        return await worker.leading.do(request, forward, here)

    @routes.delete(ONE, operation_id="deleteVerification", status_code=204, responses=NO_CONTENT)
    async def delete(
        request: Request, name: ConnectorName, verification: VerificationId, forward: Forward = None
    ) -> Response:
        """
        End a verification where it runs, and forget it. Nothing is compared or repaired any more when this is answered;
        what was repaired of a lake until then stays.
        """

        async def here() -> Response:
            await worker.verifying.delete(name, verification)
            return no_body(204)

        return await worker.leading.do(request, forward, here)

    return routes


async def _seen(connectors: Iterable[str]) -> set[str]:
    """Those that the caller may see."""
    return set(await current_caller().those_it_may("DESCRIBE", dict.fromkeys(connectors)))


def _shape(one: Verification, path: str) -> Json:
    return {**_common(one, path), "result": one.result}


def _list(found: Iterable[Verification]) -> Json:
    return {"verifications": [_listed(one) for one in found]}


def _listed(one: Verification) -> Json:
    result = one.result or {}
    path = f"{OURS}connectors/{quote(one.connector, safe='')}/verify/{one.id}"
    return {**_common(one, path), **{name: result.get(name) for name in ("agrees", "wrong", "repaired")}}


def _common(one: Verification, path: str) -> Json:
    state = "running" if one.is_running else "completed" if one.error is None else "failed"
    error = None
    if one.error is not None:
        status, detail = status_and_text(one.error)
        error = {"status": status, "detail": detail}
    return {
        "id": one.id,
        "at": one.began_ms,
        "path": path,
        "connector": one.connector,
        "repair": one.repair,
        "state": state,
        "progress": asdict(one.progress),
        "error": error,
    }
