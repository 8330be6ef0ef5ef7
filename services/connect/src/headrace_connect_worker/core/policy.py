"""
Decides what a configuration that came by REST may reach on the machines of workers: code, files, variables of the
environment. Called before anything is made of it: a host that only looks at a configuration opens what it names.

Nothing may be reached unless a setting of the worker says so. Paths are compared as they are written; the host that
reads a secret looks again where links lead.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from headrace_connect.core.options import Problem
from headrace_connect.secrets import Reference, find_references

_CLASS: Final = "connector.class"
_PLAIN: Final = "allow.plain.secrets"
_PYTHON: Final = "python:"
_LOCAL: Final = ("file:", "sqlite:", "jdbc:sqlite:")
_PATHS: Final = re.compile(r"(^|[._])(path|file|filename|dir|directory|descriptor)$|\.converter\.schema$")
_PROGRAM: Final = re.compile(r"(^|[._])executable$")
_OTHERS: Final = "config."
"""
Keys that begin so are another program's configuration: JSON may hold anything there, and names say nothing, as with
``records_path``. The program runs in an empty directory, so what is relative leads nowhere.
"""
_OF_URLS: Final = frozenset({("http-source", "route")})
"""Settings of connectors that look like paths, and are parts of URLs."""
_BEGINS: Final = ("/", "~", "./", "../")
_UP: Final = re.compile(r"(^|/)\.\.(/|$)")
_COMMENT: Final = "/*"
"""Of SQL."""
_LOGIN: Final = re.compile(r"://[^/?#@\s]*:[^/?#@\s]+@")
_REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_JSON: Final = ("{", "[", '"')
_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be reached; the settings of the worker that have these names."""

    classes: Sequence[str] = ()
    """``plugins.allowed``: classes that have no name of their own, as ``package.module:Class``."""
    python: Sequence[str] = ()
    """``transforms.python.allowed``: functions, as ``module:function``."""
    secrets: Sequence[str] = ()
    """``config.providers.file.allowed.paths``: directories of files with secrets."""
    variables: Sequence[str] = ()
    """``env.allowed``: variables of the environment."""
    files: Sequence[str] = ()
    """``files.allowed.paths``: directories of what connectors read and write."""
    programs: Sequence[str] = ()
    """``executables.allowed``: programs that connectors start, as configurations name them."""

    def find_problems(self, config: Mapping[str, str], installed: Collection[str]) -> tuple[Problem, ...]:
        """
        All that ``config`` names and may not reach.

        Args:
            installed: classes of the plugins that have a name, as ``package.module:Class``.
        """
        problems: list[Problem] = []
        for key, value in config.items():
            problems += self._code(key, value, installed)
            problems += (wrong for one in find_references(value) if (wrong := self._secret(key, one)) is not None)
            if _PROGRAM.search(key):
                problems += self._program(key, value)
            elif (config.get(_CLASS, ""), key) not in _OF_URLS:
                problems += self._file(key, value)
        return tuple(problems)

    def _code(self, key: str, value: str, installed: Collection[str]) -> list[Problem]:
        if key == _CLASS and (":" in value or value.endswith(".py")):
            if value in self.classes or value in installed:
                return []
            what = f"{value[:_SHOWN]} is code that has no name here; name an installed plugin"
            return [Problem(key, f"{key}: {what}, or have plugins.allowed of the workers name it")]
        if key.startswith("transforms.") and key.endswith(".type") and value.startswith(_PYTHON):
            if value.removeprefix(_PYTHON) in self.python:
                return []
            what = f"{value[:_SHOWN]} is code; transforms.python.allowed of the workers names what may run"
            return [Problem(key, f"{key}: {what}")]
        return []

    def _secret(self, key: str, reference: Reference) -> Problem | None:
        if reference.how == "env":
            if reference.what in self.variables:
                return None
            return Problem(key, f"{key}: {reference.text}: env.allowed of the workers does not name this variable")
        if reference.how in ("file", "dir") and not _is_below(reference.what.rpartition(":")[0], self.secrets):
            setting = "config.providers.file.allowed.paths"
            return Problem(key, f"{key}: {reference.text}: {setting} of the workers does not have this directory")
        return None

    def _program(self, key: str, value: str) -> list[Problem]:
        if value in self.programs:
            return []
        what = f"{value[:_SHOWN]} is a program; executables.allowed of the workers names what connectors may start"
        return [Problem(key, f"{key}: {what}")]

    def _file(self, key: str, value: str) -> list[Problem]:
        plain = _without_references(value, "x")
        name, lists = ("", _texts(plain)) if key.startswith(_OTHERS) else (key, [_parts(key, plain)])
        paths = [
            part for parts in lists for number, part in enumerate(parts) if _is_local(name, part, first=number == 0)
        ]
        if not paths:
            return []
        if find_references(value):
            return [Problem(key, f"{key} is a path, and a path cannot be a secret: write it out")]
        outside = [path for path in map(_path_of, paths) if not self._has_file(path)]
        return [
            Problem(
                key,
                f"{key}: {path[:_SHOWN]} is on the machine where the connector runs; files.allowed.paths of the "
                "workers names the directories that connectors may read and write",
            )
            for path in outside
        ]

    def _has_file(self, path: str) -> bool:
        return _is_below(path, self.files) and _is_below(unquote(path), self.files)


