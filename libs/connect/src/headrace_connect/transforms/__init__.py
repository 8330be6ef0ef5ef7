"""
Transforms: Kafka Connect's single message transforms over whole batches, under its names and settings.

``transforms=mask``, ``transforms.mask.type=MaskField$Value``, ``transforms.mask.fields=card``; predicates as in Kafka.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from headrace_connect.core.options import BadOption, InvalidOptions, Option, OptionType, Problem, near, read
from headrace_connect.transforms.cast import Cast
from headrace_connect.transforms.chain import Chain as Chain
from headrace_connect.transforms.chain import Step as Step
from headrace_connect.transforms.chain import Transformed as Transformed
from headrace_connect.transforms.fields import ExtractField, Flatten, HoistField, ReplaceField, ValueToKey
from headrace_connect.transforms.headers import DropHeaders, HeaderFrom, InsertHeader, WriteHeader, simple
from headrace_connect.transforms.insert import InsertField, SetSchemaMetadata
from headrace_connect.transforms.mask import MaskField
from headrace_connect.transforms.port import SIDES
from headrace_connect.transforms.predicates import Filter, HasHeaderKey, RecordIsTombstone, TopicNameMatches
from headrace_connect.transforms.python import PREFIX as PYTHON
from headrace_connect.transforms.python import make_python
from headrace_connect.transforms.routers import RegexRouter, TimestampRouter
from headrace_connect.transforms.timestamps import TimestampConverter

_OF_SIDES: Final[dict[str, Any]] = {
    "Cast": Cast,
    "ExtractField": ExtractField,
    "Flatten": Flatten,
    "HeaderFrom": HeaderFrom,
    "HoistField": HoistField,
    "InsertField": InsertField,
    "MaskField": MaskField,
    "ReplaceField": ReplaceField,
    "SetSchemaMetadata": SetSchemaMetadata,
    "TimestampConverter": TimestampConverter,
    "expr": None,  # see ``_load``
}
_OF_RECORDS: Final[dict[str, Any]] = {
    "DropHeaders": DropHeaders,
    "Filter": Filter,
    "InsertHeader": InsertHeader,
    "RegexRouter": RegexRouter,
    "TimestampRouter": TimestampRouter,
    "ValueToKey": ValueToKey,
}
_PREDICATES: Final[dict[str, Any]] = {
    "HasHeaderKey": HasHeaderKey,
    "RecordIsTombstone": RecordIsTombstone,
    "TopicNameMatches": TopicNameMatches,
}
JAVA: Final = "org.apache.kafka.connect.transforms."
"""Before the names of Kafka's classes; predicates have ``predicates.`` behind it."""
TRANSFORMS: Final = tuple(sorted([*(f"{name}${side}" for name in _OF_SIDES for side in SIDES), *_OF_RECORDS]))
PREDICATES: Final = tuple(sorted(_PREDICATES))
STEPS_MAX: Final = 100
_COMMON: Final = (
    Option("type", "Which one it is."),
    Option("predicate", "Of predicates: for which records it is."),
    Option("negate", "Whether it is for all others.", OptionType.BOOLEAN, False),
)


def make_transforms(config: Mapping[str, str], write_header: WriteHeader = simple) -> Chain:
    """
    The transforms that a connector's configuration names, in order.

    Args:
        config: all of it; only ``transforms``, ``predicates`` and keys below them are looked at.
        write_header: makes header values of columns.

    Raises:
        InvalidOptions: has everything that is wrong.
    """
    problems: list[Problem] = []
    predicates = _predicates(config, problems)
    steps: list[Step] = []
    for name in _names(config, "transforms", problems):
        step = _step(config, name, predicates, problems, write_header)
        if step is not None:
            steps.append(step)
    if problems:
        raise InvalidOptions(problems)
    return Chain(steps)


def options_of(name: str) -> tuple[Option, ...]:
    """
    The settings of a transform or a predicate, with or without ``$Key``, by its name or Java's.

    Raises:
        KeyError: there is none.
    """
    short = name.removeprefix(JAVA).removeprefix("predicates.").partition("$")[0]
    options: tuple[Option, ...] = _load({**_OF_SIDES, **_OF_RECORDS, **_PREDICATES}[short]).options
    return options


def _load(cls: Any) -> Any:
    """A class of the tables above. That of expressions is loaded when it is named: each host would pay for Narwhals."""
    return cls or importlib.import_module(f"{__name__}.expr").Expression


