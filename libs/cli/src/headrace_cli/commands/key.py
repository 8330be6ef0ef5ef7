"""``headrace key``: API keys, and ``headrace whoami``: what the cluster makes of the one that is shown."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.commanding import command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.session import Session

if TYPE_CHECKING:
    from headrace_common.core.access.grants import Grant

HELP = "API keys: what programs and people show of themselves"

SCOPE_WORDS = 3
DAYS = 365


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace key``."""
    command(app)(create)
    command(app, "list")(list_)
    command(app)(delete)


def register_whoami(app: typer.Typer) -> None:
    """Add ``headrace whoami``."""
    command(app)(whoami)


def create(
    session: Session,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="PRINCIPAL", help="Who calls with it, as User:alice; else you")
    ] = None,
    *,
    days: Annotated[
        int | None, typer.Option("--days", min=1, max=36_500, help="How long it lasts; 365 unless said")
    ] = None,
    forever: Annotated[bool, typer.Option("--forever", help="It does not expire")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="'OPERATIONS TYPE PATTERN'", help="Only for this, as 'read topic orders*'"),
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What it is for")] = "",
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Write it into a new file of your own, print it not")
    ] = None,
) -> None:
    """Make an API key. It is shown this once."""
    scope = [_grant(text) for text in allow or []]
    if forever and days is not None:
        raise typer.BadParameter("--forever and --days are two answers to how long it lasts; give one of them")
    lifetime = None if forever else timedelta(days=days or DAYS)
    opened = None if file is None else _open_new(file)
    try:
        with session.admin() as admin:
            made = admin.create_key(owner, lifetime=lifetime, scope=scope, note=note)
    except BaseException:
        if file is not None and opened is not None:
            os.close(opened)
            file.unlink()
        raise
    if opened is not None:
        with os.fdopen(opened, "w") as out:
            out.write(f"{made.key.reveal()}\n")
    told = _json(made.description.wire)
    if session.output is not Output.TABLE:
        session.show(told | ({"file": str(file)} if file is not None else {"key": made.key.reveal()}))
        return
    until = "does not expire" if made.description.expires_ms is None else f"lasts until {_day(told['expires_ms'])}"
    if file is None:
        typer.echo(made.key.reveal())
        session.say(f"key {told['id']} of {told['owner']} {until}; it is shown this once, keep it in a file (0600)")
    else:
        session.say(
            f"key {told['id']} of {told['owner']} {until}; it is in {file}: api_key_file, HEADRACE_API_KEY_FILE"
        )


def list_(
    session: Session,
    owner: Annotated[str | None, typer.Option("--owner", metavar="PRINCIPAL", help="Only keys of this one")] = None,
) -> None:
    """List keys, without their secrets."""
    with session.admin() as admin:
        rows = [_json(key.wire) for key in admin.list_keys(owner)]
    if session.output is Output.TABLE:
        rows = [
            row
            | {
                "expires": "never" if row["expires_ms"] is None else _day(row["expires_ms"]),
                "only_for": "; ".join(map(_words, row["scope"])) or "all of its owner",
            }
            for row in rows
        ]
    session.show_rows("keys", rows, "id", "owner", "expires", "only_for", "note", empty="there are none")


def delete(
    session: Session, ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `key list` shows them")]
) -> None:
    """Take keys back: what is connected with one is cut off."""
    with session.admin() as admin:
        admin.delete_keys(ids)
    session.report({"deleted": ids}, f"deleted {', '.join(ids)}")


def whoami(session: Session) -> None:
    """Say who the cluster takes you for, and by which credential."""
    from headrace._credentials import credential_place

    with session.admin() as admin:
        found = admin.who_am_i()
    place = credential_place(session.cluster, os.environ)
    told = _json(found.wire) | {"credential": place}
    if session.output is not Output.TABLE:
        session.show(told)
        return
    expires = None if found.expires_ms is None else _day(found.expires_ms)
    shown = {"principal": found.principal, "key": found.key_id}
    if found.certificate is not None:
        shown["certificate"] = found.certificate
    session.show(shown | {"expires": expires, "mode": found.mode, "credential": place})
    if found.super_user:
        session.say("a super user: it may do everything")


def _grant(text: str) -> Grant:
    from headrace import access

    words = text.split()
    cluster = len(words) == SCOPE_WORDS - 1 and words[1].upper() == "CLUSTER"
    if len(words) != SCOPE_WORDS and not cluster:
        raise typer.BadParameter(f"{text!r}: write it as 'OPERATIONS TYPE PATTERN', for example 'read topic orders*'")
    operations, type, *pattern = words
    return access.grant(operations.split(","), type, *pattern)


def _open_new(file: Path) -> int:
    """Before the key is made: one that cannot be kept anywhere is lost."""
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CommandFailed(f"{file} is there already", ExitCode.USAGE, "Name a new file, or remove it.") from None


def _words(grant: dict[str, Any]) -> str:
    return f"{','.join(grant['operations']).lower()} {grant['type'].lower()} {grant['pattern']}"


def _day(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _json(message: Any) -> dict[str, Any]:
    from headrace_common.rpc.json_form import json_of

    return json_of(message)
