"""Versions of a function's state, as programs name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.state.lifting import Lift, Lifting
from headrace_streams.core.state.objects import Value
from headrace_streams.dsl.names import check_function, is_count
from headrace_streams.dsl.where import where
from headrace_streams.plan.compare import LIFTED, VERSION


@dataclass(frozen=True, slots=True)
class Versioned:
    """State of ``process`` that had other values in an earlier version of the program."""

    values: Mapping[str, Value]
    version: int = 1
    migrate: Mapping[int, Lift] = field(default_factory=dict)

    @property
    def form(self) -> dict[str, str]:
        """What the form of the store says of it."""
        form = {VERSION: str(self.version)} if self.version > 1 else {}
        return {**form, LIFTED: str(min(self.migrate))} if self.migrate else form

    def lifting(self, what: str) -> Lifting:
        """How older values become these; ``what`` is the node, for messages."""
        return Lifting(self.version, self.migrate, what)


def versioned(values: Mapping[str, Value], *, version: int, migrate: Mapping[int, Lift] | None = None) -> Versioned:
    """
    State of ``process`` that had other values in an earlier version of the program: ``state=versioned({"seconds":
    value(float)}, version=2, migrate={1: to_seconds})``.

    Args:
        version: of these values. State without ``versioned`` is of version 1.
        migrate: by the version before: a function that gets what a key has as a dict, without values that it never had,
            and gives what it has in the next version. It is called when the key is read.
    """
    what = f"versioned ({where()})"
    steps = {} if migrate is None else migrate
    if not is_count(version):
        raise NotAllowed(f"{what}: version is {version!r:.60}; give a whole number: 1 is the first")
    if not isinstance(steps, Mapping):
        raise NotAllowed(f"{what}: migrate is {migrate!r:.100}; write for example migrate={{1: FUNCTION}}")
    for of, function in steps.items():
        check_function(function, f"{what}: migrate= of version {of!r:.60}")
    if len(steps) >= version or sorted(steps, key=str) != sorted(range(version - len(steps), version), key=str):
        raise NotAllowed(
            f"{what}: migrate= lifts {', '.join(map(repr, steps))}, and version is {version}: give a function for each "
            "version from the oldest one to that before it"
        )
    return Versioned(values, version, steps)
