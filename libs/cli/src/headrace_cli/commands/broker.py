"""``headrace broker``: the brokers one by one."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace_cli.commanding import command
from headrace_cli.output import Output, bytes_for_people
from headrace_cli.session import Session

HELP = "The brokers one by one"


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace broker``."""
    command(app, "list")(list_)
    command(app)(describe)


def list_(session: Session) -> None:
    """List brokers with their addresses and what they hold."""
    from headrace_cli import admin_view

    with session.admin() as admin:
        rows = admin_view.list_brokers(admin)
    if session.output is Output.TABLE:
        for row in rows:
            row["size"] = None if row["size_bytes"] is None else bytes_for_people(row["size_bytes"])
            row["disk_free"] = None if row["disk_free_bytes"] is None else bytes_for_people(row["disk_free_bytes"])
    columns = ("id", "state", "grpc", "rack", "logs", "size", "disk_free", "version", "error")
    session.show(rows, *columns, empty="no broker is registered")


def describe(
    session: Session,
    broker: Annotated[int, typer.Argument(help="Its id")],
) -> None:
    """Show one broker: addresses, its logs, what recovery found, and its settings."""
    from headrace_cli import admin_view

    with session.admin() as admin:
        data = admin_view.describe_broker(admin, broker)
    if session.output is Output.TABLE:
        for name in ("size", "disk_free", "disk_total"):
            count = data.pop(f"{name}_bytes", None)
            data[name] = None if count is None else bytes_for_people(count)
        data["configs"] = [row for row in data["configs"] if row["source"] != "default"]
    session.show(data)
