#!/usr/bin/env bash
# Runs one stage of the tests and prints its seconds, and how many of the machine's cores were busy meanwhile.
name=$1
shift
busy() { awk '/^cpu / { print ($2 + $3 + $4 + $7 + $8) / 100 }' /proc/stat; } # seconds of all cores, in ticks of 10 ms
start=$EPOCHREALTIME
busy_before=$(busy)
"$@"
code=$?
awk -v name="$name" -v a="$start" -v b="$EPOCHREALTIME" -v busy="$(busy)" -v before="$busy_before" -v code="$code" \
  'BEGIN { printf "%-12s %6.1f s, %.1f cores busy%s\n", name, b - a, (busy - before) / (b - a), code ? "  failed (" code ")" : "" }' >&2
exit $code
