"""The configuration of a connector in a file: flat, or as Kafka Connect takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace_cli.commanding import read_text
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.connector_text import TAKES, parse_connector

if TYPE_CHECKING:
    from headrace_connect.runtime.configuring import Configured

_HELP: Final = "The connector's configuration, YAML or JSON; -: stdin"
File = Annotated[str, typer.Argument(metavar="FILE", help=_HELP)]
Files = Annotated[list[str] | None, typer.Argument(metavar="[FILE...]", help=_HELP)]


def read_connector(file: str) -> dict[str, str]:
    """
    The configuration in a file, as Kafka has it: texts by key.

    Raises:
        CommandFailed: the file has something else in it.
    """
    try:
        return parse_connector(read_text(file, TAKES), file)
    except InvalidConfig as error:
        raise CommandFailed(str(error), ExitCode.USAGE, f"It takes {TAKES}.") from None


def read_configured(file: str, given: Mapping[str, str] | None = None) -> Configured:
    """
    What the configuration in a file makes, with its secrets; ``given``: what was read of it already.

    Raises:
        CommandFailed: the file has something else in it.
        InvalidConfig: all that is wrong with the configuration.
    """
    from headrace_connect.runtime.configuring import configure
    from headrace_connect.settings import Secrets

    return configure(read_connector(file) if given is None else given, Secrets())
