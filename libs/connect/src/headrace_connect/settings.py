"""
Settings of a connector: a frozen dataclass, read from a mapping of texts as Kafka Connect's are.

A field ``poll_s`` is the key ``poll.s``, unless ``setting(key=...)`` says another. Its docstring is its documentation.
From the dataclass follow the description (the fields of Kafka's ``ConfigDef``), the check, which names every wrong key
at once, and the instance.

A value may refer to a secret: ``${file:PATH:KEY}``, ``${dir:DIRECTORY:FILE}``, ``${env:NAME}``, alone or within a text.
``read_settings`` puts the secrets in; before that there are only the references, and they are all that is ever shown.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from types import NoneType
from typing import Any, Final, TypeVar, get_args

from headrace_common.core.bounds import find_problem, takes
from headrace_common.core.errors import HeadraceError, InvalidConfig
from headrace_common.runtime.docs import field_docs
from headrace_common.runtime.env import parse_value, type_name
from headrace_connect.core.options import Problem
from headrace_connect.secrets import Secret, Secrets, find_reference_problem, has_reference

T = TypeVar("T")
_SECRET_KEY: Final = re.compile(
    r"(^|[._-])(password|passwd|passphrase|pwd|secret|secrets|token|credential|credentials|api[._-]?key|"
    r"private[._-]?key|access[._-]?key|secret[._-]?key)$"
)
_SHOWN_CHARS_MAX: Final = 80


class Importance(StrEnum):
    """As in Kafka."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class ValueType(StrEnum):
    """Kafka's names of what a setting takes."""

    STRING = "STRING"
    INT = "INT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    LIST = "LIST"
    PASSWORD = "PASSWORD"


