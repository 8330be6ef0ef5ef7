"""``headrace profile``: names for clusters, in a file that the SDK, the command and Spark read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.finding import (
    CHOSEN,
    PROFILE_KEYS,
    certificate_files,
    chosen_profile,
    config_file,
    find_cluster,
    profiles,
    read_profile,
)
from headrace_cli import completing
from headrace_cli.commanding import plain_command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.profile_file import choose_profile, drop_profile, put_profile
from headrace_cli.session import Session
from headrace_common.core.errors import InvalidConfig

HELP = "Names for clusters: what `--profile` and HEADRACE_PROFILE take"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile", autocompletion=completing.profiles)]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace profile``."""
    plain_command(app, "list")(list_profiles)
    plain_command(app)(show)
    plain_command(app)(use)
    plain_command(app, "set")(set_profile)
    plain_command(app)(remove)


def list_profiles(session: Session) -> None:
    """All profiles, and which cluster a client in this directory finds."""
    file = config_file(os.environ)
    chosen = chosen_profile(file)
    rows = [
        {"name": name, "bootstrap": section.get("bootstrap"), "output": section.get("output"), "used": name == chosen}
        for name, section in sorted(profiles(file).items())
    ]
    session.show_rows("profiles", rows, "name", "bootstrap", "output", "used", empty=f"no profile in {file}; {_MAKE}")
    try:
        found = find_cluster(None, None, os.environ, Path.cwd)
    except InvalidConfig as error:
        session.say(f"no cluster is found here: {error}")
        return
    session.say(f"clients here find {found} ({found.source})")


def show(session: Session, name: Name) -> None:
    """One profile."""
    session.show({"name": name, **read_profile(name, config_file(os.environ))})


def use(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The profile", autocompletion=completing.profiles)
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Choose no profile any more")] = False,
) -> None:
    """Choose the profile that clients take where nothing else is said."""
    if (name is None) != none:
        raise typer.BadParameter("name a profile, or give --none")
    file = config_file(os.environ)
    if name is not None:
        read_profile(name, file)
    _write(file, choose_profile(_text(file), name))
    told = f"clients take {name} now" if name else "no profile is chosen any more"
    session.report({"name": name, "file": str(file)}, f"{file}: {told}")
    if os.environ.get("HEADRACE_BOOTSTRAP") or os.environ.get("HEADRACE_PROFILE"):
        session.say("note: HEADRACE_BOOTSTRAP and HEADRACE_PROFILE go before it, and one of them is set here")


def set_profile(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile")],
    *,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT[,...]", help="Where the cluster is")
    ] = None,
    print_as: Annotated[Output | None, typer.Option("--print-as", help="How commands print with this profile")] = None,
    ca: Annotated[
        str | None, typer.Option("--ca", metavar="FILE", help="CAs of a cluster that speaks TLS, in PEM")
    ] = None,
    api_key_file: Annotated[
        str | None, typer.Option("--api-key-file", metavar="FILE", help="The file with the API key to show")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="The file with the token to show")
    ] = None,
    username: Annotated[str | None, typer.Option("--username", metavar="NAME", help="Who logs in")] = None,
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="The file with the password of that user")
    ] = None,
    cert_file: Annotated[
        str | None, typer.Option("--cert-file", metavar="FILE", help="The certificate to show where one is asked for")
    ] = None,
    key_file: Annotated[str | None, typer.Option("--key-file", metavar="FILE", help="The key of --cert-file")] = None,
) -> None:
    """Make a profile, or change what is given of one."""
    if not name or name == CHOSEN or not all(c.isalnum() or c in "-_" for c in name) or not name.isascii():
        raise CommandFailed(
            f"{name!r} cannot be a profile's name", ExitCode.USAGE, "It takes letters, digits, - and _; not 'profile'."
        )
    file = config_file(os.environ)
    before: dict[str, Any] = profiles(file).get(name, {})
    given = {
        "bootstrap": bootstrap,
        "output": None if print_as is None else print_as.value,
        "ca": ca,
        "api_key_file": api_key_file,
        "token_file": token_file,
        "username": username,
        "password_file": password_file,
        "cert_file": cert_file,
        "key_file": key_file,
    }
    section = {**before, **{key: value for key, value in given.items() if value is not None}}
    if section.get("bootstrap") is None:
        raise CommandFailed(f"profile {name!r} needs an address", ExitCode.USAGE, "Give --bootstrap HOST:PORT.")
    find_cluster(section["bootstrap"], None, {}, Path.cwd)
    certificate_files(section.get("cert_file"), section.get("key_file"))
    kept: dict[str, str] = {key: section[key] for key in PROFILE_KEYS if key in section}
    _write(file, put_profile(_text(file), name, kept))
    session.report(
        {"name": name, **kept, "file": str(file)},
        f"{file}: profile {name} is {section['bootstrap']}; `headrace profile use {name}` chooses it",
    )


def remove(session: Session, name: Name) -> None:
    """Take a profile out of the file; files that it names stay."""
    file = config_file(os.environ)
    read_profile(name, file)
    chosen = chosen_profile(file) == name
    text = drop_profile(_text(file), name)
    _write(file, choose_profile(text, None) if chosen else text)
    told = "; no profile is chosen any more" if chosen else ""
    session.report({"name": name, "file": str(file)}, f"{file}: profile {name} is removed{told}")


_MAKE = "`headrace profile set NAME --bootstrap HOST:PORT` makes one"


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _write(file: Path, text: str) -> None:
    """Replace the file; a crash leaves the old or the new one. What may hold secrets later is its owner's alone."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(file.name + ".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)
    draft.replace(file)
