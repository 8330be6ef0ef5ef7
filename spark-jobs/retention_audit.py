"""For ``spark-submit spark-jobs/retention_audit.py …``; headrace-jobs must be installed where the driver runs."""

from headrace_jobs.arguments import begin
from headrace_jobs.retention_audit.job import main

if __name__ == "__main__":
    begin(main)
