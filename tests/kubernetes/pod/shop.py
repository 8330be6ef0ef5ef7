"""
A shop beside the release, which never stops: orders are written into a database, and tickets are at a help desk.

``python shop.py run`` makes the tables in the PostgreSQL that starts beside it (the file ``/out/ready``). From the file
``/out/open`` to the file ``/out/stop`` it commits orders in transactions of 1 to 20 rows (``/out/state`` has how many),
and has a ticket more in each queue TICKETS_S times a second. The desk answers on port 8000, to who has the token:
``GET /tickets?queue=sales&after=7&limit=100``. ``/out/done`` says how many orders and tickets there were in the end.

``python shop.py copied`` prints, as JSON, how many copies of orders there are, of how many orders, and the newest; then
for each ``BEGIN,END`` in seconds of the wall clock the longest time without a copy. Environment: PASSWORD, TOKEN.
"""

import itertools
import json
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg

OUT = Path("/out")
ORDERS_S, TICKETS_S = 20.0, 10.0
"""Transactions a second, and tickets of a queue."""
QUEUES = ("sales", "support")
SETUP = """
CREATE ROLE headrace LOGIN REPLICATION PASSWORD '{password}';
CREATE DATABASE shop OWNER headrace;
CREATE DATABASE copies OWNER headrace;
"""
ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, note text NOT NULL)"
COPIES = "CREATE TABLE copies (id bigint NOT NULL, note text NOT NULL, at timestamptz DEFAULT clock_timestamp())"
"""Without a key: whatever comes twice is there twice."""


def connect(database: str, user: str = "headrace") -> psycopg.Connection:
    """Of the pod's own server."""
    password = os.environ["PASSWORD"]
    return psycopg.connect(host="127.0.0.1", dbname=database, user=user, password=password, autocommit=True)


class Desk(ThreadingHTTPServer):
    """The help desk: tickets of a queue are numbered from 1 and grow with time."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("0.0.0.0", port), Answer)
        self.began = 0.0
        self.closed: int | None = 0

    def count(self) -> int:
        """Tickets of a queue so far."""
        return int((time.monotonic() - self.began) * TICKETS_S) if self.closed is None else self.closed


class Answer(BaseHTTPRequestHandler):
    """One request to the desk."""

    server: Desk

    def do_GET(self) -> None:
        """Tickets behind a number, or 401."""
        if self.headers.get("Authorization") != f"Bearer {os.environ['TOKEN']}":
            self.answer(401, {"error": "who are you?"})
            return
        asked = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        after = int(asked["after"])
        last = min(self.server.count(), after + int(asked["limit"]))
        self.answer(200, [{"queue": asked["queue"], "number": n} for n in range(after + 1, last + 1)])

    def answer(self, status: int, body: object) -> None:
        """As JSON."""
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def make_tables() -> None:
    """Once the server is there."""
    while True:
        try:
            with connect("postgres", "postgres") as database:
                for statement in SETUP.format(password=os.environ["PASSWORD"]).split(";")[:-1]:
                    database.execute(statement)
            break
        except psycopg.OperationalError:
            time.sleep(0.2)
    for name, statement in (("shop", ORDERS), ("copies", COPIES)):
        with connect(name) as database:
            database.execute(statement)


def take_orders() -> int:
    """Until somebody says stop; how many there are."""
    chance, count, began, transactions = random.Random(1), 0, time.monotonic(), 0
    with connect("shop") as database:
        while not (OUT / "stop").exists():
            more = chance.randrange(1, 21)
            rows = [(n, f"order {n}") for n in range(count + 1, count + more + 1)]
            with database.transaction(), database.cursor() as cursor:
                cursor.executemany("INSERT INTO orders VALUES (%s, %s)", rows)
            count += more
            transactions += 1
            (OUT / "next").write_text(str(count))
            (OUT / "next").rename(OUT / "state")  # whoever looks sees a whole number
            time.sleep(max(0.0, began + transactions / ORDERS_S - time.monotonic()))
    return count


def run() -> None:
    """The whole of it."""
    make_tables()
    desk = Desk(8000)
    threading.Thread(target=desk.serve_forever, daemon=True).start()
    (OUT / "ready").touch()
    while not (OUT / "open").exists():
        time.sleep(0.1)
    desk.began, desk.closed = time.monotonic(), None
    orders = take_orders()
    desk.closed = desk.count()
    (OUT / "done").write_text(json.dumps({"orders": orders, "tickets": dict.fromkeys(QUEUES, desk.closed)}))
    threading.Event().wait()


def copied(windows: list[str]) -> None:
    """See the module."""
    with connect("copies") as database:
        [counts] = database.execute("SELECT count(*), count(DISTINCT id), coalesce(max(id), 0) FROM copies").fetchall()
        times = [row[0] for row in database.execute("SELECT extract(epoch FROM at)::float8 FROM copies ORDER BY at")]
    print(json.dumps({"copies": counts[0], "orders": counts[1], "newest": counts[2], "gaps": gaps(times, windows)}))


def gaps(times: list[float], windows: list[str]) -> list[float]:
    """For each window the longest time in it without one of ``times``, which are sorted."""
    found = []
    for window in windows:
        begin, end = map(float, window.split(","))
        inner = [begin, *(at for at in times if begin <= at <= end), end]
        found.append(max(after - before for before, after in itertools.pairwise(inner)))
    return found


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run()
    else:
        copied(sys.argv[2:])
