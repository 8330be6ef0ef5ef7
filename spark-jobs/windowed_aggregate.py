"""For ``spark-submit spark-jobs/windowed_aggregate.py …``; headrace-jobs must be installed where the driver runs."""

from headrace_jobs.arguments import begin
from headrace_jobs.windowed_aggregate.job import main

if __name__ == "__main__":
    begin(main)
