#!/usr/bin/env bash
# All tests, as two runs side by side: those on the engine that they share, and those that need none or start their own.
# One run alone leaves almost half of two cores idle, waiting for streams. Arguments go to both (`make test PYTEST_ARGS=…`).
set -uo pipefail
cd "$(dirname "$0")/.."

NOTHING=5 # pytest's code for a run that found no test: fine for one of the two
log=target/tests-without-engine.log
mkdir -p target
pytest() { .venv/bin/python -m pytest -m "$@"; }

pytest "not needs_engine" --junitxml=target/tests-without-engine.xml "$@" >"$log" 2>&1 </dev/null &
other=$!
# The signal that ends the run in front reaches the one behind it, too; either ends its services before it ends.
trap 'kill -TERM "$other" 2>/dev/null; wait "$other"; exit 130' INT TERM
echo "tests without the shared engine run behind this; their output follows, meanwhile it is in $log"
pytest needs_engine --junitxml=target/tests-with-engine.xml "$@"
front=$?
wait "$other"
behind=$?
trap - INT TERM
printf '\n'
cat "$log"
[ "$front" = "$NOTHING" ] && front=0 && [ "$behind" = "$NOTHING" ] && behind=1
[ "$behind" = "$NOTHING" ] && behind=0
[ "$front" = 0 ] && [ "$behind" = 0 ] || { echo "failed: with the engine: exit code $front; without: $behind" >&2; exit 1; }
