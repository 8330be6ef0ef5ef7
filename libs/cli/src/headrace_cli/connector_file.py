"""The configuration of a connector in a file: flat, or as Kafka Connect takes it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace_cli.commanding import read_text
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.connector_text import TAKES, parse_connector

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
