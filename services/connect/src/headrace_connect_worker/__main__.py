"""``python -m headrace_connect_worker``: settings from the environment and the command line, then serve."""

import os
import sys

from headrace_common.runtime.early import starting

if __name__ == "__main__":
    # Hosts are forked beside gRPC's threads: its fork handlers can do nothing there but complain, or crash the child.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    with starting():
        from headrace_common.runtime.env import settings_or_exit
        from headrace_common.runtime.service import run_process
        from headrace_connect_worker.config import ConnectConfig
        from headrace_connect_worker.main import serve
    config = settings_or_exit(ConnectConfig, service="connect", argv=sys.argv[1:], env=os.environ)
    sys.exit(run_process(lambda stop: serve(config, stop)))
