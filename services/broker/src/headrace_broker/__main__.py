"""``python -m headrace_broker``: settings from the environment and the command line, then serve."""

import os
import sys

from headrace_common.runtime.early import starting

if __name__ == "__main__":
    with starting():
        from headrace_broker.config import BrokerConfig
        from headrace_broker.main import serve
        from headrace_common.runtime.env import settings_or_exit
        from headrace_common.runtime.service import run_process
    config = settings_or_exit(BrokerConfig, service="broker", argv=sys.argv[1:], env=os.environ)
    sys.exit(run_process(lambda stop: serve(config, stop)))
