"""Settings of an app."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_streams.config import StreamsConfig, from_environment


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


def test_the_environment_gives_what_it_names() -> None:
    given = {"HEADRACE_STREAMS_COMMIT_ROWS": "5", "HEADRACE_STREAMS_ZONE": "a", "HEADRACE_BOOTSTRAP": "b:1"}
    assert from_environment(given) == {"commit_rows": 5, "zone": "a"}
    assert from_environment({}) == {}


def test_a_variable_that_is_misspelt_is_told(caplog: pytest.LogCaptureFixture) -> None:
    given = {"HEADRACE_STREAMS_COMIT_ROWS": "5", "HEADRACE_STREAMS_PORT_9100_TCP": "tcp://1:1"}
    assert from_environment(given) == {}
    assert [record.message for record in caplog.records] == [
        "HEADRACE_STREAMS_COMIT_ROWS is no setting and is ignored; did you mean HEADRACE_STREAMS_COMMIT_ROWS?",
    ]


def test_what_the_environment_cannot_give_is_refused_with_the_variable() -> None:
    with pytest.raises(InvalidConfig) as refused:
        from_environment({"HEADRACE_STREAMS_COMMIT_ROWS": "many", "HEADRACE_STREAMS_MAX_WARMUP": "0"})
    assert "HEADRACE_STREAMS_COMMIT_ROWS: takes a whole number, not 'many'" in str(refused.value)
    assert "max_warmup takes 1 to 1000, not 0" in str(refused.value)


def test_nothing_is_no_directory_for_state() -> None:
    with pytest.raises(InvalidConfig, match="HEADRACE_STREAMS_STATE_DIR: may not be empty"):
        from_environment({"HEADRACE_STREAMS_STATE_DIR": "", "HEADRACE_STREAMS_ZONE": ""})