def _names(config: Mapping[str, str], key: str, problems: list[Problem]) -> tuple[str, ...]:
    values = read([Option(key, "", OptionType.LIST, ())], {key: config.get(key, "")}, "", "a connector", problems)
    names: tuple[str, ...] = values[key] if values is not None else ()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.append(Problem(key, f"{key} has {', '.join(twice)} twice"))
    if len(names) > STEPS_MAX:
        problems.append(Problem(key, f"{key} has {len(names)} names; {STEPS_MAX} are the most"))
        return ()
    for given in config:
        if given.startswith(f"{key}.") and not any(given.startswith(f"{key}.{name}.") for name in names):
            stray = given.removeprefix(f"{key}.").partition(".")[0]
            problems.append(Problem(given, f"{given[:80]}: {stray[:40]} is not one of {key}{near(stray, names)}"))
    return tuple(dict.fromkeys(names))


def _predicates(config: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in _names(config, "predicates", problems):
        prefix = f"predicates.{name}."
        cls, _ = _class(config, f"{prefix}type", _PREDICATES, PREDICATES, "predicate", problems)
        made[name] = None
        if cls is None:
            continue
        settings = read([*_COMMON[:1], *cls.options], _own(config, prefix), prefix, cls.__name__, problems)
        if settings is not None:
            made[name] = _create(cls, [settings], prefix, problems)
    return made


def _step(
    config: Mapping[str, str],
    name: str,
    predicates: Mapping[str, Any],
    problems: list[Problem],
    write_header: WriteHeader,
) -> Step | None:
    prefix = f"transforms.{name}."
    own = _own(config, prefix)
    kind = own.get(f"{prefix}type", "")
    cls: Any = None
    side: str | None = None
    if not kind.startswith(PYTHON):
        known = {**_OF_SIDES, **_OF_RECORDS}
        cls, side = _class(config, f"{prefix}type", known, TRANSFORMS, "transform", problems)
    predicate = own.get(f"{prefix}predicate")
    if predicate is not None and predicate not in predicates:
        problems.append(
            Problem(
                f"{prefix}predicate",
                f"{prefix}predicate: {predicate[:40]!r} is not one of predicates{near(predicate, predicates)}",
            )
        )
    if predicate is None and f"{prefix}negate" in own:
        problems.append(Problem(f"{prefix}negate", f"{prefix}negate: there is no {prefix}predicate to negate"))
    if cls is None and not kind.startswith(PYTHON):
        return None
    common = {prefix + option.name for option in _COMMON}
    more = {key.removeprefix(prefix): text for key, text in own.items() if cls is None and key not in common}
    given = {key: text for key, text in own.items() if key.removeprefix(prefix) not in more}
    options = () if cls is None else cls.options
    settings = read([*_COMMON, *options], given, prefix, kind if cls is None else cls.__name__, problems)
    if settings is None:
        return None
    if cls is None:
        transform = _create(make_python, [kind, more], prefix, problems)
    else:
        transform = _create(cls, [settings] if side is None else [settings, side], prefix, problems)
        if isinstance(transform, HeaderFrom | InsertHeader):
            transform.write_header = write_header
    if transform is None:
        return None
    return Step(name, transform, None if predicate is None else predicates.get(predicate), settings["negate"])


def _own(config: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key: text for key, text in config.items() if key.startswith(prefix)}


def _class(
    config: Mapping[str, str],
    key: str,
    known: Mapping[str, Any],
    names: tuple[str, ...],
    what: str,
    problems: list[Problem],
) -> tuple[Any, str | None]:
    """The class that a type names, and the column it is for, if it is for one."""
    given = config.get(key)
    if given is None:
        problems.append(Problem(key, f"{key} is missing; there are: {', '.join(names)}"))
        return None, None
    short = given.removeprefix(JAVA).removeprefix("predicates.")
    name, dollar, side = short.partition("$")
    if name == "expr" and not dollar:
        side, dollar = "Value", "$"
    sided = name in _OF_SIDES
    if name not in known or (not sided and dollar):
        meant = near(name if name in known else short, names)
        problems.append(Problem(key, f"{key}: there is no {what} {given[:80]!r}{meant}"))
        return None, None
    if sided and side not in SIDES:
        problems.append(
            Problem(key, f"{key}: {given[:80]!r} is for keys or for values: write {name}$Key or {name}$Value")
        )
        return None, None
    return _load(known[name]), SIDES[side] if sided else None


def _create(cls: Any, args: list[Any], prefix: str, problems: list[Problem]) -> Any:
    try:
        return cls(*args)
    except BadOption as why:
        key = prefix + why.name
        problems.append(Problem(key, f"{key}: {why}"))
        return None
