"""
What each route of REST asks of its caller, where the cluster is closed. A test compares it with the application's
routes; a route that is not in it is for nobody.

Who makes a connector or configures it reads and writes records as the workers may, so CREATE and ALTER_CONFIGS are
what previews and validations ask for too: their configuration is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from headrace.ticket_types import AccessQuestion, AnnouncedChange
from headrace_common.core.errors import ClusterAuthorizationFailed
from headrace_connect_worker.rpc.callers import CONNECTOR, Caller, on_connector
from headrace_connect_worker.rpc.paths import decode

_ANY: Final = ""


@dataclass(frozen=True, slots=True)
class Row:
    """What a route asks for; with nothing in it, a credential alone."""

    operations: tuple[str, ...] = ()
    """One of them suffices."""
    type: str = CONNECTOR
    parameter: str = _ANY
    """Of the path, which names the resource; without one any resource of the type will do."""
    changes: bool = False
    """Who passes changes something, which is in the cluster's audit first."""


OPEN: Final = Row()
"""Nobody is asked for anything, and nothing is told but whether the worker is well."""
ANYBODY: Final = Row()
"""Who shows a credential. What the answer lists is what the caller may see."""


def _one(*operations: str) -> Row:
    """On the connector of the path."""
    return Row(operations, parameter="name")


def _changes(*operations: str) -> Row:
    """The same, of what changes something."""
    return Row(operations, parameter="name", changes=True)


_SEES: Final = _one("DESCRIBE")
_READS: Final = _one("DESCRIBE_CONFIGS")
_RUNS: Final = _changes("ALTER")
_VERIFIES: Final = _one("ALTER")
_CONFIGURES: Final = ("CREATE", "ALTER_CONFIGS")
_SEES_ANY: Final = Row(("DESCRIBE",))
_CONFIGURES_ANY: Final = Row(_CONFIGURES)

ROUTES: Final[Mapping[str, Row]] = {
    "GET /health": OPEN,
    "GET /": _SEES_ANY,
    "GET /openapi.json": ANYBODY,
    "GET /connectors": ANYBODY,
    "POST /connectors": Row(("CREATE",)),  # and of the name in the body, with which it is in the audit
    "GET /connectors/{name}": _READS,
    "DELETE /connectors/{name}": _changes("DELETE"),
    "GET /connectors/{name}/config": _READS,
    "PUT /connectors/{name}/config": _changes(*_CONFIGURES),  # which of them depends on whether it is there
    "PATCH /connectors/{name}/config": _changes("ALTER_CONFIGS"),
    "GET /connectors/{name}/tasks": _READS,
    "GET /connectors/{name}/tasks-config": _READS,
    "GET /connectors/{name}/status": _SEES,
    "GET /connectors/{name}/tasks/{task}/status": _SEES,
    "GET /connectors/{name}/topics": _SEES,
    "PUT /connectors/{name}/topics/reset": _RUNS,
    "PUT /connectors/{name}/pause": _RUNS,
    "PUT /connectors/{name}/resume": _RUNS,
    "PUT /connectors/{name}/stop": _RUNS,
    "POST /connectors/{name}/restart": _RUNS,
    "POST /connectors/{name}/tasks/{task}/restart": _RUNS,
    "GET /connectors/{name}/offsets": _SEES,
    "PATCH /connectors/{name}/offsets": _RUNS,
    "DELETE /connectors/{name}/offsets": _RUNS,
    "GET /connector-plugins": _SEES_ANY,
    "GET /connector-plugins/{plugin}/config": _SEES_ANY,
    "PUT /connector-plugins/{plugin}/config/validate": _CONFIGURES_ANY,
    "GET /admin/loggers": Row(("DESCRIBE",), "CLUSTER"),
    "GET /admin/loggers/{logger}": Row(("DESCRIBE",), "CLUSTER"),
    "PUT /admin/loggers/{logger}": Row(("ALTER_CONFIGS",), "CLUSTER", changes=True),
    "POST /v1/preview": _CONFIGURES_ANY,
    "POST /v1/plan": _CONFIGURES_ANY,  # and of the name in the body
    "POST /v1/connectors/{name}/snapshot": _RUNS,
    "GET /v1/connectors/{name}/events": _SEES,
    "POST /v1/connectors/{name}/verify": _VERIFIES,
    "GET /v1/connectors/{name}/verify": _SEES,
    "GET /v1/connectors/{name}/verify/{verification}": _SEES,
    "DELETE /v1/connectors/{name}/verify/{verification}": _VERIFIES,
    "GET /v1/verifications": ANYBODY,
}
"""By verb and path, as the application has them."""


class RouteRules:
    """
    What is asked of a request to one of ``routes``, before it is routed; where no route is, a credential.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.routes = routes

    def find(self, scope: Scope) -> tuple[Row | None, Mapping[str, str]]:
        """
        The row, and what the path names, percent-encoded. None: the route has none.

        Args:
            scope: its path is as it came, as routes are found by.
        """
        asked = dict(scope, method="GET") if scope["method"] == "HEAD" else scope
        for route in self.routes:
            match, more = route.matches(asked)
            if match is Match.FULL:
                return ROUTES.get(f"{asked['method']} {getattr(route, 'path', '')}"), more.get("path_params", {})
        return ANYBODY, {}


async def check_row(row: Row | None, given: Mapping[str, str], caller: Caller, change: AnnouncedChange) -> None:
    """
    Let ``caller`` pass, whose path names what is ``given``; ``change`` is in the audit where the row says so.

    Raises:
        AuditUnavailable: it cannot be.
        Denied: it may not, or nobody may.
        BadCommand: what the path names is no text.
        Unauthenticated, CoordinatorNotAvailable, Overloaded: as ``Callers``.
    """
    if row is None:
        raise ClusterAuthorizationFailed("this route is in no table of rights, so nobody may")
    if row.type != CONNECTOR:
        questions = [AccessQuestion(operation, row.type) for operation in row.operations]
    elif not row.parameter:
        questions = [AccessQuestion(operation, CONNECTOR) for operation in row.operations]
    else:
        name = decode(given[row.parameter])
        questions = [on_connector(operation, name) for operation in row.operations]
    await caller.check_any(*questions, change=change if row.changes else None)
