"""``headrace user``: users with passwords; and ``headrace login``: a key of some hours for who has one."""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.local_keys import find_login, logins_directory, read_key_file, write_local_key
from headrace_cli.commanding import command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.session import Session
from headrace_common.core.errors import HeadraceError
from headrace_common.core.secret import Secret

HELP = "Users with passwords"

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the principal User:NAME")]
PasswordFile = Annotated[
    str | None,
    typer.Option("--password-file", metavar="FILE", help="Read it from a file, - for stdin; else you are asked"),
]
Password = Annotated[
    str | None, typer.Option("--password", metavar="TEXT", help="Other users of this machine can read it there")
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace user``."""
    command(app)(create)
    command(app)(passwd)
    command(app, "list")(list_)
    command(app)(remove)


def register_logins(app: typer.Typer) -> None:
    """Add ``headrace login`` and ``headrace logout``."""
    command(app)(login)
    command(app)(logout)


def create(session: Session, name: Name, *, password_file: PasswordFile = None, password: Password = None) -> None:
    """Make a user. The password stays here: the cluster keeps verifiers of it."""
    given = _password(session, password_file, password, new=True)
    with session.admin() as admin:
        admin.create_user(name, given)
    session.report({"user": name}, f"User:{name} was made; give it rights with headrace access allow User:{name} ...")


def passwd(
    session: Session,
    name: Name,
    *,
    grace: Annotated[
        int, typer.Option("--grace", metavar="S", min=0, max=604_800, help="How long the old one still counts")
    ] = 0,
    password_file: PasswordFile = None,
    password: Password = None,
) -> None:
    """Give a user another password. Its sessions and logins end when the old one does."""
    given = _password(session, password_file, password, new=True)
    with session.admin() as admin:
        admin.change_password(name, given, grace=timedelta(seconds=grace) if grace else None)
    until = f"; the old one counts for {grace} s" if grace else ""
    session.report({"user": name, "grace_s": grace}, f"User:{name} has another password{until}")


def list_(session: Session) -> None:
    """List users."""
    from headrace_common.rpc.json_form import json_of

    with session.admin() as admin:
        rows = [json_of(user.wire) for user in admin.list_users()]
    for row in rows:
        row.pop("parameters", None)
    if session.output is Output.TABLE:
        rows = [row | {"password_of": _day(row["password_set_ms"])} for row in rows]
    session.show_rows("users", rows, "name", "password_of", "blocked", empty="there are none")


def remove(
    session: Session,
    name: Name,
    *,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Its rules, roles, keys and block go too; else there may be none")
    ] = False,
) -> None:
    """Take a user away: what is connected with its password is cut off."""
    with session.admin() as admin:
        admin.delete_user(name, cascade=cascade)
    session.report({"removed": name}, f"User:{name} was removed")


def login(
    session: Session,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Of the principal User:NAME")],
    *,
    password_file: PasswordFile = None,
    password: Password = None,
) -> None:
    """Log in: clients of this user of the machine show a key there for 12 hours."""
    given = _password(session, password_file, password, new=False)
    with session.admin(username=user, password=given) as admin:
        made = admin.log_in(user, given)
    file = write_local_key(logins_directory(os.environ), _file_name(session), list(session.cluster), made.key)
    expires_ms = made.description.expires_ms
    assert expires_ms is not None, "a login ends"
    session.report(
        {"user": user, "key_id": made.description.id, "expires_ms": expires_ms, "file": str(file)},
        f"logged in at {session.bootstrap} as User:{user} until {_day(expires_ms)}",
    )


def logout(session: Session) -> None:
    """Take the key of ``headrace login`` back, and forget it."""
    from headrace_common.core.access.api_keys import parse_key

    file = find_login(logins_directory(os.environ), session.cluster)
    if file is None:
        raise CommandFailed(f"nobody is logged in at {session.bootstrap}", ExitCode.NOT_FOUND)
    _, key = read_key_file(file)
    try:
        with session.admin(api_key=key) as admin:
            admin.delete_keys([parse_key(key.reveal()).id])
    except HeadraceError as error:
        session.say(f"the key could not be taken back, and ends by itself: {error}")
    file.unlink(missing_ok=True)
    session.report({"file": str(file)}, f"logged out at {session.bootstrap}")


def _password(session: Session, file: str | None, text: str | None, *, new: bool) -> Secret:
    """From where it is given; never shown."""
    from headrace._credentials import read_password

    if file is not None and text is not None:
        raise typer.BadParameter("give --password-file or --password, not both")
    if text is not None:
        session.say("warning: a password on a command line can be read by others; better --password-file, or be asked")
        return Secret(text)
    if file == "-":
        return Secret(sys.stdin.readline().rstrip("\r\n"))
    if file is not None:
        return read_password(Path(file).expanduser())
    return Secret(typer.prompt("Password", hide_input=True, confirmation_prompt=new, err=True))


def _file_name(session: Session) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", session.cluster[0])


def _day(unix_ms: Any) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
