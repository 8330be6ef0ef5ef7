"""A process that uses clients and forks: its children make their own, and the parent's refuse there at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

CHILDREN = 20

PRELUDE = """
import asyncio, gc, multiprocessing, os, signal, sys, threading, time, warnings
import headrace
from headrace import aio
from headrace.errors import ClientClosed, HeadraceError

warnings.simplefilter("ignore")
address = sys.argv[1]

def refused(call):
    try:
        call()
    except ClientClosed as error:
        return "forked" in str(error)
    return False

def fork(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)    # a child that hangs ends by this, and its parent sees it
        work()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""

FAMILY = """
CHILDREN = int(sys.argv[2])
producer = headrace.Producer(address, enable_idempotence=False, retries=0)  # a connection that breaks is an error
consumer = headrace.Consumer("t", bootstrap_servers=address, auto_offset_reset="earliest")
producer.send("t", b"first").result(30)
assert [record.value for record in consumer.poll(timeout_ms=30_000)] == [b"first"]

done = threading.Event()
sent = []
def go_on():
    while not done.is_set():
        sent.append(b"parent %d" % len(sent))
        producer.send("t", sent[-1]).result(30)
sender = threading.Thread(target=go_on)

def own(name):
    with headrace.Producer(address) as mine:
        end = mine.send("one", name).result(30).offset
    with headrace.Consumer(bootstrap_servers=address) as mine:
        mine.assign([("one", 0)])
        mine.seek(("one", 0), end)
        assert [record.value for record in mine.poll(timeout_ms=30_000)] == [name]

def child(number, depth=1):
    assert refused(lambda: producer.send("t", b"twice"))
    assert refused(lambda: producer.flush(1)) and refused(lambda: consumer.poll(timeout_ms=1))
    producer.close(), consumer.close()
    if depth:
        own(b"child %d" % number)
        fork(lambda: child(number, depth - 1))
        if number % 2:      # what it has of its parent is dropped
            for name in ("producer", "consumer"):
                del globals()[name]
            gc.collect()
    else:
        own(b"grandchild %d" % number)

sender.start()
for number in range(CHILDREN):
    if number % 4 == 3:
        process = multiprocessing.get_context("fork").Process(target=child, args=(number,))
        process.start()
        process.join(60)
        assert process.exitcode == 0, process.exitcode
    else:
        fork(lambda: child(number))
done.set()
sender.join()
read = []
while len(read) < len(sent):
    records = consumer.poll(timeout_ms=30_000)
    assert records, (len(read), len(sent))
    read += [record.value for record in records]
assert sorted(read) == sorted(sent), (len(read), len(sent))
with headrace.Consumer("one", bootstrap_servers=address, auto_offset_reset="earliest") as every:
    values = [record.value for record in every.read_to_end(30_000)]
assert values == [b"%s %d" % (who, number) for number in range(CHILDREN) for who in (b"child", b"grandchild")], values
producer.close(), consumer.close()
"""

ON_ITS_WAY = """
producer = headrace.Producer(address, linger_ms=60_000)
single = producer.send("t", b"on its way")      # lingers
many = producer.send_many("t", [b"on", b"its", b"way"])

def child():
    assert refused(lambda: single.result()) and refused(lambda: many.result())
    assert refused(lambda: single.add_done_callback(print))
    async def wait():
        await single
    assert refused(lambda: asyncio.run(wait()))

fork(child)
os._exit(0)
"""

