"""Decides what becomes of parameters of a query that nothing reads: a ``dryRun`` that means ``dry_run``."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query

from headrace_common.core.errors import Rejected


async def refuse_unknown_query(request: Request) -> None:
    """
    A dependency of routes.

    Raises:
        Rejected: there is a parameter that the route does not have.
    """
    fields = get_flat_params(request.scope["route"].dependant)
    known = {field.alias for field in fields if isinstance(field.field_info, Query)}
    unknown = sorted(request.query_params.keys() - known)
    if unknown:
        takes = f"takes {', '.join(sorted(known))}" if known else "takes none"
        raise Rejected(f"there is no query parameter {unknown[0][:80]!r}; this operation {takes}")
