"""What is said of a program that reads for a source elsewhere: a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a job."""

    name: str
    """Of those that ship: ``table_snapshot``."""
    arguments: Sequence[str]
    """Beside those that say which cluster and which connector."""


@dataclass(frozen=True, slots=True)
class JobState:
    """How it is."""

    text: str
    """For people: which one, and what it does."""
    ended: bool = False
    """It does nothing any more: it is done, has failed, or was deleted."""


class JobFailed(Exception):
    """A job cannot be run, or has ended and not done its work."""