ASYNCIO = """
idle = aio.Producer(address)

async def use(producer):
    async with producer:
        return (await (await producer.send("one", b"x"))).offset

async def parent():
    global used, consumer
    used = aio.Producer(address)
    consumer = aio.Consumer("one", bootstrap_servers=address, auto_offset_reset="earliest")
    await (await used.send("one", b"x"))
    assert len(await consumer.poll(timeout_ms=30_000)) == 1
    lingering = aio.Producer(address, linger_ms=60_000)
    return lingering, await lingering.send("t", b"on its way")

def child():
    assert refused(on_its_way.result) and refused(on_its_way.exception)
    async def go():
        for call in (used.send("one", b"twice"), used.flush(), consumer.poll(), aio_owner.init()):
            try:
                await call
                sys.exit(2)
            except ClientClosed as error:
                assert "forked" in str(error)
        await used.close(), await consumer.close(), await aio_owner.close()
        assert await use(aio.Producer(address)) == 1
        assert await use(idle) == 2     # the parent has not used it
    asyncio.run(go())

aio_owner = aio.UnitOwner(address, "nightly")
loop = asyncio.new_event_loop()
_, on_its_way = loop.run_until_complete(parent())
fork(child)
os._exit(0)
"""

NO_COPY = """
from headrace_common.rpc import library
def nowhere(path):
    raise ImportError("not here")
library._in_memory = library._in_directory = nowhere

def make():
    return headrace.Producer(address)

def told():
    try:
        make().close()
        sys.exit(2)
    except HeadraceError as error:
        assert "spawn" in str(error) and "not here" in str(error), error

fork(lambda: make().close())        # gRPC was not used yet: it works as it is
with make() as producer:
    producer.send("one", b"x").result(30)
fork(told)
"""

OTHERS = """
import grpc
def child():
    with headrace.Producer(address) as producer:
        producer.send("one", b"x").result(30)
    from headrace_common.core.errors import NetworkFailed
    from headrace_common.rpc.channels import open_sync_channel
    from headrace_common.rpc.library import library
    from headrace_common.rpc.status import error_from_rpc
    assert sys.modules["grpc"] is grpc and library() is not grpc
    assert library().StatusCode is not grpc.StatusCode
    with open_sync_channel("127.0.0.1:1") as nobody:
        try:
            nobody.unary_unary("/headrace.v1.Broker/Metadata")(b"", timeout=60)
        except library().RpcError as error:
            assert type(error_from_rpc(error)) is NetworkFailed
        else:
            sys.exit(2)
with headrace.Producer(address) as producer:
    producer.send("one", b"x").result(30)
fork(child)
"""

ENDED = """
from headrace_common.rpc.channels import Channels
from headrace_common.runtime.asking import Asking
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

async def until_the_broker_ends_it():
    channels = Channels()
    async with TaskRunner() as tasks:
        call = BrokerStub(channels.to(address)).Produce()
        asking = Asking(call, "the broker", tasks)
        await call.done_writing()
        async with asyncio.timeout(30):
            while asking.failure is None:
                assert tasks.failure is None
                await asyncio.sleep(0.01)
    assert "ended the stream" in str(asking.failure)
    await channels.close()

with headrace.Producer(address) as producer:
    producer.send("one", b"x").result(30)
fork(lambda: asyncio.run(until_the_broker_ends_it()))
"""


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    broker = BrokerThread({"one": 1, "t": 3})
    try:
        yield broker
    finally:
        broker.stop()


def run(program: str, *args: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *args], capture_output=True, text=True, timeout=250, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.timeout(300)
def test_children_and_their_children_make_clients_and_the_parent_goes_on(broker: BrokerThread) -> None:
    run(FAMILY, broker.address, str(CHILDREN))


def test_what_the_parent_has_under_way_is_not_waited_for_in_a_child(broker: BrokerThread) -> None:
    run(ON_ITS_WAY, broker.address)


def test_clients_of_asyncio(broker: BrokerThread) -> None:
    run(ASYNCIO, broker.address)


def test_a_child_that_cannot_load_its_own_grpc_says_so(broker: BrokerThread) -> None:
    run(NO_COPY, broker.address)


def test_others_who_use_grpc_in_a_child_keep_theirs(broker: BrokerThread) -> None:
    run(OTHERS, broker.address)


def test_a_stream_that_its_broker_ends(broker: BrokerThread) -> None:
    run(ENDED, broker.address)
