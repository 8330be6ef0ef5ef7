"""For ``spark-submit spark-jobs/topic_copy.py …``; headrace-jobs must be installed where the driver runs."""

from headrace_jobs.arguments import begin
from headrace_jobs.topic_copy.job import main

if __name__ == "__main__":
    begin(main)
