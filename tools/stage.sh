#!/usr/bin/env bash
# Runs one stage of the tests and prints its seconds.
name=$1
shift
start=$EPOCHREALTIME
"$@"
code=$?
awk -v name="$name" -v a="$start" -v b="$EPOCHREALTIME" -v code="$code" \
  'BEGIN { printf "%-12s %6.1f s%s\n", name, b - a, code ? "  failed (" code ")" : "" }' >&2
exit $code
