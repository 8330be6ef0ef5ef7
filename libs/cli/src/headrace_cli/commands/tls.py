"""``headrace tls``: which certificates the nodes of a cluster show, and until when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from headrace_cli.commanding import command
from headrace_cli.exits import CommandFailed
from headrace_cli.output import Output
from headrace_cli.session import Session

HELP = "Certificates of nodes: who shows which, until when"


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace tls``."""
    command(app, "list")(list_)


def list_(
    session: Session,
    *,
    look: Annotated[bool, typer.Option("--look", help="Nodes look at their files first")] = False,
) -> None:
    """
    Show each node's certificates, and the CAs it trusts (SHA-256, the first digits). Ends with 1 if one is over, a
    node refused its files, or cannot be asked.
    """
    from headrace_cli import tls_view as view

    with session.admin() as admin:
        found = admin.describe_certificates(look=look)
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    if session.output is Output.TABLE:
        session.show(view.rows_of(found, now_ms), *view.COLUMNS)
    else:
        session.show({"nodes": view.as_data(found)})
    wrong = view.complaints(found, now_ms)
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise CommandFailed(f"{wrong[0]}{more}", hint="docs/security.md#tls says what a service takes.")
