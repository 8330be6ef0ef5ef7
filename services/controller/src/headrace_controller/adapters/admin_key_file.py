"""The file with the administrator's keys, which whoever made them has put there. Read once, at start, by ``main``."""

from __future__ import annotations

from pathlib import Path

from headrace_common.core.access.api_keys import ApiKey
from headrace_common.core.errors import InvalidConfig
from headrace_controller.core.configured import parse_admin_keys


def read_admin_keys(path: Path | None) -> tuple[ApiKey, ...]:
    """
    The keys of a file; none without one.

    Raises:
        InvalidConfig: it cannot be read, or holds something else.
    """
    if path is None:
        return ()
    try:
        return parse_admin_keys(path.read_text("utf-8"))
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"admin_key_file {path} cannot be read ({type(error).__name__})") from None
    except InvalidConfig as error:
        raise InvalidConfig(f"admin_key_file {path}: {error}") from None
