"""Quantiles and distinct values in little room, against all values."""

from __future__ import annotations

import math
import random
import sys
from typing import Any

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_streams.core.operators import sketches

numbers = st.lists(st.floats(-1e9, 1e9) | st.integers(-5, 5).map(float) | st.just(math.inf), min_size=1, max_size=40)


def kept(state: Any) -> Any:
    """As it is after a restart."""
    return ormsgpack.unpackb(
        ormsgpack.packb(state, option=ormsgpack.OPT_NON_STR_KEYS), option=ormsgpack.OPT_NON_STR_KEYS
    )


def quantiles(values: list[float]) -> Any:
    state = sketches.no_quantiles()
    for value in values:
        state = kept(sketches.take_number(state, value))
    return state


@settings(max_examples=60)
@given(values=numbers, share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
def test_a_quantile_is_near_the_value_of_its_rank(values: list[float], share: float) -> None:
    exact = sorted(values)[math.floor(share * (len(values) - 1))]
    found = sketches.quantile_of(quantiles(values), share)
    assert found == pytest.approx(exact, rel=sketches.ACCURACY * 1.001, abs=0)


@settings(max_examples=30)
@given(one=numbers, other=numbers)
def test_quantiles_of_both(one: list[float], other: list[float]) -> None:
    before = quantiles(other)
    assert sketches.add_quantiles(quantiles(one), before) == quantiles([*one, *other])
    assert before == quantiles(other), "that one is as it was"


def test_quantiles_of_nothing_of_nan_and_of_the_least_number() -> None:
    assert sketches.quantile_of(sketches.no_quantiles(), 0.5) is None
    assert sketches.quantile_of(quantiles([math.nan]), 0.5) is None
    assert sketches.quantile_of(quantiles([-math.inf, 5e-324]), 0) == -math.inf
    assert sketches.quantile_of(quantiles([0.0, -0.0]), 0.5) == 0
    largest = sys.float_info.max
    assert sketches.quantile_of(quantiles([largest]), 1) == pytest.approx(largest, rel=sketches.ACCURACY * 1.001)
    assert sketches.quantile_of(quantiles([5e-324]), 1) == pytest.approx(0, abs=1e-323)


def test_a_copy_changes_apart() -> None:
    state = quantiles([1.0])
    sketches.take_number(sketches.copy_quantiles(state), 5.0)
    assert state == quantiles([1.0])
    known = distinct([1])
    sketches.take_value(sketches.copy_distinct(known), 2)
    assert sketches.distinct_of(known) == 1


def distinct(values: list[Any]) -> Any:
    state: Any = {}
    for value in values:
        state = sketches.take_value(state, value)
    return kept(state)


anything = st.integers(-9, 9) | st.text(max_size=2) | st.floats() | st.booleans() | st.binary(max_size=2)


def same(value: Any) -> Any:
    """What is equal for columns: NaN is one value, and minus zero is zero."""
    if not isinstance(value, float):
        return type(value), value
    return float, "nan" if math.isnan(value) else value + 0.0


@settings(max_examples=30)
@given(st.lists(anything, max_size=40))
def test_few_values_are_counted_exactly(values: list[Any]) -> None:
    assert sketches.distinct_of(distinct(values)) == len({same(value) for value in values})


@pytest.mark.parametrize("count", [256, 257, 1_000, 20_000])
def test_many_values_are_counted_about(count: int) -> None:
    found = sketches.distinct_of(distinct([f"value {number % count}" for number in range(count + 100)]))
    assert found == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize(("one", "other"), [(10, 10), (10, 900), (900, 10), (900, 900), (200, 200)])
def test_distinct_values_of_both_in_any_order(one: int, other: int) -> None:
    first, second = list(range(one)), list(range(one // 2, one // 2 + other))
    mixed = [*first, *second]
    random.Random(1).shuffle(mixed)
    before = distinct(second)
    added = kept(sketches.add_distinct(distinct(first), before))
    assert added == distinct(mixed)
    assert before == distinct(second), "that one is as it was"
