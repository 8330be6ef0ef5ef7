"""
Scenario of Connect: the changes of a database are copied into another one, and a connector of an image of its own reads
a help desk, both with secrets that are mounted. The shop never stops; meanwhile workers are killed, stopped, restarted
one after another, get another setting and another image, are more and fewer. Each order and ticket arrives once, and no
secret is anywhere to be seen.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .connect_shop import NAME, PORTS, TAKEN_S, Shop
from .kube import Failed, wait_until
from .life import client, own
from .results import Result
from .stage import Stage

SECRET_S: Final = 180.0
"""The longest until pods see a changed Secret: the kubelet looks every minute or so."""
_AT: Final = f"/etc/headrace/secrets/{NAME}"
_POSTGRES: Final = {
    "connector.class": "postgres-cdc",
    "topic.prefix": "shop",
    "database.hostname": NAME,
    "database.dbname": "shop",
    "database.user": "headrace",
    "database.password": f"${{dir:{_AT}:password}}",
    "table.include.list": "public[.]orders",
    "snapshot.mode": "no_data",  # rows that are read beside changes may come twice
    "value.form": "flat",
}
_COPIES: Final = {
    "connector.class": "sql-sink",
    "topics": "shop.public.orders",
    "connection.url": f"postgresql://{NAME}:{PORTS['database']}/copies",
    "connection.user": "headrace",
    "connection.password": f"${{dir:{_AT}:password}}",
    "table.name.format": "copies",
}
_TICKETS: Final = {
    "connector.class": "tickets",
    "topic": "tickets",
    "url": f"http://{NAME}:{PORTS['desk']}",
    "token": f"${{dir:{_AT}:token}}",
    "queues": ["sales", "support"],
    "tasks.max": 2,
    "poll.interval.ms": 100,
}
CONNECTORS: Final = {"orders": _POSTGRES, "copies": _COPIES, "tickets": _TICKETS}
TASKS: Final = {"orders": 1, "copies": 1, "tickets": 2}
REFUSED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "a secret in plain": ({**_TICKETS, "token": "hunter2"}, "a secret stands here for all to read"),
    "a Secret that is not mounted": (
        {**_TICKETS, "token": "${dir:/etc/headrace/secrets/others:token}"},
        "connect.secrets does not have others",
    ),
    "a class that nobody has": ({**_TICKETS, "connector.class": "ticket"}, "there is no connector 'ticket'"),
    "a key that there is not": ({**_TICKETS, "queue": "sales"}, "queue is not a setting of tickets; is queues meant?"),
    "a list where a number is meant": ({**_TICKETS, "tickets.max": [1, 2]}, "tickets.max"),
}
"""What is refused: by the chart, or by a worker when the job of the chart applies it; and what Helm says then."""


def moved(stage: Stage, result: Result) -> None:
    """Nothing is lost, nothing comes twice. Only prune deletes a connector."""
    with own(stage, "connect") as here:
        run, shop, known = _Run(here), Shop(here), _Secrets(here, secrets.token_hex(16), secrets.token_hex(16))
        known.put(token=known.token)
        shop.start([here.images.name("test-postgres"), here.images.name("connect")])
        known.put(token="not-the-token-of-the-desk")
        run.install()
        result.figure("install: all ready", here.release.wait_rolled_out())
        run.wait_running(result, "install", {"orders": 1, "copies": 1})
        wait_until("changes are kept for the connector", shop.has_slot, TAKEN_S)
        shop.open()
        shop.goes_on(result, "the first orders", time.time())
        _let_in(here, run, result, known)
        began = time.time()
        shop.goes_on(result, "nothing is done", began)
        for what, do in run.changes().items():
            here.say(what)
            known.look_in_logs(result, "connect")  # they go with their pods
            began = time.time()
            do()
            result.figure(f"{what}: all ready", here.release.wait_rolled_out())
            run.wait_running(result, what, TASKS)
            shop.goes_on(result, what, began)
        with client(here) as ask:
            shop.judge(result, ask)
        _refuse(here, run, result)
        known.look_for(result, run.said(), "REST")
        run.apply({})
        assert set(run.names()) == set(CONNECTORS), "what the values have no more stays"
        run.apply({}, prune=True)
        assert run.names() == [], "but with prune"
        known.look_for_everywhere(result)


def _let_in(here: Stage, run: _Run, result: Result, known: _Secrets) -> None:
    """The desk refuses the token of the Secret; its status says so. Then the Secret has the right one."""

    def refused() -> bool:
        tasks = run.tasks("tickets")
        return bool(tasks) and all("token" in task.get("trace", "") for task in tasks)

    result.figure("a Secret with a wrong token: the status says so", wait_until("the desk refuses", refused, TAKEN_S))
    result.notes.append(f"a wrong token: {run.tasks('tickets')[0]['trace'].splitlines()[0][:200]}")
    known.put(token=known.token)
    # The kubelet looks at once at what is mounted in a pod that changed, instead of after a minute or two.
    run.annotate("seen", "again")
    result.figure("the right one: pods have it", wait_until("pods have the Secret", known.mounted, SECRET_S))
    run.tell("restart", "tickets", "--tasks")
    run.wait_running(result, "the right token", TASKS)
    here.say("the desk lets the connector in")


def _refuse(here: Stage, run: _Run, result: Result) -> None:
    """What the values cannot have, with what Helm says; what runs goes on as it was."""
    before = run.rest("connectors/tickets/config")
    for what, (config, says) in REFUSED.items():
        here.say(what)
        try:
            run.apply({**CONNECTORS, "tickets": config})
        except Failed as failed:
            told = " ".join(failed.said.split())
            if says not in told or "tickets" not in told or "hunter2" in told:
                result.problems.append(f"{what}: Helm says {told[-600:]}")
            result.notes.append(f"{what}: {told[-300:]}")
        else:
            result.problems.append(f"{what}: it was not refused")
    if run.rest("connectors/tickets/config") != before:
        result.problems.append("a connector that was refused has another configuration")


@dataclass(slots=True)
class _Run:
    """Workers and their connectors, as the values have them."""

    here: Stage
    replicas: int = 2

    # --- what is done ---------------------------------------------------------------------------------------

    def install(self) -> None:
        """Its hook applies the connectors."""
        self.here.release.install(*self._values(CONNECTORS))

    def apply(self, connectors: dict[str, Any], *, prune: bool = False, **settings: str) -> None:
        """An upgrade."""
        self.here.release.upgrade(settings, *self._values(connectors, prune=prune))

    def changes(self) -> dict[str, Callable[[], None]]:
        """What is done to workers while the shop is open; then all of them are waited for."""
        workers = self.here.release.stateful("connect")
        found: dict[str, Callable[[], None]] = {
            "a worker is killed": lambda: self._delete("--grace-period=0", "--force"),
            "a worker is stopped": self._delete,
            "workers restart one after another": lambda: self._kubectl("rollout", "restart", f"sts/{workers}"),
            "another setting": lambda: self._set({"config.connect.plugin_ms_max": "61000"}),
            "2 → 3 workers": lambda: self._scale(3),
            "3 → 1 workers": lambda: self._scale(1),
            "1 → 2 workers": lambda: self._scale(2),
        }
        old, new = self.here.images.previous, self.here.images.current
        if old is not None:
            found |= {f"images of all services {new} → {old}": lambda: self._tag(old)}
            found |= {f"images of all services {old} → {new}": lambda: self._tag(new)}
        return found

    def annotate(self, key: str, value: str) -> None:
        """All workers' pods."""
        self._kubectl("annotate", "pods", *self._pods(), f"headrace.io/{key}={value}", "--overwrite")

    def _delete(self, *words: str) -> None:
        pod = self._pod_of("tickets")
        uid = self.here.uid(pod)
        self._kubectl("delete", "pod", pod, "--wait=false", *words)
        self.here.wait_replaced(pod, uid)

    def _scale(self, replicas: int) -> None:
        self.replicas = replicas
        self.apply(CONNECTORS)

    def _set(self, settings: dict[str, str]) -> None:
        self.here.release.upgrade(settings, *self._values(CONNECTORS))

    def _tag(self, tag: str) -> None:
        self.here.release.tag = tag
        self.apply(CONNECTORS)

    def _kubectl(self, *words: str) -> None:
        self.here.kube.kubectl(*words)

    def _values(self, connectors: dict[str, Any], *, prune: bool = False) -> list[str]:
        desk = {"podSelector": {"matchLabels": {"app": NAME}}}
        connect = {
            "enabled": True,
            "access": [{"role": "developer", "name": "shop."}, {"role": "developer", "name": "tickets"}],
            "replicas": self.replicas,
            "connectors": connectors,
            "prune": prune,
            "secrets": [NAME],
            "plugins": [{"name": "tickets", "image": self.here.images.name("test-tickets")}],
            "egress": [{"to": [desk], "ports": [{"port": port} for port in PORTS.values()]}],
        }
        return ["--set-json", f"connect={json.dumps(connect)}"]

    # --- what is seen ---------------------------------------------------------------------------------------

    def tell(self, *words: str) -> str:
        """``headrace connect`` in a worker's pod."""
        return self.here.kube.execute(self._pods()[0], "headrace", "connect", *words)

    def rest(self, *paths: str) -> list[Any]:
        """What a worker answers to each of these paths."""
        said = self.here.kube.execute(self._pods()[0], "python", "-c", _REST, *paths)
        return [json.loads(line) for line in said.splitlines()]

    def tasks(self, connector: str) -> list[dict[str, Any]]:
        """How they are."""
        return list(self.rest(f"connectors/{connector}/status")[0]["tasks"])

    def names(self) -> list[str]:
        """Of all connectors that there are."""
        return list(self.rest("connectors")[0])

    def wait_running(self, result: Result, what: str, tasks: dict[str, int]) -> None:
        """Until all tasks run, on workers that are there."""

        def look() -> bool:
            there = {pod["status"].get("podIP") for pod in self.here.release.pods("connect")}
            for name, count in tasks.items():
                found = self.tasks(name)
                if len(found) != count or any(one["state"] != "RUNNING" for one in found):
                    return False
                if not {_host(one) for one in found} <= there:
                    return False
            return True

        result.figure(f"{what}: all tasks run", wait_until(f"{what}: all tasks run", look, TAKEN_S))

    def said(self) -> list[str]:
        """All that REST says of connectors and plugins."""
        paths = ["connectors?expand=info&expand=status", "connector-plugins", "connector-plugins/tickets/config"]
        for name in CONNECTORS:
            paths += [f"connectors/{name}/{part}" for part in ("config", "status", "tasks", "tasks-config", "offsets")]
            paths += [f"connectors/{name}", f"v1/connectors/{name}/events"]
        return [json.dumps(one) for one in self.rest(*paths)]

    def _pods(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.here.release.pods("connect"))

    def _pod_of(self, connector: str) -> str:
        """Whose worker has its first task."""
        host = _host(self.tasks(connector)[0])
        [pod] = [one for one in self.here.release.pods("connect") if one["status"]["podIP"] == host]
        return str(pod["metadata"]["name"])


