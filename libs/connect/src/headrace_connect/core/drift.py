"""What becomes of a field that the table of a sink does not have, or not so: the setting ``drift`` of sinks."""

from __future__ import annotations

from enum import StrEnum


class Drift(StrEnum):
    """See the settings of each sink."""

    ADD = "add"
    STRICT = "strict"
    FAIL = "fail"
    IGNORE = "ignore"
