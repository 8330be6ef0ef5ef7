"""What ``headrace up`` tells people about where the cluster is."""

from __future__ import annotations

from pathlib import Path

from headrace_cli.commands.local import how_to_find, what_starts

HERE = Path("/home/me")


def test_on_the_default_port_nothing_needs_to_be_done() -> None:
    assert how_to_find(["127.0.0.1:9292", "127.0.0.1:20001"], HERE / ".headrace", HERE) == []


def test_on_another_port_it_says_which_and_what_to_export() -> None:
    said = "\n".join(how_to_find(["127.0.0.1:20000", "127.0.0.1:20001"], HERE / ".headrace", HERE))
    assert "broker-1 listens on 127.0.0.1:20000" in said
    assert "programs that run in /home/me find it" in said
    assert "export HEADRACE_BOOTSTRAP=127.0.0.1:20000,127.0.0.1:20001" in said


def test_a_data_directory_elsewhere_is_found_by_nobody_without_the_export() -> None:
    said = "\n".join(how_to_find(["127.0.0.1:20000"], Path("/data"), HERE))
    assert "programs that run in" not in said
    assert "export HEADRACE_BOOTSTRAP=127.0.0.1:20000" in said


def test_one_broker_is_not_told_as_many() -> None:
    assert what_starts(1, HERE / ".headrace") == "starting 1 broker on /home/me/.headrace ..."
    assert what_starts(3, HERE / ".headrace") == "starting 3 brokers on /home/me/.headrace ..."
