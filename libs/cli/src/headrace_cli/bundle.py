"""
One file with what somebody needs who looks for the cause of a fault: bounded, without secrets. Pure but for ``write``.

What goes in is asked for by ``bundle_parts``; here it is cut to size, secrets are cut out, and what could not be had is
named in ``manifest.json``, so that a bundle of a broken cluster is as good as it can be.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from headrace_common.core.credential_forms import cut_credentials, sounds_secret
from headrace_common.core.errors import HeadraceError
from headrace_common.core.secret import SHOWN

PART_BYTES_MAX: Final = 4 << 20
BUNDLE_BYTES_MAX: Final = 64 << 20
"""Before compression; text becomes a tenth of it or less."""
_SECRET_TEXT: Final = re.compile(
    r"(?i)([\w.-]*(?:passw(?:or)?d|secret|token|credential|api.?key|jaas\.config|authorization)[\w.-]*)"
    r"""(["']?\s*[:=]\s*["']?)((?:bearer|basic)\s+)?([^\s"',;}\]]+)"""
)


def without_secrets(data: Any) -> Any:
    """Plain data with the values of all names that sound like secrets cut out, texts within texts too."""
    if isinstance(data, Mapping):
        # A setting is a row with its name and value; elsewhere the name is the key.
        row = isinstance(data.get("name"), str) and sounds_secret(data["name"])
        return {
            key: SHOWN
            if value not in (None, "") and (sounds_secret(str(key)) or (row and key == "value"))
            else without_secrets(value)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [without_secrets(item) for item in data]
    return text_without_secrets(data) if isinstance(data, str) else data


def text_without_secrets(text: str) -> str:
    """A log or another text, with what is assigned to names that sound like secrets cut out, and credentials."""
    return _SECRET_TEXT.sub(lambda m: f"{m[1]}{m[2]}{SHOWN}", cut_credentials(text))


class Bundle:
    """Gathers parts, each of which may fail by itself."""

    def __init__(self, part_bytes_max: int = PART_BYTES_MAX, bundle_bytes_max: int = BUNDLE_BYTES_MAX) -> None:
        self._part_bytes_max = part_bytes_max
        self._left = bundle_bytes_max
        self._parts: dict[str, bytes] = {}
        self.missing: dict[str, str] = {}
        """What could not be had, and why."""
        self.cut: dict[str, int] = {}
        """Of which only the end is there, and how many bytes it had."""

    @property
    def names(self) -> list[str]:
        """What is in it."""
        return list(self._parts)

    def data(self, name: str, ask: Callable[[], Any]) -> None:
        """What ``ask`` gives, as JSON."""
        self._add(name, lambda: json.dumps(without_secrets(ask()), indent=1, default=str))

    def text(self, name: str, read: Callable[[], str]) -> None:
        """What ``read`` gives; of a long one the end."""
        self._add(name, lambda: text_without_secrets(read()))

    def _add(self, name: str, ask: Callable[[], str]) -> None:
        try:
            content = ask().encode("utf-8", "backslashreplace")
        except (HeadraceError, OSError, ValueError) as error:
            self.missing[name] = f"{type(error).__name__}: {error}"
            return
        if len(content) > self._part_bytes_max:
            self.cut[name] = len(content)
            content = content[-self._part_bytes_max :]
        if len(content) > self._left:
            self.missing[name] = f"left out: the bundle is full, it had {len(content)} bytes"
            return
        self._left -= len(content)
        self._parts[name] = content

    def write(self, path: Path, root: str, now_s: int) -> int:
        """
        Make the file, for its owner alone; its size.

        Raises:
            FileExistsError, OSError: it cannot be made.
        """
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            self.write_to(file, root, now_s)
        return path.stat().st_size

    def write_to(self, out: IO[bytes], root: str, now_s: int) -> None:
        """The same into what is open, a pipe too."""
        manifest = {"parts": {n: len(c) for n, c in self._parts.items()}, "missing": self.missing, "cut": self.cut}
        parts = {"manifest.json": json.dumps(manifest, indent=1).encode(), **self._parts}
        with tarfile.open(fileobj=out, mode="w|gz") as tar:
            for name, content in parts.items():
                info = tarfile.TarInfo(f"{root}/{name}")
                info.size, info.mtime, info.mode = len(content), now_s, 0o600
                tar.addfile(info, io.BytesIO(content))
