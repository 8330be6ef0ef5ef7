"""Which host process does what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_connect_worker.core.hosting import Hosting, Work

OWN, OTHER = "", "/environments/old"


def test_a_connector_has_one_host_for_its_tasks_and_its_watch() -> None:
    hosting = Hosting(32)
    assert hosting.place(Work("a", None), OWN) == (1, True)
    assert hosting.place(Work("a", 0), OWN) == (1, False)
    assert hosting.place(Work("a", 1), OWN) == (1, False)
    assert hosting.place(Work("b", 0), OWN) == (2, True)


def test_a_task_that_wants_to_be_alone_is() -> None:
    hosting = Hosting(32)
    assert hosting.place(Work("a", None), OWN, alone=True) == (1, True)
    assert hosting.place(Work("a", 0), OWN, alone=True) == (2, True)
    assert hosting.place(Work("a", 1), OWN, alone=True) == (3, True)


def test_for_whom_alone_a_host_works() -> None:
    hosting = Hosting(1)
    assert hosting.alone(1) == (None, None)
    hosting.place(Work("a", None), OWN)
    assert hosting.alone(1) == ("a", None)
    hosting.place(Work("a", 3), OWN)
    assert hosting.alone(1) == ("a", 3)
    hosting.place(Work("a", 4), OWN)
    assert hosting.alone(1) == ("a", None)
    hosting.place(Work("b", 0), OWN)
    assert hosting.alone(1) == (None, None)
    hosting.lose(1)
    assert hosting.alone(1) == (None, None)


def test_beyond_the_most_the_one_of_the_environment_with_the_least_to_do_is_shared() -> None:
    hosting = Hosting(3)
    hosting.place(Work("a", 0), OWN)
    hosting.place(Work("a", 1), OWN)
    hosting.place(Work("b", 0), OWN)
    hosting.place(Work("c", 0), OTHER)
    assert hosting.place(Work("d", 0), OWN) == (2, False)
    assert hosting.place(Work("d", 1), OWN) == (2, False) or hosting.find(Work("d", 1)) == 1
    assert hosting.place(Work("e", 0), OTHER) == (3, False)


def test_an_environment_without_a_host_gets_one_beyond_the_most() -> None:
    hosting = Hosting(1)
    hosting.place(Work("a", 0), OWN)
    assert hosting.place(Work("b", 0), OTHER) == (2, True)


def test_a_connector_that_changes_its_environment_changes_its_host() -> None:
    hosting = Hosting(32)
    hosting.place(Work("a", 0), OWN)
    assert hosting.remove(Work("a", 0)) == 1
    assert hosting.place(Work("a", 0), OTHER) == (2, True)


def test_a_host_with_nothing_left_to_do_is_forgotten() -> None:
    hosting = Hosting(32)
    hosting.place(Work("a", None), OWN)
    hosting.place(Work("a", 0), OWN)
    assert hosting.remove(Work("a", None)) is None
    assert hosting.remove(Work("a", 0)) == 1
    assert hosting.remove(Work("a", 0)) is None
    assert hosting.place(Work("a", 0), OWN) == (2, True), "its number is never used again"


def test_what_a_lost_host_did_is_placed_anew() -> None:
    hosting = Hosting(32)
    hosting.place(Work("a", 0), OWN)
    hosting.place(Work("a", 1), OWN)
    assert hosting.lose(1) == {Work("a", 0), Work("a", 1)}
    assert hosting.find(Work("a", 0)) is None
    assert hosting.lose(1) == set()
    assert hosting.place(Work("a", 0), OWN) == (2, True)


steps = st.tuples(
    st.sampled_from(["place", "remove", "lose"]), st.sampled_from("abc"), st.integers(0, 3), st.booleans()
)


@given(st.lists(steps, max_size=40), st.integers(1, 4))
def test_work_is_done_once_in_its_environment_and_hosts_are_bounded(
    given: list[tuple[str, str, int, bool]], hosts_max: int
) -> None:
    hosting, environments = Hosting(hosts_max), {"a": OWN, "b": OTHER, "c": OTHER}
    hosts: set[int] = set()
    for what, connector, task, alone in given:
        work = Work(connector, task)
        number = hosting.find(work)
        if what == "place" and number is None:
            number, new = hosting.place(work, environments[connector], alone=alone)
            assert new is (number not in hosts)
            hosts.add(number)
            assert hosting.environment(number) == environments[connector]
        elif what == "remove":
            emptied = hosting.remove(work)
            assert (emptied is None) is (number is None or bool(hosting.work(number)))
            hosts.discard(emptied or 0)
        elif what == "lose" and number is not None:
            assert work in hosting.lose(number)
            hosts.discard(number)
        placed = [one for number in hosts for one in hosting.work(number)]
        assert len(placed) == len(set(placed))
        assert all(hosting.work(number) for number in hosts)
        assert len(hosts) <= hosts_max + 1
