"""What lies beside the chart for people without it: rendered files are those of today, and everything can be read."""

from __future__ import annotations

import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import chart, combinations, manifests, object_rules, pod_rules
from tests.deploy.manifests import name_of, of_kind, pods

from headrace_common.core.access.api_keys import format_key

PLAIN = sorted((chart.ROOT / "deploy" / "k8s").glob("*.yaml"))


@pytest.mark.chart
def test_rendered_files_are_those_of_the_chart() -> None:
    done = subprocess.run(
        [chart.ROOT / "tools" / "manifests.sh", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.chart
def test_plain_objects_go_into_any_namespace() -> None:
    """Who applies them says which; names in certificates and of audiences are put together by the kubelet."""
    said = chart.run("template", "headrace", chart.CHART, "--namespace", "elsewhere")
    assert said == chart.text(), "the same again, too, wherever it goes"
    assert "elsewhere" not in said


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_plain_files_can_be_read_and_keep_the_rules(path: Any) -> None:
    found = manifests.read_all(path.read_text())
    if path.name.endswith(".values.yaml"):
        assert len(found) == 1
        return
    assert found
    for manifest in found:
        assert {"apiVersion", "kind", "metadata"} <= manifest.keys()
        assert not [key for key in manifest["metadata"].get("annotations", {}) if key.startswith("helm.sh/hook")]
    for rule in (*pod_rules.RULES, *object_rules.RULES):
        if found[0]["kind"] != "ServiceAccount" or rule is not object_rules.selecting:
            assert not list(rule(found)), rule.__name__


def test_the_plain_cluster_is_whole_and_the_spark_files_have_each_one_application() -> None:
    by_name = {path.name: manifests.read_all(path.read_text()) for path in PLAIN}
    assert len(of_kind(by_name["headrace.yaml"], "StatefulSet")) == 5
    for name, kind in (
        ("spark-topic-to-lake.yaml", "SparkApplication"),
        ("spark-retention-audit.yaml", "ScheduledSparkApplication"),
    ):
        assert len(of_kind(by_name[name], kind)) == 1


def test_skaffold_builds_what_the_chart_runs() -> None:
    (config,) = manifests.read_all((chart.ROOT / "skaffold.yaml").read_text())
    text = str(config)
    assert config["kind"] == "Config"
    assert "deploy/helm/headrace" in text
    for service in manifests.SERVICES:
        assert f"headrace/{service}" in text
    assert {"dev", "ci"} <= {profile["name"] for profile in config.get("profiles", [])} | {"dev"}
    for path in re.findall(r"deploy/(?:helm/headrace|docker)[\w./-]*", text):
        assert (chart.ROOT / path).exists(), path


def test_no_object_comes_twice_in_one_file() -> None:
    for path in PLAIN:
        names = [name_of(m) for m in manifests.read_all(path.read_text()) if "kind" in m]
        assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str | dict[str, Any]], str]:
    """The notes for values, or those of a combination: ``helm template`` shows none, so an object is made of them."""
    copy = tmp_path_factory.mktemp("notes") / "headrace"
    shutil.copytree(chart.CHART, copy)
    text = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "NOTES.txt").unlink()
    (copy / "templates" / "_notes.tpl").write_text('{{- define "notes" -}}\n' + text + "{{- end -}}\n")
    (copy / "templates" / "notes.yaml").write_text('notes: {{ include "notes" . | toJson }}\n')

    def said(values: str | dict[str, Any]) -> str:
        files = ["--values", chart.DEV] if values == "dev" else []
        given = combinations.BY_NAME[values] if isinstance(values, str) else values
        only = ["--namespace", chart.NAMESPACE, "--show-only", "templates/notes.yaml"]
        made = chart.run("template", "headrace", copy, *only, *files, values=given)
        return str(manifests.read(made)["notes"])

    return said


@pytest.mark.chart
@pytest.mark.parametrize("values", combinations.NAMES)
def test_notes_say_what_to_do(values: str, notes: Callable[[str | dict[str, Any]], str]) -> None:
    """No placeholder is left, and what they name is there."""
    text = notes(values)
    assert not re.search(r"<no value>|%!|\{\{|\}\}", text)
    assert f"kubectl -n {chart.NAMESPACE}" in text
    rendered = {name_of(m) for m in combinations.render(values)}
    for kind, name in re.findall(r"\b(statefulset|deployment|service|job)/([a-z0-9-]+)", text):
        wanted = {"statefulset": "StatefulSet", "deployment": "Deployment", "service": "Service", "job": "Job"}[kind]
        assert f"{wanted}/{name}" in rendered, (kind, name)
    for host in re.findall(rf"([a-z-]+)\.{chart.NAMESPACE}\.svc", text):
        assert f"Service/{host}" in rendered


@pytest.mark.chart
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("one of each", "a lost volume loses records"),
        ("no backup", "no backups"),
        ("open network", "no network policies"),
        (combinations.BY_NAME["gateway"] | combinations.PLAIN, "without encryption"),
        ("permissive", "security.mode=permissive"),
        (
            "closed",
            "with the administrator's key may do everything: the Spark job lake (apiKeySecret), the Spark job audit",
        ),
        ("restore", "restored"),
    ],
)
def test_notes_warn_of_what_is_weak(
    values: str | dict[str, Any], says: str, notes: Callable[[str | dict[str, Any]], str]
) -> None:
    assert says in notes(values)
    assert says not in notes("defaults")


