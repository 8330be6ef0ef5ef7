"""Policies that decide wrongly, each in one thing: the suite of ``test_policy`` finds every one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from libs.common.tests.core.access import test_policy as suite
from libs.common.tests.kit import access as kit

from headrace_common.core.access import policy
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.policy import Table
from headrace_common.core.access.resources import INTERNAL_PREFIX, Operation
from headrace_common.core.access.state import Access

Patch: TypeAlias = pytest.MonkeyPatch
EXAMPLES = 2_000


class Properties:
    """What a property of ``test_policy`` says, for worlds that are drawn as it draws them."""

    def __init__(self, test: Any, *drawn: Any) -> None:
        self._inner: Callable[..., None] = test.hypothesis.inner_test
        self._drawn = drawn

    def hold(self, examples_max: int) -> None:
        """Raises: AssertionError: for one of so many worlds it is not so."""

        def holds(world: tuple[Any, ...]) -> None:
            self._inner(*world)

        found = settings(
            database=None,  # what is found of a mutant says nothing of the policy
            deadline=None,
            derandomize=True,
            max_examples=examples_max,
            phases=(Phase.generate,),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        found(given(st.tuples(*self._drawn))(holds))()


AGAINST_THE_ORACLE = Properties(
    suite.test_the_policy_decides_as_all_grants_read_one_by_one, kit.accesses, kit.callers, kit.questions
)
PREFIXES = Properties(
    suite.test_prefixes_within_prefixes,
    st.lists(st.text(alphabet="ab\U00030000", min_size=1, max_size=5), max_size=12),
    st.data(),
)
GENERATIONS = Properties(
    suite.test_a_new_generation_forgets_what_was_decided, kit.accesses, kit.accesses, kit.callers, kit.questions
)


def prefix_without_its_own_name(patch: Patch) -> None:
    patch.setattr(policy, "bisect_right", bisect_left)


def prefix_shorter_by_one(patch: Patch) -> None:
    def wide_bits(self: Table, name: str) -> int:
        at = policy.bisect_right(self.starts, name)
        bits = self.every
        if at and name.startswith(self.outer[at - 1][:-1]):
            bits |= self.wide[at - 1]
        return bits & policy._DENIES if name.startswith(INTERNAL_PREFIX) else bits

    patch.setattr(Table, "wide_bits", wide_bits)


def prefix_that_ends_one_later(patch: Patch) -> None:
    patch.setattr(policy, "_after", lambda prefix: prefix[:-1] + chr(ord(prefix[-1]) + 2))


def prefix_that_ends_at_its_own_name(patch: Patch) -> None:
    patch.setattr(policy, "_after", lambda prefix: f"{prefix}\0")


def deny_after_allow(patch: Patch) -> None:
    def allows(bits: int, operation: Operation) -> bool:
        return bits & operation.allowed_by != 0

    patch.setattr(policy, "allows", allows)


def cache_that_stays(name: str) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        def renew(self: Decisions, access: Access) -> None:
            kept = dict(getattr(self, name))
            emptied(self, access)
            getattr(self, name).update(kept)

        emptied = Decisions.renew
        patch.setattr(Decisions, "renew", renew)

    return apply


MUTANTS: dict[str, tuple[Callable[[Patch], None], Properties]] = {
    "a prefix without its own name": (prefix_without_its_own_name, AGAINST_THE_ORACLE),
    "a prefix that is shorter by one": (prefix_shorter_by_one, AGAINST_THE_ORACLE),
    "a prefix that ends one later": (prefix_that_ends_one_later, PREFIXES),
    "a prefix that ends at its own name": (prefix_that_ends_at_its_own_name, PREFIXES),
    "deny after allow": (deny_after_allow, AGAINST_THE_ORACLE),
    "decisions that stay": (cache_that_stays("_decisions"), GENERATIONS),
    "standings that stay": (cache_that_stays("_standings"), GENERATIONS),
    "policies that stay": (cache_that_stays("_policies"), GENERATIONS),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_it_is_found(mutant: str, monkeypatch: Patch) -> None:
    change, properties = MUTANTS[mutant]
    change(monkeypatch)
    with pytest.raises(AssertionError):
        properties.hold(EXAMPLES)


@pytest.mark.parametrize("properties", [AGAINST_THE_ORACLE, PREFIXES, GENERATIONS])
def test_the_policy_itself_passes(properties: Properties) -> None:
    """So that what finds a mutant is the mutant's fault."""
    properties.hold(100)