def setting(
    default: Any = MISSING,
    *,
    key: str | None = None,
    prefix: str | None = None,
    importance: Importance | None = None,
    group: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """
    A field of settings.

    Args:
        default: MISSING: it must be given.
        key: its name for users; None: the field's name with dots for underscores.
        prefix: the field is a ``Mapping[str, str]`` of all keys that begin so, without the prefix; it has no key.
        importance: None: high where it must be given, else medium.
        low, high: bounds of a number, inclusive.
        choices: the words it takes; for a ``Literal`` or an enum they are known.
    """
    metadata = {"key": key, "prefix": prefix, "importance": importance, "group": group}
    bounds = {"low": low, "high": high, "choices": choices}
    if prefix is not None:
        return dataclasses.field(default_factory=dict, metadata={**metadata, **bounds})
    return dataclasses.field(default=default, metadata={**metadata, **bounds})


@dataclass(frozen=True, slots=True)
class Definition:
    """What is known of one setting: the fields of Kafka's ``ConfigDef``."""

    key: str
    """With dots. Of a family of keys: their prefix."""
    type: ValueType
    required: bool
    default: str | None
    """As a user would write it; None: there is none."""
    importance: Importance
    documentation: str
    group: str
    order: int
    """From 1, among those of its group."""
    choices: tuple[str, ...]
    """The words it takes; empty: others too."""
    family: bool = False
    """Whether ``key`` is the prefix of any number of keys."""


@dataclass(frozen=True, slots=True)
class _Declared:
    """A field, and what was found out about it."""

    field: dataclasses.Field[Any]
    hint: Any
    key: str
    prefix: str | None

    @property
    def default(self) -> Any:
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return self.field.default

    @property
    def plain(self) -> Any:
        """The hint without ``| None``."""
        inner = [kind for kind in get_args(self.hint) if kind is not NoneType]
        return inner[0] if NoneType in get_args(self.hint) else self.hint

    @property
    def secret(self) -> bool:
        return self.plain is Secret


def describe(*classes: type) -> tuple[Definition, ...]:
    """Every setting of these dataclasses, in their order."""
    made: list[Definition] = []
    for cls in classes:
        docs = field_docs(cls)
        for declared in _declared(cls):
            group = declared.field.metadata.get("group") or ""
            order = 1 + sum(other.group == group for other in made)
            made.append(_define(declared, docs.get(declared.field.name, ""), group, order))
    return tuple(made)


def find_problems(
    given: Mapping[str, str], *classes: type, kind: str = "connector", allow_plain_secrets: bool = False
) -> tuple[Problem, ...]:
    """
    All that is wrong with ``given`` as the settings of these dataclasses together; nothing is resolved for it.

    Args:
        kind: whose settings they are, for messages: "sql-sink".
    """
    problems = [*_unknown(given, classes, kind)]
    for cls in classes:
        problems += _read(cls, given, None)[1]
    if not allow_plain_secrets:
        problems += _plain_secrets(given, classes)
    return tuple(problems)


def read_settings(cls: type[T], given: Mapping[str, str], secrets: Secrets) -> T:
    """
    The instance of ``cls``, with secrets in the place of references. Keys that ``cls`` does not declare are left out.

    Raises:
        InvalidConfig: all that is wrong, one line each; shows no secret.
    """
    made, problems = _read(cls, given, secrets)
    if problems:
        raise invalid(problems)
    assert isinstance(made, cls), "without problems there is an instance"
    return made


def invalid(problems: Sequence[Problem]) -> InvalidConfig:
    """One error for all of them."""
    lines = (f"  {problem.message}" for problem in problems)
    return InvalidConfig("\n".join(["the configuration cannot be used:", *lines]))


@contextmanager
def blame(key: str) -> Iterator[None]:
    """
    Around a check of one value that does not know whose it is.

    Raises:
        ValueError: what the check said, behind ``key``.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def looks_secret(key: str) -> bool:
    """Whether a key's name says that its value is a secret."""
    return _SECRET_KEY.search(key.lower()) is not None


def near(word: str, known: Sequence[str]) -> str:
    """``; is X meant?``, or nothing."""
    found = get_close_matches(word[:_SHOWN_CHARS_MAX], known, n=1, cutoff=0.7)
    return f"; is {found[0]} meant?" if found else ""


def _declared(cls: type) -> list[_Declared]:
    hints = typing.get_type_hints(cls)
    made: list[_Declared] = []
    for field in dataclasses.fields(cls):
        key = field.metadata.get("key") or field.name.replace("_", ".")
        made.append(_Declared(field, hints[field.name], key, field.metadata.get("prefix")))
    return made


def _define(declared: _Declared, doc: str, group: str, order: int) -> Definition:
    field = declared.field
    family = declared.prefix is not None
    required = declared.default is MISSING
    importance = field.metadata.get("importance") or (Importance.HIGH if required else Importance.MEDIUM)
    bounds = takes(field)
    lines = [" ".join(doc.split())] + ([f"Takes {bounds}."] if bounds else [])
    return Definition(
        key=declared.prefix if declared.prefix is not None else declared.key,
        type=ValueType.STRING if family else _value_type(declared),
        required=required,
        default=None if required or family else _as_text(declared.default),
        importance=importance,
        documentation=" ".join(line for line in lines if line),
        group=group,
        order=order,
        choices=_choices(declared),
        family=family,
    )


def _value_type(declared: _Declared) -> ValueType:
    plain = declared.plain
    if declared.secret:
        return ValueType.PASSWORD
    if typing.get_origin(plain) is tuple:
        return ValueType.LIST
    if plain is int:
        high = declared.field.metadata.get("high")
        return ValueType.LONG if high is None or high >= 2**31 else ValueType.INT
    simple: Mapping[Any, ValueType] = {bool: ValueType.BOOLEAN, float: ValueType.DOUBLE}
    return simple.get(plain, ValueType.STRING)


def _choices(declared: _Declared) -> tuple[str, ...]:
    plain = declared.plain
    if typing.get_origin(plain) is typing.Literal:
        return tuple(map(str, get_args(plain)))
    if isinstance(plain, type) and issubclass(plain, Enum):
        return tuple(str(member.value) for member in plain)
    return tuple(declared.field.metadata.get("choices") or ())


def _as_text(value: object) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(str(_as_text(item)) for item in value)
        case Enum():
            return str(value.value)
    return str(value)


def _unknown(given: Mapping[str, str], classes: Sequence[type], kind: str) -> list[Problem]:
    declared = [each for cls in classes for each in _declared(cls)]
    keys = [each.key for each in declared if each.prefix is None]
    prefixes = tuple(each.prefix for each in declared if each.prefix is not None)
    return [
        Problem(key, f"{key[:_SHOWN_CHARS_MAX]} is not a setting of {kind}{near(key, keys)}")
        for key in given
        if key not in keys and not key.startswith(prefixes)
    ]


def _plain_secrets(given: Mapping[str, str], classes: Sequence[type]) -> list[Problem]:
    known = {each.key: each for cls in classes for each in _declared(cls) if each.prefix is None}
    problems: list[Problem] = []
    for key, value in given.items():
        declared = known.get(key)
        secret = declared.secret if declared is not None else looks_secret(key)
        if value and not has_reference(value) and (secret or (looks_secret(key) and _is_text(declared))):
            problems.append(
                Problem(
                    key,
                    f"{key[:_SHOWN_CHARS_MAX]} is a secret and stands here for all to read: refer to it, as in "
                    "${file:PATH:KEY}, ${dir:DIRECTORY:FILE} or ${env:NAME}, or set allow.plain.secrets=true",
                )
            )
    return problems


def _is_text(declared: _Declared | None) -> bool:
    return declared is None or declared.plain is str


def _read(cls: type, given: Mapping[str, str], secrets: Secrets | None) -> tuple[Any, list[Problem]]:
    """
    The instance, if there is nothing wrong and nothing has to be resolved. Without ``secrets``, what refers to one is
    checked for its form alone.
    """
    problems: list[Problem] = []
    values: dict[str, object] = {}
    hidden: dict[str, str] = {}
    for declared in _declared(cls):
        if declared.prefix is not None:
            values[declared.field.name], wrong = _family(declared.prefix, given, secrets)
            problems += wrong
            continue
        text = given.get(declared.key)
        if text is None:
            values[declared.field.name] = declared.default
            if declared.default is MISSING:
                problems.append(Problem(declared.key, f"{declared.key} is missing; {_wanted(declared)}"))
            continue
        try:
            resolved = _resolve(text, secrets)
            if resolved != text:
                hidden[resolved] = text
            if secrets is not None or not has_reference(text):
                values[declared.field.name] = _value(declared, resolved, text)
        except InvalidConfig as error:
            problems.append(Problem(declared.key, f"{declared.key}: {error}"))
    if problems or len(values) < len(dataclasses.fields(cls)):
        return None, problems
    try:
        return cls(**values), []
    except (ValueError, HeadraceError) as error:
        message = str(error)
        for resolved, text in hidden.items():
            message = message.replace(resolved, text) if resolved else message
        return None, [Problem("", message)]


def _family(prefix: str, given: Mapping[str, str], secrets: Secrets | None) -> tuple[dict[str, str], list[Problem]]:
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    for key, text in given.items():
        if key.startswith(prefix):
            try:
                texts[key.removeprefix(prefix)] = _resolve(text, secrets)
            except InvalidConfig as error:
                problems.append(Problem(key, f"{key}: {error}"))
    return texts, problems


def _resolve(text: str, secrets: Secrets | None) -> str:
    """
    With secrets in the place of references; without ``secrets`` only their form is checked.

    Raises:
        InvalidConfig: says which reference is wrong.
    """
    wrong = find_reference_problem(text)
    if wrong is not None:
        raise InvalidConfig(wrong)
    return text if secrets is None else secrets.resolve(text)


def _value(declared: _Declared, resolved: str, text: str) -> object:
    """
    Raises:
        InvalidConfig: what is wrong; shows the reference, not the secret.
    """
    if declared.secret:
        return Secret(resolved)
    try:
        value = parse_value(declared.hint, resolved)
        problem = find_problem(declared.field, value, "it")
    except ValueError as error:
        problem = f"it {error}"
    if problem is None:
        return value
    if has_reference(text):
        raise InvalidConfig(f"what {text} gives does not fit; {_wanted(declared)}")
    raise InvalidConfig(problem)


def _wanted(declared: _Declared) -> str:
    bounds = takes(declared.field)
    if declared.secret or declared.plain is str:
        return f"it takes {bounds or 'a text'}"
    return f"it takes {type_name(declared.hint)}" + (f", {bounds}" if bounds else "")


__all__ = [
    "Definition",
    "Importance",
    "Problem",
    "Secret",
    "Secrets",
    "ValueType",
    "blame",
    "describe",
    "find_problems",
    "invalid",
    "looks_secret",
    "near",
    "read_settings",
    "setting",
]
