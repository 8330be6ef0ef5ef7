"""
Decides how a process gets its settings: frozen dataclasses, filled from the environment and the command line.

A field ``drain_ms_max`` of service ``broker`` is ``HEADRACE_BROKER_DRAIN_MS_MAX`` or ``--drain-ms-max VALUE``; the
command line wins. A field that is a dataclass itself is flattened: its fields get its name as a prefix, or none when
it was declared with ``inline()``. What is wrong is told all at once. ``--help`` prints every field with its docstring,
``--settings-json`` the same for programs, and ``--check-settings`` ends before anything is opened or served.
Called by each service's ``__main__``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from headrace_common.core.bounds import LIMIT, find_problem, takes
from headrace_common.core.errors import HeadraceError, InvalidConfig
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.docs import field_docs

T = TypeVar("T")

_PREFIX: Final = "prefix"
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


CHECK: Final = "--check-settings"
AS_JSON: Final = "--settings-json"


class HelpWanted(Exception):
    """``--help`` was given, or what else is answered without a service; the text is what to print."""


def inline(default_factory: Callable[[], T]) -> T:
    """A nested dataclass whose fields keep their own names: ``server: ServerConfig = inline(ServerConfig)``."""
    made: T = dataclasses.field(default_factory=default_factory, metadata={_PREFIX: ""})
    return made


def load_settings(cls: type[T], *, service: str, argv: Sequence[str], env: Mapping[str, str]) -> T:
    """
    An instance of the frozen dataclass ``cls``.

    Raises:
        HelpWanted: with the help text.
        InvalidConfig: everything that is wrong, one line each.
    """
    options = list_options(cls)
    if "--help" in argv or "-h" in argv:
        raise HelpWanted(_help(cls, service, options))
    if AS_JSON in argv:
        raise HelpWanted(json.dumps([_as_row(option) for option in options]))
    wrong: list[str] = []
    given = _from_env(options, service, env)
    given.update(_from_argv(options, [word for word in argv if word != CHECK], wrong))
    settings = _build(cls, (), options, given, wrong)
    if wrong:
        raise InvalidConfig("\n".join(["the settings cannot be used:", *(f"  {w}" for w in wrong)]))
    if CHECK in argv:
        raise HelpWanted("the settings can be used")
    assert isinstance(settings, cls), "without complaints there is an instance"
    return settings


def settings_or_exit(cls: type[T], *, service: str, argv: Sequence[str], env: Mapping[str, str]) -> T:
    """The same for ``__main__``: help ends the process with 0, wrong settings with 2 and the text on stderr."""
    try:
        return load_settings(cls, service=service, argv=argv, env=env)
    except HelpWanted as wanted:
        sys.stdout.write(f"{wanted}\n")
        raise SystemExit(0) from None
    except InvalidConfig as error:
        sys.stderr.write(f"{error}\nRun with --help to see all settings.\n")
        raise SystemExit(2) from None


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a process."""

    path: tuple[str, ...]
    """The fields that lead to it."""
    name: str
    """With underscores: ``metrics_listen``."""
    type: Any
    default: object
    """MISSING: it must be given."""
    doc: str
    declared: dataclasses.Field[Any]
    """What it takes; see ``core.bounds``."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def variable(self, service: str) -> str:
        return f"HEADRACE_{service}_{self.name}".upper()


_Given = dict[str, tuple[str, str]]


def list_options(cls: type, path: tuple[str, ...] = (), prefix: str = "") -> list[Option]:
    """The settings that the dataclass ``cls`` and those in it declare."""
    hints = typing.get_type_hints(cls)
    docs = field_docs(cls)
    found: list[Option] = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) and hint is not Endpoint:
            inner = prefix + field.metadata.get(_PREFIX, f"{field.name}_")
            nested = list_options(typing.cast(type, hint), (*path, field.name), inner)
            found += [_with_default(o, field, len(path)) for o in nested]
        elif LIMIT not in field.metadata:
            default = _default_of(field)
            doc = docs.get(field.name, "")
            found.append(Option((*path, field.name), prefix + field.name, hint, default, doc, field))
    names = [o.name for o in found]
    assert len(set(names)) == len(names), f"two settings have one name: {sorted(names)}"
    return found


def _with_default(option: Option, field: dataclasses.Field[Any], depth: int) -> Option:
    holder = _default_of(field)
    if holder is dataclasses.MISSING:
        return option
    value: object = holder
    for name in option.path[depth + 1 :]:
        value = getattr(value, name)
    return dataclasses.replace(option, default=value)


def _default_of(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def _from_env(options: list[Option], service: str, env: Mapping[str, str]) -> _Given:
    variables = ((o.name, o.variable(service)) for o in options)
    return {name: (env[variable], variable) for name, variable in variables if variable in env}


def _from_argv(options: list[Option], argv: Sequence[str], wrong: list[str]) -> _Given:
    known = {o.flag: o for o in options}
    given: _Given = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        option = known.get(flag)
        if option is None:
            wrong.append(f"{word[:80]} is not a setting")
            if flag.startswith("--") and not equals and words and not words[0].startswith("--"):
                words.pop(0)
            continue
        if not equals:
            if words and not words[0].startswith("--"):
                value = words.pop(0)
            elif option.type is bool:
                value = "true"
            else:
                wrong.append(f"{flag} takes a value")
                continue
        if option.name in given:
            wrong.append(f"{flag} is given twice")
        given[option.name] = (value, flag)
    return given


def _build(cls: type, path: tuple[str, ...], options: list[Option], given: _Given, wrong: list[str]) -> object:
    """The dataclass at ``path``; None after a complaint."""
    values: dict[str, object] = {}
    before = len(wrong)
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if LIMIT in field.metadata:
            continue
        here = (*path, field.name)
        option = next((o for o in options if o.path == here), None)
        if option is None:
            values[field.name] = _build(hints[field.name], here, options, given, wrong)
            continue
        text, source = given.get(option.name, (None, ""))
        if text is not None:
            values[field.name] = _parse(option.type, text, source, wrong)
        elif option.default is dataclasses.MISSING:
            wrong.append(f"{option.flag} is missing")
        else:
            values[field.name] = option.default
    if len(wrong) > before:  # its rules cannot be asked, its bounds can
        found = (
            find_problem(field, values[field.name])
            for field in dataclasses.fields(cls)
            if values.get(field.name) is not None
        )
        wrong += [text for text in found if text is not None]
        return None
    try:
        return cls(**values)
    except (ValueError, HeadraceError) as error:
        wrong.append(str(error))
        return None


def _parse(kind: Any, text: str, source: str, wrong: list[str]) -> object:
    try:
        return parse_value(kind, text)
    except ValueError as error:
        wrong.append(f"{source}: {error}")
        return None


def parse_value(kind: Any, text: str) -> object:
    """
    ``text`` as the type ``kind``: int, float, str, bool, Endpoint, Path, Literal, Enum, tuple[X, ...], X | None.

    Raises:
        ValueError: with what would be allowed.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if text.strip() == "":
            if type(None) in args:
                return None
            raise ValueError("may not be empty")
        return parse_value(next(a for a in args if a is not type(None)), text)
    if origin is tuple:
        return tuple(parse_value(args[0], item.strip()) for item in text.split(",") if item.strip())
    if origin is Literal:
        if text not in args:
            raise ValueError(f"takes {', '.join(map(str, args))}, not {text[:60]!r}")
        return text
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, text)
    simple = _PARSERS.get(getattr(kind, "__supertype__", kind))
    assert simple is not None, f"settings cannot have the type {kind}"
    return simple(text)


