"""Runs a service as in a pod whose account is in another directory: ``as_pod.py DIRECTORY PYTHON -P -m MODULE ...``."""

import runpy
import sys
from pathlib import Path

from headrace_common.runtime import kubernetes

account, (_, _, _, module, *arguments) = sys.argv[1], sys.argv[2:]
kubernetes.ACCOUNT = Path(account)
sys.argv = [module, *arguments]
runpy.run_module(module, run_name="__main__", alter_sys=True)
