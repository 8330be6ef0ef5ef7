"""
The connector whose work a job does, as its configuration says. Called by the jobs of Connect.

Tasks make their converters, transforms and settings of the same texts as a worker would, so rows and records are the
same; secrets are resolved where they are used.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_common.core.errors import Busy, InvalidConfig
from headrace_common.runtime.connector_text import parse_connector
from headrace_connect.plugin import RetriableError, Sink, Source
from headrace_connect.runtime.configuring import Configured, configure
from headrace_connect.settings import Secrets


@dataclass(frozen=True, slots=True)
class Given:
    """A connector's configuration; travels pickled."""

    texts: Mapping[str, str]
    """By key, with references in the place of secrets."""

    def configured(self) -> Configured:
        """With its secrets."""
        return configure(self.texts, Secrets())


def add_connector(parser: argparse.ArgumentParser, kind: str) -> None:
    """The options that say which it is."""
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--connector", metavar="FILE", help=f"configuration of the connector {kind}, YAML or JSON")
    either.add_argument("--connector-json", metavar="JSON", help="or the configuration itself")


def read_connector(args: argparse.Namespace, kind: type[Source[Any]] | type[Sink[Any]]) -> tuple[Given, Configured]:
    """
    A connector of the class, as the options of ``add_connector`` say; a file is on the driver's machine.

    Raises:
        InvalidConfig: it cannot be read, is wrong, or is another connector; all that is wrong.
    """
    option, text = "--connector-json", args.connector_json
    if text is None:
        option = f"--connector {args.connector}"
        try:
            text = Path(args.connector).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"{option} cannot be read: {error}") from None
    given = Given(parse_connector(text, args.connector or option))
    configured = given.configured()
    if not issubclass(configured.plugin, kind):
        raise InvalidConfig(f"{option} is of {given.texts['connector.class']}; this job needs {kind.__name__}")
    return given, configured


@contextmanager
def retriable() -> Iterator[None]:
    """
    Raises:
        Busy: the connector's system is away; to be run again.
    """
    try:
        yield
    except RetriableError as error:
        raise Busy(str(error)) from error
