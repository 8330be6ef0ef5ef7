"""What ``headrace up`` tells people about where the cluster is."""

from __future__ import annotations

from pathlib import Path

from headrace_cli.commands.local import how_to_find, what_starts, who_may
from headrace_cli.local.plan import ClusterOptions

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


def who(**options: bool) -> str:
    return "\n".join(who_may(ClusterOptions(**options), HERE / ".headrace" / "authorization", "http://127.0.0.1:1"))


def test_whom_it_takes_is_told_at_each_start() -> None:
    closed, opened = who(closed=True), who()
    assert "your programs and commands find its key" in closed
    assert "curl -H @/home/me/.headrace/authorization http://127.0.0.1:1/v1/topics" in closed
    assert "WARNING" not in closed
    with_tls = who_may(ClusterOptions(closed=True, tls=True), HERE / "authorization", "https://127.0.0.1:1", "/ca.pem")
    assert "curl --cacert /ca.pem -H @/home/me/authorization https://127.0.0.1:1/v1/topics" in with_tls[1]
    assert opened.startswith("WARNING:   open")
    assert "`headrace up --closed` closes it, for good" in opened
