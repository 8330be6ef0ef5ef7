"""Starts one admin process: ``python -m headrace_admin --help``."""

from __future__ import annotations

import os
import sys

from headrace_admin.config import AdminConfig
from headrace_admin.main import serve
from headrace_common.runtime.env import settings_or_exit
from headrace_common.runtime.service import run_process

if __name__ == "__main__":
    config = settings_or_exit(AdminConfig, service="admin", argv=sys.argv[1:], env=os.environ)
    sys.exit(run_process(lambda stop: serve(config, stop)))
