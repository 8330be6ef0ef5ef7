"""``headrace tls``: which certificates the nodes of a cluster show until when, and how an address speaks."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from headrace.finding import CA_VARIABLE
from headrace_cli.commanding import command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.session import Session
from headrace_common.core.ids import Endpoint

HELP = "Certificates: which node shows which until when, how an address speaks"


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace tls``."""
    command(app, "list")(list_)
    command(app, needs_cluster=False)(check)
    command(app)(rotate)


def list_(
    session: Session,
    *,
    look: Annotated[bool, typer.Option("--look", help="Nodes look at their files first")] = False,
) -> None:
    """
    Show each node's certificates, and the CAs it trusts (SHA-256, the first digits). Ends with 1 if one is over, a
    node refused its files, or cannot be asked.
    """
    from headrace_cli import tls_view as view

    with session.admin() as admin:
        found = admin.describe_certificates(look=look)
    now_ms = int(datetime.now(UTC).timestamp() * 1_000)
    if session.output is Output.TABLE:
        session.show(view.rows_of(found, now_ms), *view.COLUMNS)
    else:
        session.show({"nodes": view.as_data(found)})
    wrong = view.complaints(found, now_ms)
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise CommandFailed(f"{wrong[0]}{more}", hint="docs/security.md#tls says what a service takes.")


def check(
    session: Session,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Of any listener, a worker's or etcd's too")],
    *,
    ca: Annotated[
        Path | None, typer.Option("--ca", help="File of the CAs to trust; by default the cluster's", dir_okay=False)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="What the certificate must be for, as broker.headrace; by default the host"),
    ] = None,
) -> None:
    """
    Connect to one address and show how it speaks: TLS or plain text, its certificate, whether that verifies, and
    whether it demands one. No credential is shown. Ends with 1 where a client would be refused.
    """
    from headrace_cli import tls_view as view
    from headrace_cli.tls_probe import clock_fault, probe

    try:
        at = Endpoint.parse(address)
    except ValueError as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    known = session.cluster.ca or os.environ.get(CA_VARIABLE)
    trusted = ca or (Path(known) if known else None)
    found = probe(at, name or at.host, trusted)
    clock = clock_fault(found.chain[0], int(datetime.now(UTC).timestamp() * 1_000)) if found.chain else ""
    session.show(view.probe_of(at, found, trusted, clock))
    wrong = view.probe_complaint(found, name or at.host, trusted, clock)
    if wrong:
        raise CommandFailed(f"{at}: {wrong}", hint="docs/security.md#tls says what is asked of a certificate.")


def rotate(
    session: Session,
    *,
    ca: Annotated[
        bool, typer.Option("--ca", help="Another CA too, in three steps; repeat it where it was cut")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that nodes may take for a step")] = 60,
) -> None:
    """
    Give a local cluster (`headrace up --tls`) that runs new certificates, without a restart. Elsewhere it says what to
    do instead.
    """
    if session.cluster.file is None or session.cluster.ca is None:
        raise CommandFailed(
            "only the certificates of a local cluster are made here, which `headrace up --tls` has started in this "
            "directory",
            ExitCode.USAGE,
            "On Kubernetes the CronJob headrace-certificates or cert-manager renews them. docs/security.md#tls has "
            '"Another CA", there and elsewhere.',
        )
    from headrace_cli.local.rotation import Rotation
    from headrace_cli.local.state import DataDir
    from headrace_cli.tls_rotating import Rotating, files_of

    data_dir = Path(session.cluster.file).parent
    state = DataDir.at(data_dir).read()
    if state is None:
        raise CommandFailed(f"{data_dir} has no cluster; `headrace up --tls` starts one", ExitCode.NOT_FOUND)
    files, life = files_of(data_dir), timedelta(seconds=state.options.certificate_seconds)
    with session.admin() as admin:
        rotation = Rotation(files, datetime.now(UTC), life)
        rotating = Rotating(admin, files, rotation, session.say, timeout_s=timeout, others=state.options.connect)
        rotating.ca() if ca else rotating.pairs()
