"""``headrace connect plugins`` and ``plugin``: connectors that there are, settings, environments for more."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headrace_cli.commanding import add_shared_options, plain_command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.session import Session

HELP = "Settings of a connector (plugin NAME), and environments of their own for connectors (plugin install)"
DEFAULT_PATH = Path("plugins")


class _ShowUnlessNamed(TyperGroup):
    """``plugin NAME`` is ``plugin show NAME``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What comes first is a command of the group, or the name of a connector."""
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace connect``."""
    plain_command(app)(plugins)
    inner = typer.Typer(help=HELP, cls=_ShowUnlessNamed, no_args_is_help=True, rich_markup_mode=None)
    plain_command(inner)(show)
    plain_command(inner)(install)
    add_shared_options(inner, HELP)
    app.add_typer(inner, name="plugin")


def check_installed() -> None:
    """
    Raises:
        CommandFailed: there is no Connect here.
    """
    if find_spec("headrace_connect") is None:
        raise CommandFailed("connectors are not installed here", ExitCode.USAGE, "pip install 'headrace-cli[connect]'")


def kind_of(found: type) -> str:
    """Of a connector's class."""
    from headrace_connect.plugin import Source

    return "source" if issubclass(found, Source) else "sink"


def plugins(session: Session) -> None:
    """List the connectors that are installed. Others are named as package.module:Class or file.py:Class."""
    check_installed()
    from headrace_connect.runtime.catalog import find_connector, list_connectors

    rows = []
    for listed in list_connectors():
        found = find_connector(listed.name)
        rows.append({"name": listed.name, "kind": kind_of(found), "version": found.version, "class": listed.where})
    session.show_rows("plugins", rows, "name", "kind", "version", "class", empty="none is installed")


def show(session: Session, name: Annotated[str, typer.Argument(help="As connector.class has it")]) -> None:
    """Show the settings of a connector, with those that every source or sink has."""
    check_installed()
    from headrace_connect.runtime.catalog import find_connector
    from headrace_connect.runtime.configuring import describe_plugin

    rows = [
        {
            "key": one.key + ("*" if one.family else ""),
            "type": one.type.value.lower(),
            "default": "required" if one.required else one.default,
            "importance": one.importance.value.lower(),
            "documentation": one.documentation,
        }
        for one in describe_plugin(find_connector(name))
    ]
    session.show_rows("settings", rows, "key", "type", "default", "importance", "documentation")


def install(
    session: Session,
    requirements: Annotated[
        list[str], typer.Argument(metavar="REQUIREMENT...", help="As pip takes them: packages, wheels, directories")
    ],
    *,
    name: Annotated[str | None, typer.Option("--name", help="Of the environment; else the first requirement's")] = None,
    path: Annotated[Path, typer.Option(metavar="FOLDER", help="One of plugin_path of the workers")] = DEFAULT_PATH,
    index_url: Annotated[str, typer.Option(metavar="URL", help="Of pip's index")] = "",
    find_links: Annotated[
        list[str] | None, typer.Option(metavar="WHERE", help="Files, directories or pages with packages")
    ] = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Ask no index, only --find-links")] = False,
) -> None:
    """
    Make a virtual environment with connectors, whose packages may quarrel with those of all others.

    It has headrace-connect from here, and what that needs. Workers with the folder in plugin_path find it at once.
    """
    check_installed()
    from headrace_connect.runtime.installing import Index
    from headrace_connect.runtime.installing import install as make

    chosen = name or _name_of(requirements[0])
    found = make(path, chosen, requirements, Index(index_url, tuple(find_links or ()), no_index))
    home = str((path / chosen).absolute())
    said = f"{home} has {', '.join(sorted(found))}; workers find it by --plugin-path {path.absolute()}"
    session.report({"environment": home, "connectors": found}, said)


def _name_of(requirement: str) -> str:
    """``shop`` of ``shop[db]==1.0``, ``./shop-1.0-py3-none-any.whl`` or ``../shop/``."""
    text = requirement.rstrip("/").rpartition("/")[2]
    for separator in ("[", "=", "<", ">", "~", "!", ";", "@", " "):
        text = text.partition(separator)[0]
    return text.partition("-")[0] if text.endswith(".whl") else text
