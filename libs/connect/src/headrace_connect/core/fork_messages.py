"""
What a worker and a fork server say to each other. The worker orders; the server reports. A message is a packet.

A host is named by the number that the worker has given it, which never comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fork:
    """
    Fork a host. Two descriptors come with it: the host's end of its pipe to the worker, and where its output goes.
    ``HostForked`` or ``HostNotForked`` answers.
    """

    number: int


@dataclass(frozen=True, slots=True)
class ForkServerReady:
    """It has imported what hosts need; comes first, once."""

    pid: int


@dataclass(frozen=True, slots=True)
class HostForked:
    """A host is there. A descriptor comes with it that names its process as long as it is open (``pidfd``)."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class HostNotForked:
    """The system has refused."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class HostEnded:
    """A host has ended, and all that was left of its process group was killed; its process id is free."""

    number: int
    code: int
    """Of ``waitstatus_to_exitcode``: below 0 it was a signal."""


ForkOrder = Fork
ForkReport = ForkServerReady | HostForked | HostNotForked | HostEnded
