"""
Breaks the Spark sink or source that a process loads, in the way that ``HEADRACE_MUTANT`` names: the judge must see it.

It is on the path of such applications alone (``mutations.py``). Modules are broken when they are imported, for
importing them here would load them into each Python process of Spark.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def fresh_owner(sink: Any) -> None:
    """Each batch has an owner of its own, so nobody knows what was committed before."""
    claim = sink.SdkSink.claim
    sink.SdkSink.claim = lambda self, owner, number: claim(self, f"{owner}.{number}", number)


def sequence_ignored(sink: Any) -> None:
    """What the owner is told of its last unit is not heeded, and units are numbered anew."""
    claim, commit = sink.SdkSink.claim, sink.SdkSink.commit
    sink.SdkSink.claim = lambda self, owner, number: replace(claim(self, owner, number), last_sequence=-1)
    sink.SdkSink.commit = lambda self, unit: commit(self, replace(unit, sequence=1_000 + unit.epoch))


def commit_in_tasks(sink: Any) -> None:
    """Each task commits what it wrote; the driver has nothing left to do."""
    opened = sink.SdkSink.open

    def commit(self: Any) -> str:
        self._producer.commit_transaction()
        return "committed"

    def no_unit(self: Any, unit: Any) -> bool:
        sink.failpoint("spark.unit.after")
        return True

    sink.SdkWriter.prepare = commit
    sink.SdkSink.open = lambda self, name, epoch: opened(self, name.replace("/", "."), None)
    sink.SdkSink.commit = no_unit


def goes_back(follow: Any) -> None:
    """Each batch begins one record too early."""
    between = follow.ranges_between

    def earlier(start: Any, end: Any) -> Any:
        return between({partition: max(offset - 1, 0) for partition, offset in start.items()}, end)

    follow.ranges_between = earlier


SINK, FOLLOW = "headrace_spark.adapters.sdk_writing", "headrace_spark.core.follow"
MUTANTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "fresh-owner": (SINK, fresh_owner),
    "sequence-ignored": (SINK, sequence_ignored),
    "commit-in-tasks": (SINK, commit_in_tasks),
    "goes-back": (FOLLOW, goes_back),
}


class Breaking(MetaPathFinder):
    """Finds one module, once, and breaks it when it has been loaded."""

    def __init__(self, module: str, mutant: Callable[[Any], None]) -> None:
        self._module, self._mutant = module, mutant

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Of that module."""
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None, fullname
        assert spec.loader is not None, fullname
        execute, mutant = spec.loader.exec_module, self._mutant

        def executed(module: ModuleType) -> None:
            execute(module)
            mutant(module)

        spec.loader.exec_module = executed
        return spec


if os.environ.get("HEADRACE_MUTANT"):
    sys.meta_path.insert(0, Breaking(*MUTANTS[os.environ["HEADRACE_MUTANT"]]))