_REST: Final = """
import json, os, ssl, sys, urllib.request
trust = ssl.create_default_context(cafile=os.environ.get("HEADRACE_CA"))
for path in sys.argv[1:]:
    url = os.environ["HEADRACE_CONNECT_URL"] + "/" + path
    shown = {"Authorization": "Bearer " + open("/var/run/secrets/headrace/token").read()}
    with urllib.request.urlopen(urllib.request.Request(url, headers=shown), timeout=30, context=trust) as answer:
        print(json.dumps(json.load(answer)))
"""


def _host(task: dict[str, Any]) -> str:
    return str(task["worker_id"].rpartition(":")[0].strip("[]"))


@dataclass(slots=True)
class _Secrets:
    """What no log, no status, no topic and no answer may have."""

    here: Stage
    password: str
    token: str

    def put(self, *, token: str) -> None:
        """Make the Secret so."""
        data = {"password": self.password, "token": token}
        self.here.kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "stringData": data})

    def mounted(self) -> bool:
        """Whether all workers have the token by now."""
        pods = self.here.release.pods("connect")
        found = [self.here.kube.execute(pod["metadata"]["name"], "cat", f"{_AT}/token") for pod in pods]
        return all(one == self.token for one in found)

    def look_for(self, result: Result, lines: list[str], where: str) -> None:
        """Nothing of ``lines`` has one, as it is or in base64."""
        assert lines, f"{where} says nothing"
        for name, secret in (("password", self.password), ("token", self.token)):
            for form in (secret, base64.b64encode(secret.encode()).decode()):
                found = [line for line in lines if form in line]
                if found:
                    result.problems.append(f"{where} has the {name}: {found[0].replace(form, '…')[:300]}")

    def look_in_logs(self, result: Result, component: str = "") -> None:
        """Of the pods of a component, or of all."""
        for pod in self.here.release.pods(component):
            name = pod["metadata"]["name"]
            said = self.here.kube.kubectl("logs", name, "--all-containers")
            self.look_for(result, said.splitlines() or [""], f"the log of {name}")

    def look_for_everywhere(self, result: Result) -> None:
        """In logs of all pods, in all topics of Connect and what they have written, in what Helm and the API keep."""
        kube, release = self.here.kube, self.here.release
        self.look_in_logs(result)
        topics = [one["name"] for one in release.cli_json("topic", "list")["topics"]]
        looked = [
            topic for topic in topics if topic.startswith("connect-") or topic in ("tickets", "shop.public.orders")
        ]
        result.notes.append(f"no secret is in {', '.join(looked)}")
        for topic in looked:
            said = release.cli("consume", topic, "--exit-at-end", "-f", "json", seconds=300)
            self.look_for(result, said.splitlines() or [""], f"the topic {topic}")
        self.look_for(result, kube.kubectl("get", "events", "-o", "json").splitlines(), "an event")
        kinds = "pods,configmaps,statefulsets,jobs"
        self.look_for(result, kube.kubectl("get", kinds, "-o", "json").splitlines(), "an object")
        self.look_for(result, kube.run_helm("get", "all", release.name).splitlines(), "Helm")
