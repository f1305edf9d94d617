#!/usr/bin/env bash
# All tests, as two runs side by side: the integration tests on one engine, and all others (unit, faults, end to end).
# One run alone leaves almost half of two cores idle, waiting for streams. Arguments go to both (`make test PYTEST_ARGS=…`).
set -uo pipefail
cd "$(dirname "$0")/.."

NOTHING=5 # pytest's code for a run that found no test: fine for one of the two
log=target/tests-beside.log
mkdir -p target

.venv/bin/python -m pytest -m "not on_engine" --junitxml=target/tests-beside.xml "$@" >"$log" 2>&1 </dev/null &
other=$!
# The signal that ends the run in front reaches the one behind it, too; either ends its services before it ends.
trap 'kill -TERM "$other" 2>/dev/null; wait "$other"; exit 130' INT TERM
echo "unit, fault and end-to-end tests run beside these; their output follows, meanwhile it is in $log"
.venv/bin/python -m pytest -m on_engine --junitxml=target/tests-on-engine.xml "$@"
front=$?
wait "$other"
behind=$?
trap - INT TERM
printf '\n'
cat "$log"
[ "$front" = "$NOTHING" ] && front=0 && [ "$behind" = "$NOTHING" ] && behind=1
[ "$behind" = "$NOTHING" ] && behind=0
[ "$front" = 0 ] && [ "$behind" = 0 ] || { echo "failed: on the engine: exit code $front; beside: $behind" >&2; exit 1; }
