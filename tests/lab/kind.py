"""A kind of world: how one seed of it is played, and the known bugs that it has to find."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

Mutant = Callable[[], Sequence[Any]]
"""Makes ``unittest.mock`` patches that put a known bug into the product."""


def seeds_for(mutant: str, found: Mapping[str, int], many: int) -> list[int]:
    """The first ``many`` seeds, and before them one that found the mutant earlier, if one is known."""
    return [*([found[mutant]] if mutant in found else []), *range(many)]


@dataclass(frozen=True)
class Outcome:
    """Of one seed."""

    problems: Sequence[str]
    """What did not hold; the first word says which kind of thing."""
    story: Sequence[str]
    """What befell the cluster, in order."""
    steps: int
    """Delivered messages, timers that fired, and disk completions."""
    seconds: float
    """Virtual ones."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What happened how often."""


@dataclass(frozen=True)
class Kind:
    """See the module's text."""

    play: Callable[[int], Coroutine[Any, Any, Outcome]]
    mutants: Mapping[str, Mutant] = field(default_factory=dict)
    rare: Collection[str] = ()
    """Mutants that take so many seeds that only the long form looks for them."""
    found: Mapping[str, int] = field(default_factory=dict)
    """A seed that found the mutant before: it is played first, for most changes leave histories as they are."""
    share: int = 1
    """One of so many seeds."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Of some counts a bound that each seed is to exceed: a world in which nothing happens finds nothing."""

    @contextmanager
    def mutated(self, name: str | None) -> Iterator[None]:
        """Everything in this process runs with the mutant's bug; None: without any."""
        with ExitStack() as stack:
            for each in () if name is None else self.mutants[name]():
                stack.enter_context(each)
            yield
