"""``header.converter``: what transforms put into headers, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from headrace_connect.converters import ALIASES, make_converter
from headrace_connect.core.halving import Unfit
from headrace_connect.core.options import InvalidOptions, Problem, near

KEY: Final = "header.converter"
SIMPLE: Final = "simple"
NAMES: Final = (SIMPLE, "string", "json", "bytes")
_SIMPLE_CLASSES: Final = ("org.apache.kafka.connect.storage.SimpleHeaderConverter", "SimpleHeaderConverter")


def make_header_writer(config: Mapping[str, str], simple: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """
    What makes header values of a column; it raises ``Unfit`` for what the converter does not take.

    Args:
        simple: the converter ``simple``.

    Raises:
        InvalidOptions: has everything that is wrong.
    """
    given = config.get(KEY, SIMPLE)
    name = SIMPLE if given in _SIMPLE_CLASSES else ALIASES.get(given, given)
    if name == SIMPLE:
        stray = [key for key in config if key.startswith(f"{KEY}.")]
        if stray:
            raise InvalidOptions(
                [Problem(stray[0], f"{stray[0][:80]} is not a setting of converter simple; it has none")]
            )
        return simple
    if name not in NAMES:
        message = f"{KEY}: there is no converter of headers {given[:80]!r}{near(given, NAMES)}"
        raise InvalidOptions([Problem(KEY, message)])
    converter = make_converter(config, "header")

    def write(column: Any) -> Any:
        written = converter.write("", column, {})
        if written.failed:
            message = next(iter(written.failed.values()))
            raise Unfit(f"header: {message}", np.isin(np.arange(len(column)), list(written.failed)))
        return written.values

    return write
