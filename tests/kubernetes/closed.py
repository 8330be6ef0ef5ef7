"""
Scenario of a release that is closed, as the chart has it: strangers get nothing from any port, pods are known by the
tokens of their ServiceAccounts, users have Secrets, and an upgrade that changes nothing changes nothing.

Network policies are not asked: TLS and access have to hold alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from .kube import wait_until
from .life import Ask, own
from .loading import CA, TOKEN, restricted_pod
from .results import Result
from .stage import Stage

NODES_ONLY: Final = {"broker": [9293], "coordinator": [9493], "controller": [9390], "etcd": [2379, 2380]}
"""Ports where a certificate is asked for."""
CLIENTS: Final = {"broker": 9292, "coordinator": 9492, "admin": 9490}
"""Where a key is."""
DONE_S: Final = 240.0
KNOWN_S: Final = 90.0
"""The longest until controllers have the API server's keys."""
SETTINGS: Final = {
    "users": [{"name": "billing"}],
    "access": {
        "bindings": [
            {"principal": "User:billing", "role": "consumer", "name": "orders"},
            {"principal": "ServiceAccount:{namespace}/orders", "role": "producer", "name": "orders"},
        ]
    },
    "topics": [{"name": "orders", "partitions": 1}, {"name": "others", "partitions": 1}],
}


def closed(stage: Stage, result: Result) -> None:
    """See the module."""
    with own(stage, "closed") as here:
        values = json.loads(json.dumps(SETTINGS).replace("{namespace}", here.kube.namespace))
        here.release.values += [
            word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")
        ]
        here.release.install()
        result.figure("closed: all pods ready", here.release.wait_rolled_out())
        _upgraded(here, result)
        _applied(here, result)
        _strangers(here, result)
        _pods_with_tokens(here, result)
        _users(here, result)


def _upgraded(here: Stage, result: Result) -> None:
    """The same values again."""
    before = _state(here)
    here.release.upgrade()
    _same(here, result, before, "upgraded with the same values")


def _applied(here: Stage, result: Result) -> None:
    """As GitOps tools do it: what Helm renders, each time the same, and jobs of hooks with it."""
    before, text = _state(here), here.release.template()
    if here.release.template() != text:
        result.problems.append("helm template says something else each time")
    here.kube.kubectl("apply", "-f", "-", given=text, seconds=180)

    def done() -> bool:
        return all(one.get("status", {}).get("succeeded") for one in here.kube.get("jobs"))

    wait_until("the jobs of hooks are done", done, DONE_S)
    _same(here, result, before, "applied as helm template has it")


def _same(here: Stage, result: Result, before: Mapping[str, str], what: str) -> None:
    here.release.wait_rolled_out()
    after = _state(here)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    result.notes.append(f"{what}: {len(before)} Secrets, ConfigMaps and pods, changed: {changed}")
    if changed:
        result.problems.append(f"{what}: changed {changed}")


def _state(here: Stage) -> dict[str, str]:
    """Which pods there are, and in which version Secrets are; Helm's own and those of jobs apart."""
    found = {f"pod {pod['metadata']['name']}": pod["metadata"]["uid"] for pod in here.release.pods()}
    for kind in ("secret", "configmap"):
        for one in here.kube.get(kind, selector=here.release.selector):
            found[f"{kind} {one['metadata']['name']}"] = json.dumps(one.get("data"), sort_keys=True)
    return found


def _strangers(here: Stage, result: Result) -> None:
    """A pod that has the CA, which is no secret, and nothing else."""
    ask = _pod(here, "stranger", {})
    plan = {
        "ca": f"{CA}/ca.crt",
        "nodes": [[role, ip, port] for role, ports in NODES_ONLY.items() for ip in _ips(here, role) for port in ports],
        "clients": [[role, ip, port] for role, port in CLIENTS.items() for ip in _ips(here, role)],
        "rest": [f"{ip}:8080" for ip in _ips(here, "admin")],
    }
    told = json.loads(ask(_STRANGER.format(plan=json.dumps(plan)), seconds=300))
    result.notes.append(f"a stranger asked {told['asked']} times, and was refused by {json.dumps(told['refused'])}")
    result.problems += [f"a stranger got {what}" for what in told["got"]]
    if told["asked"] < 100:
        result.problems.append(f"a stranger asked {told['asked']} times only")


def _ips(here: Stage, component: str) -> list[str]:
    return [str(pod["status"]["podIP"]) for pod in here.release.pods(component)]


def _pods_with_tokens(here: Stage, result: Result) -> None:
    """One with an account that is bound writes, to its topic; another account, or for another audience, does not."""
    for name in ("orders", "other"):
        here.kube.kubectl("create", "serviceaccount", name)
    audience = f"headrace:{here.kube.namespace}/{here.release.name}"
    bound = _pod(here, "bound", {"account": "orders", "audience": audience})

    def writes() -> bool:
        said = bound(_WRITE.format(topic="orders"))
        here.say(f"a pod with a token: {said.strip()[:300]}")
        return "wrote" in said

    result.figure("a pod with a token writes", wait_until("a pod with a token writes", writes, KNOWN_S, 2.0))
    for what, ask, topic, error in (
        ("to another topic", bound, "others", "TopicAuthorizationFailed"),
        (
            "of another account",
            _pod(here, "unbound", {"account": "other", "audience": audience}),
            "orders",
            "TopicAuth",
        ),
        (
            "for another audience",
            _pod(here, "elsewhere", {"account": "orders", "audience": "x"}),
            "orders",
            "Unauthent",
        ),
    ):
        said = ask(_WRITE.format(topic=topic))
        result.notes.append(f"a token {what}: {said.strip()[:200]}")
        if error not in said:
            result.problems.append(f"a token {what}: {said}")