def find_passwords(config: Mapping[str, str]) -> tuple[Problem, ...]:
    """Passwords within URLs: they are secrets too, and refused as those, unless ``allow.plain.secrets``."""
    if config.get(_PLAIN, "").lower() == "true":
        return ()
    what = "has a password that stands here for all to read: refer to it, as in"
    return tuple(
        Problem(key, f"{key} {what} ${{file:PATH:KEY}} or ${{env:NAME}}, or set {_PLAIN}=true")
        for key, value in config.items()
        if has_password(value)
    )


def has_password(value: str) -> bool:
    """Whether a URL has a password that is no reference."""
    return _LOGIN.search(_without_references(value, "")) is not None


def _without_references(value: str, instead: str) -> str:
    for reference in find_references(value):
        value = value.replace(reference.text, instead)
    return value


def _parts(key: str, value: str) -> list[str]:
    """A list's parts, for any setting may be a list; a schema that is written out is none."""
    if _PATHS.search(key) and value.lstrip().startswith(_JSON):
        return []
    return [part.strip() for part in value.split(",")]


def _texts(value: str) -> list[list[str]]:
    """A text, or all texts within JSON, names too; each whole and as the parts of a list."""
    try:
        left: list[Any] = [json.loads(value)]
    except (ValueError, RecursionError):
        left = [value]
    found: list[list[str]] = []
    while left:
        one = left.pop()
        if isinstance(one, str):
            found.append([one, *(part.strip() for part in one.split(","))])
        elif isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one
    return found


def _is_local(key: str, value: str, *, first: bool) -> bool:
    """Whether a value names something in the file system: by how it looks or, of a list the first, its key's name."""
    if value.lower().startswith(_LOCAL) or (_UP.search(value) and not _REMOTE.match(value)):
        return True
    if len(value) > 1 and value.startswith(_BEGINS) and not value.startswith(_COMMENT):
        return True
    return first and bool(value) and _PATHS.search(key) is not None and not _REMOTE.match(value)


def _path_of(value: str) -> str:
    """``file:///a/b``, ``jdbc:sqlite:////a/b?mode=ro`` and ``/a/b`` as ``/a/b``; ``sqlite:///a`` is relative: ``a``."""
    scheme, colon, rest = re.sub(r"^jdbc:", "", value, flags=re.IGNORECASE).partition(":")
    if not colon or scheme.lower() not in ("file", "sqlite"):
        return value
    if scheme.lower() == "file":
        return rest.removeprefix("//")
    return rest.partition("?")[0].removeprefix("///" if rest.startswith("///") else "//")


def _is_below(path: str, directories: Sequence[str]) -> bool:
    if not path.startswith("/"):
        return False
    whole = posixpath.normpath(re.sub("^/+", "/", path))
    return any(
        whole == directory or whole.startswith(f"{directory.rstrip('/')}/")
        for directory in map(posixpath.normpath, directories)
    )
