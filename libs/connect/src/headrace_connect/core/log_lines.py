"""
A line of a host's log says of what it is: ``[NAME 3] INFO logger: text`` is of a task, ``[NAME] …`` of what looks after
the connector. Names are percent-encoded, as in ids. Hosts write such lines; their worker reads them.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from headrace_common.core.ids import in_ids

_TAGGED: Final = re.compile(r"\[([^\[\] ]{1,300})(?: (\d{1,9}))?\] ")


def tag_of(connector: str, task: int | None) -> str:
    """What stands before a line, and ends with a blank; nothing for a connector without a name."""
    if not connector:
        return ""
    return f"[{in_ids(connector)}] " if task is None else f"[{in_ids(connector)} {task}] "


def tagged(tag: str, text: str) -> str:
    """Each line of ``text``, without its end, behind ``tag``."""
    return "\n".join(tag + line for line in text.split("\n")) if tag else text


def read_tag(line: str) -> tuple[str | None, int | None, str]:
    """Connector and task, where a line says them, and what stands behind that."""
    found = _TAGGED.match(line)
    if found is None:
        return None, None, line
    name, task = found.groups()
    return unquote(name), None if task is None else int(task), line[found.end() :]
