"""The names of the package are loaded when they are used, all of them."""

from __future__ import annotations

import headrace_streams


def test_each_name_is_there() -> None:
    assert set(headrace_streams.__all__) == set(headrace_streams._HOME)
    for name in headrace_streams.__all__:
        assert getattr(headrace_streams, name) is not None
