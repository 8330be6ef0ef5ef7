"""For ``spark-submit spark-jobs/table_snapshot.py …``; headrace-jobs must be installed where the driver runs."""

from headrace_jobs.arguments import begin
from headrace_jobs.table_snapshot.job import main

if __name__ == "__main__":
    begin(main)
