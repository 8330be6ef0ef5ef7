"""Keeps values of a configuration out of what a tap has printed: it may print all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace_connect.settings import looks_secret

_CHARS_MIN: Final = 6
"""What is shorter, and has no name of a secret, stays: it would hide half of the words."""


class Redactor:
    """Of one configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        found = {text: name for name, text in _texts("config", config)}
        self._hidden = sorted(found.items(), key=lambda item: len(item[0]), reverse=True)

    def hide(self, text: str) -> str:
        """``text`` with names of settings in the place of their values."""
        for value, name in self._hidden:
            text = text.replace(value, f"[{name}]")
        return text


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every text to hide, and the setting that it is of."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(f"{name}.{key}", one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(name, one)
    elif isinstance(value, str) or (value is not None and looks_secret(name)):
        forms = [str(value), json.dumps(str(value))[1:-1], *str(value).splitlines()]
        for form in forms:
            if len(form) >= _CHARS_MIN or (form.strip() and looks_secret(name)):
                yield name, form
