"""``python -m headrace_jobs.retention_audit``."""

from headrace_jobs.arguments import begin
from headrace_jobs.retention_audit.job import main

begin(main)
