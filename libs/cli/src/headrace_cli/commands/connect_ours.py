"""``headrace connect snapshot``, ``events``: what workers can do beyond Kafka Connect's."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace_cli.output import Output, moment_for_people
from headrace_cli.session import Session
from headrace_cli.workers import Name, Url, Workers


def snapshot(
    session: Session,
    name: Name,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="As public.orders")],
    *,
    url: Url = None,
) -> None:
    """
    Have tables of a source be read again, all rows that are there, beside their changes. It may run meanwhile.

    A table that is not captured yet is read when table.include.list names it.
    """
    found = Workers(url, session.cluster).post("v1", "connectors", name, "snapshot", body={"tables": tables})
    session.report({"name": name, **found}, f"{name} reads again, when it runs: {', '.join(found['tables'])}")


def events(
    session: Session,
    name: Name,
    *,
    limit: Annotated[int, typer.Option(min=1, max=100, help="The newest ones")] = 50,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only these: drift, snapshot, failed, …")] = None,
    url: Url = None,
) -> None:
    """Show what has happened to a connector: tables that changed, rows that were read, failures. The newest is last."""
    found = Workers(url, session.cluster).get("v1", "connectors", name, "events", limit=limit, kind=kind)["events"]
    rows = [{**one, "at": moment_for_people(one["at"])} for one in found]
    shown = rows if session.output is Output.TABLE else found
    session.show_rows("events", shown, "at", "kind", "task", "text", empty="nothing has happened that is still known")
