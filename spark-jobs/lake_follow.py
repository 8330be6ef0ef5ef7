"""For ``spark-submit spark-jobs/lake_follow.py …``; headrace-jobs must be installed where the driver runs."""

from headrace_jobs.arguments import begin
from headrace_jobs.lake_follow.job import main

if __name__ == "__main__":
    begin(main)
