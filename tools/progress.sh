# Sourced: progress WHAT COMMAND... runs a command, and says on stderr what it is and how long it takes once that is
# more than two seconds: one line that counts at a terminal, else a line at first and every ten seconds.
progress() {
  local what=$1 began=$SECONDS pid seconds told=-10 status=0
  shift
  "$@" &
  pid=$!
  # Bash lets what runs in the background ignore Ctrl+C.
  trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    seconds=$((SECONDS - began))
    if [ "$seconds" -ge 2 ]; then
      if [ -t 2 ]; then
        printf '\r%s ... %d s ' "$what" "$seconds" >&2
      elif [ $((seconds - told)) -ge 10 ]; then
        told=$seconds
        echo "$what ... $seconds s" >&2
      fi
    fi
    sleep 0.2
  done
  wait "$pid" || status=$?
  trap - INT TERM
  seconds=$((SECONDS - began))
  if [ "$seconds" -ge 2 ]; then
    [ -t 2 ] && printf '\r' >&2
    [ "$status" = 0 ] && echo "$what: done after $seconds s " >&2 || echo "$what: failed after $seconds s " >&2
  fi
  return "$status"
}
