"""``python -m headrace_jobs.topic_copy``."""

from headrace_jobs.arguments import begin
from headrace_jobs.topic_copy.job import main

begin(main)
