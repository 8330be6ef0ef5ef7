"""``python -m headrace_admin``: settings from the environment and the command line, then serve."""

import os
import sys

from headrace_common.runtime.early import starting

if __name__ == "__main__":
    with starting():
        from headrace_admin.config import AdminConfig
        from headrace_admin.main import serve
        from headrace_common.runtime.env import settings_or_exit
        from headrace_common.runtime.service import run_process
    config = settings_or_exit(AdminConfig, service="admin", argv=sys.argv[1:], env=os.environ)
    sys.exit(run_process(lambda stop: serve(config, stop)))
