"""The settings of a process's audit. Without any it writes none, and loads nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace_common.core.bounds import check, setting

TOPIC: Final = "topic"
FILE: Final = "file"
STDOUT: Final = "stdout"
_WAYS: Final = (TOPIC, FILE, STDOUT)


@dataclass(frozen=True)
class AuditConfig:
    """Where a process writes down who did what, and what happens when it cannot."""

    to: tuple[str, ...] = ()
    """Where events of the audit go, with commas: topic (the topic __audit), file (in audit_dir), stdout. Without it
    nothing is written."""
    dir: Path | None = None
    """Directory of the audit, for file and topic: a directory of this process's own is made in it, with files that are
    on disk before a change is answered. Those of topic are deleted once the topic has them."""
    on_full: str = setting("refuse", choices=("refuse", "drop"))
    """What happens to administration (topics, configs, groups, elections, ...) while the audit cannot be written:
    refuse, or drop: it is done, and its events are lost and counted. Changes of access are always refused."""
    file_bytes_max: int = setting(256 << 20, low=1 << 20)
    """What the files of file may take, in bytes; the oldest are deleted."""

    def __post_init__(self) -> None:
        unknown = [way for way in self.to if way not in _WAYS]
        check(
            self,
            (not unknown, f"audit_to takes {', '.join(_WAYS)}, not {', '.join(way[:40] for way in unknown)}"),
            (
                self.dir is not None or not {TOPIC, FILE} & set(self.to),
                "audit_to topic and file need audit_dir: the directory where events are kept until the topic has them",
            ),
        )

    @property
    def on(self) -> bool:
        """Whether anything is written."""
        return bool(self.to)
