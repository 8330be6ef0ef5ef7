"""``python -m headrace_jobs.windowed_aggregate``."""

import sys

from headrace_jobs.windowed_aggregate.job import main

sys.exit(main())
