"""Settings of an app."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_streams.config import StreamsConfig


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"commit_interval": 5}, "commit_interval is not a setting of an app; did you mean commit_interval_ms?"),
        ({"xyz": 5}, "xyz is not a setting of an app; there are: bootstrap_servers, state_dir, "),
        ({"commit_interval_ms": -1}, "commit_interval_ms takes 0 to 600000, not -1"),
        ({"commit_rows": "many"}, "commit_rows takes a whole number, not 'many'"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        StreamsConfig.of(given)
    assert str(refused.value).startswith(said)


def test_what_is_given_counts() -> None:
    assert StreamsConfig.of({"commit_interval_ms": 5}) == StreamsConfig(commit_interval_ms=5)
