"""Patterns: whole names, linear time, and every bad one a typed error."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import InvalidRegularExpression
from headrace_coordinator.adapters.re2_patterns import COMPILED_MAX, PATTERN_CHARACTERS_MAX, Re2Patterns


def test_matches_whole_names_only() -> None:
    names = ["orders", "orders-eu", "old-orders", "payments"]
    assert Re2Patterns().find_matching("orders(-.*)?", names) == {"orders", "orders-eu"}


@pytest.mark.parametrize(
    "pattern",
    ["", "(", "a{1001}", "(a{999}){999}", "(?=a)", r"(a)\1", "a" * (PATTERN_CHARACTERS_MAX + 1), "\ud800", "[z-a]"],
)
def test_what_cannot_be_read_is_a_typed_error(pattern: str) -> None:
    patterns = Re2Patterns()
    with pytest.raises(InvalidRegularExpression) as error:
        patterns.check(pattern)
    assert len(str(error.value)) < 400
    with pytest.raises(InvalidRegularExpression):
        patterns.find_matching(pattern, ["a"])


def test_what_python_would_take_for_ever_over_is_quick() -> None:
    assert Re2Patterns().find_matching("(a|a|aa)*b", ["a" * 249]) == frozenset()


def test_forgets_patterns_that_were_not_used_lately() -> None:
    patterns = Re2Patterns()
    for number in range(2 * COMPILED_MAX):
        assert patterns.find_matching(f"t{number}", [f"t{number}", "t"]) == {f"t{number}"}
    assert patterns.find_matching("t0", ["t0"]) == {"t0"}
