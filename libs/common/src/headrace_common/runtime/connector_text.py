"""
The configuration of a connector as text: flat, or as Kafka Connect takes it; and what another one changes. For the
command, for workers and for Spark jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from headrace_common.core.errors import InvalidConfig

TAKES: Final = "YAML or JSON: name, connector.class and settings, or Kafka's {name, config}"


def parse_connector(text: str, file: str) -> dict[str, str]:
    """
    The configuration in the text of a file, as Kafka has it: texts by key.

    Raises:
        InvalidConfig: the file has something else in it.
    """
    data = _parse(text, file)
    if not isinstance(data, dict):
        raise _wrong(file, f"it holds {type(data).__name__}, not keys and values")
    inner = data.get("config")
    if isinstance(inner, dict):
        more = sorted(set(data) - {"name", "config"})
        if more:
            raise _wrong(file, f"beside name and config there is {more[0]}; settings are in config")
        if "name" in data and inner.setdefault("name", data["name"]) != data["name"]:
            raise _wrong(file, f"it has two names, {data['name']} and {inner['name']}")
        data = inner
    return {
        _whole(file, "a key", str(key)): _whole(file, str(key), _value(file, str(key), value))
        for key, value in data.items()
        if value is not None
    }


def difference(before: Mapping[str, str] | None, after: Mapping[str, str]) -> tuple[str, list[dict[str, str | None]]]:
    """
    What is to be done: ``create``, ``change`` or ``none``; and of each key that differs, by name, ``key``, ``before``
    and ``after``. Of a new connector without its name.
    """
    known = {"name": after.get("name")} if before is None else before
    changes = [
        {"key": key, "before": known.get(key), "after": after.get(key)}
        for key in sorted({**known, **after})
        if known.get(key) != after.get(key)
    ]
    return "create" if before is None else "change" if changes else "none", changes


def _parse(text: str, file: str) -> Any:
    import yaml

    from headrace_common.runtime.once_yaml import OnceLoader

    try:
        return yaml.load(text, OnceLoader)  # JSON is YAML, but for tabs
    except (yaml.YAMLError, RecursionError) as error:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise _wrong(file, " ".join(str(error).split()) or "it is nested too deeply") from None


def _value(file: str, key: str, value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(item, str | int | float) for item in value):
            return ",".join(_value(file, key, item) for item in value)
    raise _wrong(file, f"{key} is no text, number, true, false or list of these: keys are flat, with dots")


def _whole(file: str, what: str, text: str) -> str:
    """YAML reads a character that JSON writes as two escapes as two halves."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _wrong(file, f"{what!a} has half of a character, which is no text") from None


def _wrong(file: str, what: str) -> InvalidConfig:
    return InvalidConfig(f"{file}: {what}")
