"""What the wheels say of themselves: licence, readme, versions of Python, types, and each other's exact version."""

from __future__ import annotations

import subprocess
import sys
from email import message_from_bytes
from email.message import Message
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.deploy.test_images import ROOT, in_context, locked

MEMBERS = locked.read_members(ROOT)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ZipFile]:
    """The wheel of each member, made as the images make theirs."""
    made = tmp_path_factory.mktemp("wheels")
    wheels = {}
    for name, (directory, _) in MEMBERS.items():
        build = ["build", "-q", "--wheel", "--offline", "--no-build-isolation", "-o", str(made / name)]
        subprocess.run([sys.executable, "-m", "uv", *build, str(ROOT / directory)], check=True, timeout=60)
        (path,) = (made / name).glob("*.whl")
        wheels[name] = ZipFile(path)
    return wheels


def file_in(wheel: ZipFile, end: str) -> bytes:
    (name,) = (name for name in wheel.namelist() if name.partition("/")[2] == end and ".dist-info/" in name)
    return wheel.read(name)


def metadata(wheel: ZipFile) -> Message:
    return message_from_bytes(file_in(wheel, "METADATA"))


@pytest.mark.parametrize("name", MEMBERS)
class TestEachWheel:
    def test_has_its_licence(self, wheels: dict[str, ZipFile], name: str) -> None:
        said = metadata(wheels[name])
        assert said["License-Expression"] == "Apache-2.0"
        assert said.get_all("License-File") == ["LICENSE"]
        assert file_in(wheels[name], "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert in_context(f"{MEMBERS[name][0]}/LICENSE"), "images build this wheel too"

    def test_has_a_readme_whose_links_need_no_repository(self, wheels: dict[str, ZipFile], name: str) -> None:
        said = metadata(wheels[name])
        assert said["Description-Content-Type"] == "text/markdown"
        readme = said.get_payload()
        assert isinstance(readme, str)
        assert readme.strip().startswith(f"# {name}\n\n")
        assert "](" not in readme

    def test_names_the_pythons_and_that_it_is_typed(self, wheels: dict[str, ZipFile], name: str) -> None:
        classifiers = metadata(wheels[name]).get_all("Classifier") or []
        assert [f"Programming Language :: Python :: {each}" in classifiers for each in PYTHONS] == [True] * len(PYTHONS)
        assert "Typing :: Typed" in classifiers
        files = [Path(file) for file in wheels[name].namelist() if ".dist-info/" not in file]
        assert {file.parts[0] for file in files} == {file.parts[0] for file in files if file.name == "py.typed"}

    def test_pins_the_other_members(self, wheels: dict[str, ZipFile], name: str) -> None:
        said = metadata(wheels[name])
        requirements = [each.partition(";")[0].strip() for each in said.get_all("Requires-Dist") or []]
        others = [each for each in requirements if locked.parsed(each)[0] in MEMBERS]
        assert bool(others) is (name != "headrace-common")
        assert [each.partition("==")[2] for each in others] == [said["Version"]] * len(others), others


def test_all_members_have_one_version() -> None:
    (version,) = {project["version"] for _, project in MEMBERS.values()}
    assert import_module("headrace").__version__ == version
    for service in ("admin", "broker", "controller", "coordinator"):
        assert version == import_module(f"headrace_{service}.main").VERSION


def test_members_are_not_asked_of_a_registry_when_the_lock_is_made() -> None:
    wanted = [sys.executable, "tools/requirements.py", "", *(str(at / "pyproject.toml") for at, _ in MEMBERS.values())]
    told = subprocess.run(wanted, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    assert not {locked.parsed(line)[0] for line in told.splitlines()} & MEMBERS.keys()
    assert "grpcio" in told
