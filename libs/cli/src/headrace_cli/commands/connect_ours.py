"""``headrace connect verify``, ``snapshot``, ``events``: what workers can do beyond Kafka Connect's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from headrace_cli.exits import ExitCode
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session
from headrace_cli.workers import Name, Url, Workers


def verify(
    session: Session,
    name: Name,
    *,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Of those that it reads; else all")
    ] = None,
    records: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="The newest of each partition that the target has, as offsets")
    ] = 100_000,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write what is missing or different; the connector must be stopped")
    ] = False,
    all_ranges: Annotated[bool, typer.Option("--all", help="Show ranges that agree too")] = False,
    url: Url = None,
) -> None:
    """
    Compare the target of a sink with its topics, range by range of offsets. The connector may run.

    Ends with 1 where rows are missing, different or unexpected, and were not repaired.
    """
    body = {"topics": topics or [], "records": records, "repair": repair}
    found = Workers(url).post("v1", "connectors", name, "verify", body=body)
    if session.output is not Output.TABLE:
        session.show(found)
    else:
        wrong = ("missing", "different", "unexpected")
        rows = [
            {**one, "partition": f"{one['topic']}-{one['partition']}", "examples": ", ".join(map(str, one["examples"]))}
            for one in found["ranges"]
            if all_ranges or any(one[what] for what in wrong)
        ]
        if rows:
            session.show(rows, "partition", "first", "end", "records", "refused", *wrong, "repaired", "examples")
        compared = format_count(sum(one["records"] for one in found["ranges"]), "record")
        if not found["ranges"]:
            session.say(f"{name}: its target has no position of its topics yet, so there is nothing to compare")
            return
        said = "they agree" if not found["wrong"] else f"{found['wrong']} wrong, {found['repaired']} repaired"
        session.say(f"{name}: {compared} compared with rows of the target: {said}")
    if not found["agrees"]:
        raise typer.Exit(ExitCode.FAILED)


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
    found = Workers(url).post("v1", "connectors", name, "snapshot", body={"tables": tables})
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
    found = Workers(url).get("v1", "connectors", name, "events", limit=limit, kind=kind)["events"]
    rows = [{**one, "at": f"{datetime.fromtimestamp(one['at'] / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"} for one in found]
    shown = rows if session.output is Output.TABLE else found
    session.show_rows("events", shown, "at", "kind", "task", "text", empty="nothing has happened that is still known")
