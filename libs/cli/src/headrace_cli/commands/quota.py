"""``headrace quota``: how fast clients may be, and how many topics there may be."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace_cli.commanding import command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.session import Session

HELP = "How fast clients may be, and how many topics there may be"

Entity = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        help="users/User:alice, users/*, clients/APP, users/User:alice/clients/APP, prefixes/orders.; * is each other",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only see whether it can be done")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace quota``."""
    command(app, "set")(set_)
    command(app)(remove)
    command(app, "list")(list_)


def set_(
    session: Session,
    entity: Entity,
    values: Annotated[
        list[str],
        typer.Argument(metavar="NAME=NUMBER...", help="As producer_byte_rate=1048576; of prefixes topics.max"),
    ],
    *,
    dry_run: DryRun = False,
) -> None:
    """Set quotas of one entity; its others stay."""
    _alter(session, entity, dict(map(_parse, values)), dry_run=dry_run)


def remove(
    session: Session,
    entity: Entity,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="As producer_byte_rate")],
    *,
    dry_run: DryRun = False,
) -> None:
    """Take quotas of one entity away; from then on the next that is set for it holds."""
    _alter(session, entity, dict.fromkeys(names), dry_run=dry_run)


def list_(
    session: Session,
    entity: Annotated[str | None, typer.Argument(metavar="[ENTITY]", help="Only what is set for it")] = None,
) -> None:
    """Show what is set."""
    with session.admin() as admin:
        found = admin.describe_quotas(entity)
    rows = [
        {"entity": of, "quota": name, "value": value} for of, values in found.items() for name, value in values.items()
    ]
    session.show(rows, empty="no quotas")


def _alter(session: Session, entity: str, values: dict[str, float | None], *, dry_run: bool) -> None:
    with session.admin() as admin:
        admin.alter_quotas({entity: values}, validate_only=dry_run)
    session.say("it could be done; nothing was changed" if dry_run else f"quotas of {entity} are changed")


def _parse(text: str) -> tuple[str, float]:
    name, equals, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = None
    if not equals or value is None:
        raise CommandFailed(
            f"{text[:80]!r} is no quota", ExitCode.USAGE, "Write NAME=NUMBER, as producer_byte_rate=1048576."
        )
    return name, value
