"""For ``spark-submit spark-jobs/topic_copy.py …``; headrace-jobs must be installed where the driver runs."""

import sys

from headrace_jobs.topic_copy.job import main

if __name__ == "__main__":
    sys.exit(main())