@pytest.mark.parametrize("wrong", ["a: 1\na: 2", "a:\n  - b: 1\n    b: 2", "a: [1"])
def test_what_is_no_manifest_is_refused(wrong: str) -> None:
    with pytest.raises((ValueError, manifests.yaml.YAMLError)):
        manifests.read(wrong)


def test_a_date_is_text_and_quantities_are_numbers() -> None:
    assert manifests.read("a: 2026-11-22") == {"a": "2026-11-22"}
    assert [manifests.quantity(text) for text in ("250m", 2, "1Gi", "1.5", "2k")] == [0.25, 2.0, 2.0**30, 1.5, 2000.0]
    with pytest.raises(ValueError, match="no quantity"):
        manifests.quantity("1Xi")


@pytest.mark.chart
def test_notes_say_that_etcd_is_spoken_to_in_plain_text(
    notes: Callable[[str | dict[str, Any]], str],
) -> None:
    external = {"endpoints": ["etcd:2379"]}
    assert "in plain text" in notes({"etcd": {"external": external}})
    with_tls = {"etcd": {"external": external | {"tlsSecret": "g"}}}
    assert "in plain text" not in notes(with_tls)
    assert "headrace-etcd-ca" not in notes(with_tls)
    assert "headrace-etcd-ca" in notes("TLS")


@pytest.mark.chart
def test_notes_say_that_connectors_reach_nothing_but_the_cluster(notes: Callable[[str | dict[str, Any]], str]) -> None:
    connect: dict[str, Any] = combinations.CONNECT["connect"]
    assert "connect.egress" not in notes("connect")
    assert "connect.egress" in notes({"connect": connect | {"egress": []}})
    assert "connect.egress" not in notes({"connect": connect | {"egress": [], "connectors": {}}})
    open_ = {"networkPolicy": {"enabled": False}, "connect": connect | {"egress": [], "unprotected": True}}
    assert "connect.egress" not in notes(open_)


@pytest.mark.chart
def test_notes_say_that_an_open_cluster_is_open_and_a_closed_one_is_not(
    notes: Callable[[str | dict[str, Any]], str],
) -> None:
    assert "security.mode=open" in notes("open and plain")
    assert "security.mode=open" in notes("TLS")
    assert "; and the Secret headrace-admin;" in notes("defaults")
    text = notes("closed with keys of ours")
    assert "security.mode" not in text
    assert "apiKeySecret" not in text
    assert "the-admin" in text
    outside = {"external": {"enabled": True, "domain": "example.com"}, "networkPolicy": {"enabled": False}}
    assert "authentication" not in notes(outside)
    assert notes({**combinations.BY_NAME["permissive"], **outside}).count("authentication") == 2


@pytest.mark.chart
@pytest.mark.parametrize("values", ["defaults", "dev", "open and plain"])
def test_people_ask_from_the_pod_for_them(values: str, notes: Callable[[str | dict[str, Any]], str]) -> None:
    asks = [line for line in notes(values).splitlines() if "exec -i" in line]
    assert len(asks) == 4
    begins = f"kubectl -n {chart.NAMESPACE} exec -i deployment/headrace-client -- headrace "
    assert all(begins in line for line in asks)
    [pod] = [pod for pod in pods(combinations.render(values)) if pod.component == "client"]
    assert pod.main["image"].startswith("headrace/admin:"), "that has the command line"
    assert {"HEADRACE_BOOTSTRAP"} <= {variable["name"] for variable in pod.main["env"]}


@pytest.mark.chart
def test_a_closed_cluster_is_asked_as_notes_say_and_the_key_is_in_no_argument(
    notes: Callable[[str | dict[str, Any]], str], tmp_path: Path
) -> None:
    """The lines themselves, by a shell, with programs that say what they were given."""
    lines = [line.strip() for line in notes("no pod for people").splitlines() if line.startswith("  kubectl ")]
    [get] = [line for line in lines if " get secret headrace-admin " in line]
    asks = [line for line in lines if "exec -i" in line]
    assert len(asks) == 3
    key = format_key(bytes(10), bytes(32))
    encoded = b64encode(f"{key}\n".encode()).decode()
    kubectl = f"""\
#!/bin/sh
echo "$@" >> asked
case "$*" in *get*) printf %s {encoded};; *) shift 6; exec "$@";; esac
"""
    headrace = """\
#!/bin/sh
printf '%s\\n' "$HEADRACE_API_KEY" "$@"
"""
    for name, text in (("kubectl", kubectl), ("headrace", headrace)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for line in (get, *asks):
        done = subprocess.run(
            ["/bin/sh", "-euc", line], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines() == [key, "consume", "first", "--from", "beginning", "--exit-at-end"]
    assert (tmp_path / "admin.key").stat().st_mode & 0o077 == 0
    assert key not in (tmp_path / "asked").read_text()
