"""The alerts that we ship: Prometheus can load them, they lead to help, and what they look at is exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import plain_yaml, promql

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "monitoring" / "alerts.yaml"


def rules() -> list[dict[str, Any]]:
    return [rule for group in plain_yaml.read(RULES.read_text())["groups"] for rule in group["rules"]]


def every(name: str) -> Any:
    return pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"], scope=name)


@every("function")
class TestEachRule:
    def test_it_has_what_prometheus_takes_and_people_need(self, rule: dict[str, Any]) -> None:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert rule["labels"] in ({"severity": "warning"}, {"severity": "critical"})
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        for text in rule["annotations"].values():
            assert (
                text.count("{{")
                == text.count("}}")
                == len(re.findall(r"\{\{ \$(?:value|labels\.\w+)[^{}]* \}\}", text))
            )

    def test_its_expression_can_be_read_and_compares(self, rule: dict[str, Any]) -> None:
        assert promql.parse(rule["expr"]).metrics
        assert re.search(r"[<>=]|absent", rule["expr"]), "without a comparison it would fire always"

    def test_its_runbook_is_there(self, rule: dict[str, Any]) -> None:
        path, anchor = rule["annotations"]["runbook"].split("#")
        titles = re.findall(r"^## (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}

    def test_the_commands_it_names_exist(self, rule: dict[str, Any]) -> None:
        commands = "\n".join(p.read_text() for p in (ROOT / "libs/cli/src/headrace_cli/commands").glob("*.py"))
        for named in re.findall(r"`headrace ([a-z]+) ([a-z-]+)", rule["annotations"]["description"]):
            assert re.search(rf"def {named[1].replace('-', '_')}_?\(", commands), named


def test_names_are_not_given_twice_and_the_first_is_of_compaction_that_is_stuck() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("Headrace") for name in names)
    assert names[0] == "HeadraceCompactionStuck"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "a >",
        "rate(a) > 0",
        "a[5m] > 0",
        "sum(a",
        "a{b} > 0",
        "a{b=1}",
        "nope(a)",
        "a 5",
        "a > 5)",
        "rate(a[5]) > 0",
    ],
)
def test_what_prometheus_would_refuse_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        promql.parse(wrong)


@pytest.mark.parametrize(
    "wrong", ["a: b: c", "a: {b: 1}", "a:\n\tb: 1", "a: 1\na: 2", "a: |\n  b", "- a: 1\n   b: 2", "a"]
)
def test_what_is_not_plain_yaml_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        plain_yaml.read(wrong)
