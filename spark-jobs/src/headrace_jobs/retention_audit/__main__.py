"""``python -m headrace_jobs.retention_audit``."""

import sys

from headrace_jobs.retention_audit.job import main

sys.exit(main())
