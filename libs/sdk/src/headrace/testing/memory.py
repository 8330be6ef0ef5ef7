"""The name under which programs know ``MemoryBackend``; it is in the package ``headrace-lab``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_lab.memory import MemoryBackend

__all__ = ["MemoryBackend"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headrace.testing.memory' has no attribute {name!r}")
    from headrace.testing import lab_package

    return getattr(lab_package("memory"), name)