def _enum(kind: type[Enum], text: str) -> Enum:
    for member in kind:
        if str(member.value) == text:
            return member
    raise ValueError(f"takes {', '.join(str(m.value) for m in kind)}, not {text[:60]!r}")


def _bool(text: str) -> bool:
    lower = text.strip().lower()
    if lower not in _TRUE | _FALSE:
        raise ValueError(f"takes true or false, not {text[:60]!r}")
    return lower in _TRUE


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"takes a whole number, not {text[:60]!r}") from None


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"takes a number, not {text[:60]!r}") from None


_PARSERS: Final[Mapping[Any, Callable[[str], object]]] = {
    int: _number,
    float: _real,
    str: str,
    bool: _bool,
    Endpoint: Endpoint.parse,
    Path: Path,
}


def _as_row(option: Option) -> dict[str, str | None]:
    default = _format_default(option.default).removeprefix(", default ")
    doc = " ".join(_doc_lines(option)).strip()
    return {"name": option.name, "type": type_name(option.type), "default": default or None, "documentation": doc}


def _doc_lines(option: Option) -> list[str]:
    bounds = takes(option.declared)
    lines = [line.strip() for line in option.doc.splitlines() if line.strip()]
    return [*lines, f"Takes {bounds}."] if bounds else lines


def _help(cls: type, service: str, options: list[Option]) -> str:
    summary = (cls.__doc__ or "").strip()
    lines = [summary, "", "Settings, as options or environment variables; options win.", ""]
    for option in options:
        lines.append(
            f"  {option.flag}  ({option.variable(service)}, {type_name(option.type)}{_format_default(option.default)})"
        )
        lines += [f"      {line}" for line in _doc_lines(option)]
    return "\n".join(lines)


def type_name(kind: Any) -> str:
    """The type ``kind`` of a setting, for people."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return type_name(next(a for a in args if a is not type(None)))
    if origin is tuple:
        return f"list of {type_name(args[0])}, with commas"
    if origin is Literal:
        return "|".join(map(str, args))
    if kind is Endpoint:
        return "host:port"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(m.value) for m in kind)
    return str(getattr(kind, "__name__", kind)).lower()


def _format_default(default: object) -> str:
    if default is dataclasses.MISSING:
        return ", must be given"
    if default is None or default == ():
        return ""
    if isinstance(default, tuple):
        return f", default {','.join(map(str, default))}"
    if isinstance(default, Enum):
        return f", default {default.value}"
    return f", default {default}"
