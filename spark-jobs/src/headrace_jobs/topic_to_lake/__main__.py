"""``python -m headrace_jobs.topic_to_lake``."""

import sys

from headrace_jobs.topic_to_lake.job import main

sys.exit(main())
