"""The Spark jobs that are installed: packages name them as entry points of the group ``headrace.jobs``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace_cli.exits import CommandFailed, ExitCode

GROUP: Final = "headrace.jobs"
GET_THEM: Final = "The package headrace-jobs brings those of Headrace (`make setup` installs it)."


@dataclass(frozen=True, slots=True)
class Job:
    """One that can be run by its name."""

    name: str
    entry: EntryPoint

    @property
    def package(self) -> str:
        """The distribution that brought it, and its version."""
        brought = self.entry.dist
        return f"{brought.name} {brought.version}" if brought is not None else ""

    @property
    def summary(self) -> str:
        """The first line of its package's text, read without running anything of it; empty if there is none."""
        path = source_of(self.entry.module)
        if path is None:
            return ""
        try:
            text = ast.get_docstring(ast.parse(path.read_text()))
        except (OSError, SyntaxError, UnicodeDecodeError):
            return ""
        return (text or "").partition("\n")[0].strip()


def list_jobs(entries: Iterable[EntryPoint] | None = None) -> dict[str, Job]:
    """All of them by name, sorted; of two with one name the first that Python finds, as it runs."""
    jobs: dict[str, Job] = {}
    for entry in entry_points(group=GROUP) if entries is None else entries:
        jobs.setdefault(entry.name, Job(entry.name, entry))
    return dict(sorted(jobs.items()))


def find_job(name: str, jobs: dict[str, Job]) -> Job:
    """
    The one that is meant; ``topic-to-lake`` is ``topic_to_lake``.

    Raises:
        CommandFailed: there is none of that name.
    """
    found = jobs.get(name) or jobs.get(name.replace("-", "_"))
    if found is None:
        there = f"there are {', '.join(jobs)}" if jobs else "none is installed"
        hint = "`headrace job list` says what they do." if jobs else GET_THEM
        raise CommandFailed(f"there is no job {name!r}; {there}", ExitCode.NOT_FOUND, hint)
    return found


def source_of(module: str) -> Path | None:
    """The file of a job's package (of ``lake.job`` that of ``lake``), or of a job that is a module of its own."""
    package = module.rpartition(".")[0] or module
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None and spec.origin.endswith(".py") else None
