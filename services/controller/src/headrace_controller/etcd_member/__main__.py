"""``python -m headrace_controller.etcd_member``: decide, write etcd's configuration, end."""

import os
import sys

from headrace_common.runtime.env import settings_or_exit
from headrace_common.runtime.private_files import keep_private
from headrace_controller.etcd_member.config import EtcdMemberConfig
from headrace_controller.etcd_member.main import run

if __name__ == "__main__":
    keep_private()
    config = settings_or_exit(EtcdMemberConfig, service="etcd_member", argv=sys.argv[1:], env=os.environ)
    sys.exit(run(config))
