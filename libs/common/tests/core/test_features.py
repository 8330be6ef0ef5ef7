"""The table of feature levels, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.features import FEATURES, HIGHEST, OWNER_TIMES, attainable, list_features, too_old
from headrace_common.core.image import EMPTY_IMAGE


def test_every_level_up_to_the_highest_brings_something() -> None:
    assert all(list_features(level) for level in range(1, HIGHEST + 1))
    assert [f for level in range(HIGHEST + 1) for f in list_features(level)] == list(FEATURES), "in order, each once"


def test_names_are_one_word_each_and_sentences_say_what_happens() -> None:
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
    assert all(feature.name and " " not in feature.name for feature in FEATURES)
    assert all(len(feature.brings.split()) > 3 for feature in FEATURES)


@given(st.lists(st.integers(0, 9), max_size=8))
def test_a_cluster_rises_as_far_as_all_nodes_know(levels: list[int]) -> None:
    level = attainable(levels)
    assert all(known >= level for known in levels)
    assert level == 0 if not levels else level in levels


def test_a_refusal_names_both_numbers_and_what_to_do() -> None:
    text = str(too_old("broker-1", 3, 7))
    assert "up to 3" in text
    assert "level 7" in text
    assert text.endswith("start the newer version again")


def test_the_image_says_whether_a_feature_may_be_used() -> None:
    assert not EMPTY_IMAGE.has(OWNER_TIMES)
    assert replace(EMPTY_IMAGE, feature_level=OWNER_TIMES.level).has(OWNER_TIMES)
