"""A directory that somebody else may write to: links in it lead nowhere that its files are not."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_connect.connectors.places import Place, find_place
from headrace_connect.plugin import RetriableError

SECRET = b"hunter2"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret").write_bytes(SECRET)
    return directory


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    directory = tmp_path / "inside"
    directory.mkdir()
    return directory


def read(place: Place, name: str) -> bytes | None:
    file = place.open(name)
    if file is None:
        return None
    with file:
        return file.read_at(0, 100)


def test_a_link_that_leads_out_of_the_directory_is_no_file_of_it(
    inside: Path, outside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (inside / "file.txt").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    place = find_place(str(inside))
    with caplog.at_level(logging.WARNING, "headrace_connect"):
        for name in ("file.txt", "folder/secret", "file.txt"):
            assert read(place, name) is None
    assert len(caplog.records) == 2, "each once"
    assert "leads out of" in caplog.text


def test_a_link_within_the_directory_and_one_to_it_are_followed(tmp_path: Path, inside: Path) -> None:
    """As Kubernetes shows a ConfigMap: each name leads through a link to the directory of its version."""
    (inside / "..1").mkdir()
    (inside / "..1/a.txt").write_bytes(b"a")
    (inside / "..data").symlink_to("..1")
    (inside / "a.txt").symlink_to("..data/a.txt")
    (tmp_path / "elsewhere").symlink_to(inside)
    for directory in (inside, tmp_path / "elsewhere"):
        assert read(find_place(str(directory)), "a.txt") == b"a"


def test_a_file_that_becomes_a_link_while_it_is_opened_is_not_read(
    inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = inside / "file.txt"
    target.write_bytes(b"fine")
    real = os.path.isfile

    def isfile(path: str) -> bool:
        found = real(path)
        target.unlink()
        target.symlink_to(outside / "secret")
        return found

    monkeypatch.setattr(os.path, "isfile", isfile)
    assert read(find_place(str(inside)), "file.txt") is None


WRITES: list[Callable[[Place, str], object]] = [
    lambda place, name: place.write(name, b"x"),
    lambda place, name: place.create(name, b"x"),
]


@pytest.mark.parametrize("write", WRITES, ids=["write", "create"])
def test_nothing_is_written_through_a_link_to_another_directory(
    inside: Path, outside: Path, write: Callable[[Place, str], object]
) -> None:
    (inside / "folder").symlink_to(outside)
    for name in ("folder/new", "folder/deeper/new"):
        with pytest.raises(RetriableError, match="leads out of"):
            write(find_place(str(inside)), name)
    assert sorted(os.listdir(outside)) == ["secret"]


def test_nothing_is_written_through_a_link_in_the_place_of_a_file(inside: Path, outside: Path) -> None:
    (inside / "new.part").symlink_to(outside / "secret")
    with pytest.raises(RetriableError, match=r"new cannot be written"):
        find_place(str(inside)).write("new", b"x")
    (inside / "new.part").unlink()
    (inside / "new").symlink_to(outside / "secret")
    find_place(str(inside)).write("new", b"x")
    assert (inside / "new").read_bytes() == b"x", "the link was replaced"
    assert (outside / "secret").read_bytes() == SECRET