def _users(here: Stage, result: Result) -> None:
    """The Secret of a user has all that its pod needs."""
    ask = _pod(here, "billing", {"secret": f"{here.release.fullname}-user-billing"})
    said = ask(_READ)
    result.notes.append(f"a user by its Secret: {said.strip()}")
    if "User:billing read 1" not in said:
        result.problems.append(f"a user by its Secret: {said}")


def _pod(here: Stage, name: str, given: dict[str, str]) -> Ask:
    """Another pod, which has what is given, and can be asked; it goes with the namespace."""
    env = {"HEADRACE_CA": f"{CA}/ca.crt"}
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "ca", "configMap": {"name": f"{here.release.fullname}-ca"}},
    ]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "ca", "mountPath": CA}]
    if "audience" in given:
        env["HEADRACE_API_KEY_FILE"] = f"{TOKEN}/token"
        token = {"path": "token", "audience": given["audience"], "expirationSeconds": 3600}
        volumes.append({"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}})
        mounts.append({"name": "token", "mountPath": TOKEN})
    if "secret" in given:
        env = {"HEADRACE_CONFIG": "/etc/headrace/user/client.toml"}
        volumes.append({"name": "user", "secret": {"secretName": given["secret"]}})
        mounts.append({"name": "user", "mountPath": "/etc/headrace/user"})
    container = {
        "image": here.images.name("admin"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "resources": {"limits": {"memory": "512Mi"}},
        "volumeMounts": mounts,
    }
    pod = restricted_pod(name, container, volumes)
    if "account" in given:
        pod["spec"]["serviceAccountName"] = given["account"]
    here.kube.apply(pod)
    here.kube.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s", seconds=70)
    return Ask(here.kube, name)


_WRITE: Final = """
import headrace
try:
    with headrace.Producer("headrace-bootstrap:9292") as producer:
        print("wrote", producer.send("{topic}", b"a record").result(30))
except Exception as error:
    print(type(error).__name__, error)
"""
_READ: Final = """
import time
import headrace
with headrace.AdminClient() as admin:
    who = admin.who_am_i().principal
with headrace.Consumer("orders", group_id="orders-billing", auto_offset_reset="earliest") as consumer:
    count, end = 0, time.monotonic() + 60
    while not count and time.monotonic() < end:
        count += len(consumer.poll(timeout_ms=1_000))
print(who, "read", count)
"""
_STRANGER: Final = """
import collections, json, pathlib, socket, ssl, urllib.error, urllib.request
import grpc
from headrace_proto.v1 import admin_pb2, broker_pb2, controller_pb2, coordinator_pb2, transaction_pb2

plan = json.loads('''{plan}''')
got, refused, asked = [], collections.Counter(), 0
preface = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
http = b"GET /v3/kv/range HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
trust = ssl.create_default_context()
trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
trust.set_alpn_protocols(["h2"])


def talk(ip, port, tls, said):
    with socket.create_connection((ip, port), timeout=5) as line:
        line.settimeout(3)
        with trust.wrap_socket(line) if tls else line as speaks:
            speaks.sendall(said)
            return speaks.recv(4096)


for role, ip, port in plan["nodes"] + plan["clients"]:
    for tls in (False, True):
        if tls and [role, ip, port] in plan["clients"]:
            continue  # it may speak there, and is asked for its key
        for said in (preface, http):
            asked += 1
            try:
                answer = talk(ip, port, tls, said)
            except OSError as error:
                refused[type(error).__name__] += 1
                continue
            # An alert of TLS tells nothing.
            if answer and not (answer[:1] == b"\\x15" and not tls):
                got.append(f"{{role}} {{port}} tls={{tls}}: {{answer[:80]!r}}")
            else:
                refused["closed"] += 1

files = (admin_pb2, broker_pb2, controller_pb2, coordinator_pb2, transaction_pb2)
methods = [
    (f"/{{service.full_name}}/{{method.name}}", method.client_streaming, method.server_streaming)
    for file in files for service in file.DESCRIPTOR.services_by_name.values() for method in service.methods
]
credentials = grpc.ssl_channel_credentials(pathlib.Path(plan["ca"]).read_bytes())
for role, ip, port in plan["clients"] + [one for one in plan["nodes"] if one[0] != "etcd"]:
    options = [("grpc.ssl_target_name_override", f"{{role}}.headrace")]
    with grpc.secure_channel(f"{{ip}}:{{port}}", credentials, options) as channel:
        for path, sends, streams in methods if [role, ip, port] in plan["clients"] else methods[:1]:
            kind = ("stream" if sends else "unary") + "_" + ("stream" if streams else "unary")
            asked += 1
            try:
                call = getattr(channel, kind)(path)(iter([b""]) if sends else b"", timeout=10)
                answer = list(call) if streams else call
            except grpc.RpcError as error:
                refused[error.code().name] += 1
                if error.code().name not in ("UNAUTHENTICATED", "UNIMPLEMENTED", "UNAVAILABLE", "PERMISSION_DENIED"):
                    got.append(f"{{role}} {{port}} {{path}}: {{error.code().name}} {{error.details()}}")
            else:
                got.append(f"{{role}} {{port}} {{path}}: {{answer!r}}"[:300])

for at in plan["rest"]:
    for path in ("/v1/topics", "/v1/cluster", "/v1/access", "/v1/keys", "/docs", "/openapi.json"):
        asked += 1
        try:
            answer = urllib.request.urlopen(f"https://{{at}}{{path}}", context=trust, timeout=10)
            got.append(f"REST {{path}}: {{answer.status}}")
        except urllib.error.HTTPError as error:
            refused[f"REST {{error.code}}"] += 1
print(json.dumps({{"asked": asked, "refused": refused, "got": got}}))
"""
