"""The levels of this process's loggers, under log4j's words: what ``/admin/loggers`` shows and sets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace_common.runtime.clock import Clock

ROOT: Final = "root"
_LEVELS: Final[Mapping[str, int]] = {
    "OFF": logging.CRITICAL + 10,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG - 5,
    "ALL": 1,
}


@dataclass(frozen=True, slots=True)
class LoggerLevel:
    """How much of a logger is written."""

    level: str
    """Of log4j."""
    changed_ms: int | None = None
    """When it was last set here, since the epoch; None: not since the start."""


class Loggers:
    """All loggers of the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed: dict[str, int] = {}

    def list_levels(self) -> dict[str, LoggerLevel]:
        """Those whose level was set, by name."""
        known = {name: logger for name, logger in _existing().items() if logger.level != logging.NOTSET}
        return {name: self._level(name, known[name]) for name in sorted(known)}

    def find(self, name: str) -> LoggerLevel | None:
        """The level that counts for a logger; None: there is none of this name."""
        logger = _existing().get(ROOT if name.lower() == ROOT else name)
        return None if logger is None else self._level(logger.name, logger)

    def set_level(self, name: str, level: str) -> list[str] | None:
        """
        Set the level of a logger and of all below it; their names, sorted. None: there is no such level.
        """
        number = _LEVELS.get(level.upper())
        if number is None:
            return None
        name = ROOT if name.lower() == ROOT else name
        known = _existing()
        if name != ROOT:
            known = {one: logger for one, logger in known.items() if one.startswith(f"{name}.")}
            known[name] = logging.getLogger(name)
        for one, logger in known.items():
            if logger.level != number:
                logger.setLevel(number)
                self._changed[one] = self._clock.now_ms()
        return sorted(known)

    def _level(self, name: str, logger: logging.Logger) -> LoggerLevel:
        number = logger.getEffectiveLevel()
        word = next((word for word, least in _LEVELS.items() if number >= least), "ALL")
        return LoggerLevel(word, self._changed.get(name))


def _existing() -> dict[str, logging.Logger]:
    made = logging.Logger.manager.loggerDict
    named = {name: logger for name, logger in made.items() if isinstance(logger, logging.Logger)}
    return {**named, ROOT: logging.getLogger()}
