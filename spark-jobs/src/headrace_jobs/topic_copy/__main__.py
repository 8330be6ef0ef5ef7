"""``python -m headrace_jobs.topic_copy``."""

import sys

from headrace_jobs.topic_copy.job import main

sys.exit(main())
