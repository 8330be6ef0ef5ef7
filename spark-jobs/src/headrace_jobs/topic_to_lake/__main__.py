"""``python -m headrace_jobs.topic_to_lake``."""

from headrace_jobs.arguments import begin
from headrace_jobs.topic_to_lake.job import main

begin(main)
