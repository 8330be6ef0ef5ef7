"""
Secrets that settings refer to: ``${file:PATH:KEY}``, ``${dir:DIRECTORY:FILE}`` and ``${env:NAME}``, as Kafka's config
providers write them. They are read when a task starts, and never shown: who shows a text that connectors or their
drivers made has ``Secrets.hide`` put references back.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

from headrace_common.core.errors import InvalidConfig

_REFERENCE: Final = re.compile(r"\$\{(?P<how>[a-z]+):(?P<what>[^{}]*)\}")
_FORMS: Final = {"file": "${file:PATH:KEY}", "dir": "${dir:DIRECTORY:FILE}", "env": "${env:NAME}"}
SECRET_BYTES_MAX: Final = 1 << 20
"""Of a file with secrets."""
HIDDEN_CHARS_MIN: Final = 4
"""What is shorter is not hidden: it would stand in any text."""


class Secret:
    """A text that no log and no message shows; ``reveal()`` gives it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "[hidden]"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def has_reference(text: str) -> bool:
    """Whether a secret has to be put into ``text``."""
    return _REFERENCE.search(text) is not None


@dataclass(frozen=True, slots=True)
class Reference:
    """What stands in the place of a secret."""

    text: str
    """All of it: ``${file:PATH:KEY}``."""
    how: str
    """``file``, ``dir``, ``env``, or something that there is not."""
    what: str
    """Behind that."""


def find_references(text: str) -> tuple[Reference, ...]:
    """All in ``text``, whether they are right or not."""
    return tuple(Reference(found[0], found["how"], found["what"]) for found in _REFERENCE.finditer(text))


def find_reference_problem(text: str) -> str | None:
    """What is wrong with the form of a reference in ``text``; nothing is read."""
    for found in _REFERENCE.finditer(text):
        how, what = found["how"], found["what"]
        if how not in _FORMS:
            return f"{found[0]}: there is no {how!r}; refer to secrets as {', '.join(_FORMS.values())}"
        first, _, second = what.rpartition(":") if how != "env" else (what, "", what)
        if not first or not second:
            return f"{found[0]} is not complete; it is {_FORMS[how]}"
    return None


@dataclass(frozen=True, slots=True)
class Secrets:
    """What references may reach. A worker for many users allows little; a process of one's own, everything."""

    directories: Sequence[Path] | None = None
    """Files below these may be read; None: all."""
    names: Sequence[str] | None = None
    """Variables of the environment that may be read; None: all."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    _known: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What references gave, in each form that messages may have it in -> the reference."""

    def resolve(self, text: str) -> str:
        """
        ``text`` with secrets in the place of references.

        Raises:
            InvalidConfig: there is no such secret, or it is not allowed; says which reference.
        """
        problem = find_reference_problem(text)
        if problem is not None:
            raise InvalidConfig(problem)
        return _REFERENCE.sub(self._one, text)

    def hide(self, text: str) -> str:
        """``text`` with references in the place of what they gave: it may stand where the configuration may."""
        if not any(value in text for value in self._known):
            return text
        longest_first = sorted(self._known, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, longest_first)), lambda found: self._known[found[0]], text)

    def _one(self, found: re.Match[str]) -> str:
        value = self._read(found)
        if len(value) >= HIDDEN_CHARS_MIN:
            forms = (value, quote(value, safe=""), quote(value), quote_plus(value), repr(value)[1:-1])
            self._known.update(dict.fromkeys((*forms, json.dumps(value)[1:-1]), found[0]))
        return value

    def _read(self, found: re.Match[str]) -> str:
        how, what = found["how"], found["what"]
        try:
            if how == "env":
                return self._variable(what)
            first, _, second = what.rpartition(":")
            if how == "file":
                return self._of_properties(Path(first), second)
            return self._of_directory(Path(first), second)
        except InvalidConfig as error:
            raise InvalidConfig(f"{found[0]}: {error}") from None

    def _variable(self, name: str) -> str:
        if self.names is not None and name not in self.names:
            raise InvalidConfig("this variable may not be read here; env.allowed names those that may")
        if name not in self.environment:
            raise InvalidConfig("the environment has no such variable")
        return self.environment[name]

    def _of_properties(self, path: Path, key: str) -> str:
        for line in self._text_of(path).splitlines():
            name, separator, value = line.strip().partition("=")
            if separator and name.strip() == key and not name.startswith(("#", "!")):
                return value.strip()
        raise InvalidConfig(f"the file has no line {key}=VALUE")

    def _of_directory(self, directory: Path, name: str) -> str:
        if Path(name).name != name or name == "..":
            raise InvalidConfig("FILE is the name of a file in DIRECTORY, without a path")
        return self._text_of(directory / name).removesuffix("\n").removesuffix("\r")

    def _text_of(self, path: Path) -> str:
        try:
            whole = path.resolve(strict=True)
            if self.directories is not None and not any(
                whole.is_relative_to(directory.resolve()) for directory in self.directories
            ):
                raise InvalidConfig(
                    "this file may not be read here; config.providers.file.allowed.paths names the folders that may"
                )
            with whole.open("rb") as file:
                content = file.read(SECRET_BYTES_MAX + 1)
            if len(content) > SECRET_BYTES_MAX:
                raise InvalidConfig(f"the file has more than {SECRET_BYTES_MAX} bytes")
            return content.decode()
        except OSError as error:
            raise InvalidConfig(f"the file cannot be read: {error.strerror or type(error).__name__}") from None
        except UnicodeDecodeError:
            raise InvalidConfig("the file is not UTF-8") from None


class HidingFormatter(logging.Formatter):
    """Writes what another formatter does, without secrets."""

    def __init__(self, inner: logging.Formatter, secrets: Secrets) -> None:
        super().__init__()
        self._inner = inner
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        return self._secrets.hide(self._inner.format(record))


def hide_in_logs(secrets: Secrets) -> None:
    """From now on the logs of this process have references in the place of ``secrets``."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(HidingFormatter(handler.formatter or logging.Formatter(), secrets))
