"""
Decides what a log line looks like: one JSON object per line on stderr.

Keys: ``ts`` (ISO 8601, UTC, ms), ``level``, ``logger``, ``msg``, ``service``, ``node``, then whatever came as
``extra`` (partition, epoch, topic, ...) and ``error`` with the trace. Called once by each process at its start;
everyone logs through ``logger(__name__)`` or the standard library.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson

LEVELS: Final = ("debug", "info", "warning", "error")

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_NOISY: Final = ("grpc", "asyncio", "uvicorn.access", "opentelemetry", "aetcd")


def logger(name: str) -> logging.Logger:
    """The logger of a module: ``log.info("leader of partition", extra={"partition": 3, "epoch": 7})``."""
    return logging.getLogger(name)


def configure_logs(service: str, node_id: int, level: str, *, stream: TextIO | None = None) -> None:
    """
    Send all log lines of this process to stderr (or ``stream``) as JSON; replaces what was configured before.

    Raises:
        ValueError: ``level`` is not one of ``LEVELS``.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(service, node_id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.raiseExceptions = False  # a closed stderr must not stop the service


class JsonLines(logging.Formatter):
    """One record as one line of JSON; what JSON cannot hold is written as its text."""

    def __init__(self, service: str, node_id: int) -> None:
        super().__init__()
        self._service = service
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            "service": self._service,
            "node": self._node_id,
        }
        for key, value in vars(record).items():
            if key not in _STANDARD and key not in line:
                line[key] = value
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=_as_text, option=_OPTIONS).decode()
        except TypeError:  # numbers above 64 bits, halves of surrogate pairs, nesting without end
            return json.dumps({key: str(value) for key, value in line.items()})


def _as_text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
