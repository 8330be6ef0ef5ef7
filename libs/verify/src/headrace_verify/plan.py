"""What ``headrace verify run`` is to do, all of it decided before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import InvalidConfig

EVENTS_MAX: Final = 200_000
"""Operations and records read in the history of one round; then it is judged, and forgotten. Below 300 MiB in all."""
RATE_MAX: Final = 2_000.0
KEYS_MAX: Final = 1_000
SETTLE_S: Final = 200.0
KINDS: Final = ("plain", "plain", "batch", *("assign", "subscribe", "group", "copier") * 2)
"""What each process of the load does, see ``load.py``."""
PACED: Final = sum(kind not in ("group", "copier") for kind in KINDS)
"""Processes that share the rate; members of groups follow what the others write."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    servers: Sequence[str]
    id: str
    """Of the run: letters and digits."""
    seconds: float
    """How long the load runs, in all rounds."""
    prefix: str = "headrace-verify"
    """Topics, groups and transactional ids begin with it and the id."""
    keys: int = 6
    """Partitions of each topic."""
    rate: float = 100.0
    """Operations a second: sends, batches, polls and transactions."""
    replicas: int = 3
    min_in_sync: int = 2
    seed: int = 0
    keep: bool = False
    """Leave the topics there."""
    settle_s: float = SETTLE_S
    """How long the cluster may take to serve all again when the load has ended."""
    events_max: int = EVENTS_MAX

    def __post_init__(self) -> None:
        wrong = [
            f"{name} takes a number from {low:g} to {high:g}, not {value:g}"
            for name, value, low, high in (
                ("minutes", self.seconds / 60, 0.01, 60 * 24 * 7),
                ("keys", self.keys, 1, KEYS_MAX),
                ("rate", self.rate, 1, RATE_MAX),
                ("settle", self.settle_s, 1, 3_600),
            )
            if not low <= value <= high
        ]
        if wrong:
            raise InvalidConfig("; ".join(wrong))

    @property
    def stem(self) -> str:
        """How all names of the run begin."""
        return f"{self.prefix}-{self.id}-"

    def names(self, number: int) -> Names:
        return Names(f"{self.stem}{number}")

    def as_row(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "id": self.id,
            "minutes": self.seconds / 60,
            "topics": f"{self.names(1).log}, {self.names(1).copies}; two more with each round",
            "partitions": self.keys,
            "replication_factor": self.replicas,
            "min_insync_replicas": self.min_in_sync,
            "operations_per_second": self.rate,
            "processes": ", ".join(f"{KINDS.count(kind)} {kind}" for kind in dict.fromkeys(KINDS)),
            "history_entries_per_round_max": self.events_max,
            "seed": self.seed,
            "topics_at_the_end": "kept" if self.keep else "deleted",
        }


@dataclass(frozen=True, slots=True)
class Names:
    """Of what one round makes on the cluster."""

    stem: str

    @property
    def log(self) -> str:
        """The topic that all write to and read."""
        return f"{self.stem}-log"

    @property
    def copies(self) -> str:
        """The topic that copiers write to."""
        return f"{self.stem}-copies"

    def group(self, kind: str) -> str:
        """Of the members of a kind."""
        return f"{self.stem}-{kind}"
