#!/usr/bin/env bash
# All tests, as two runs side by side, one for each of two cores, which take about the same time. Each has a broker, a
# registry and an engine of its own. Arguments go to both (`make test PYTEST_ARGS=…`).
set -uo pipefail
cd "$(dirname "$0")/.."

NOTHING=5 # pytest's code for a run that found no test: fine for one of the two
log=target/tests-beside.log
mkdir -p target

.venv/bin/python -m pytest tests/unit tests/e2e tests/conformance/test_sample.py tests/integration/test_[o-z]*.py "$@" \
	>"$log" 2>&1 </dev/null &
other=$!
echo "the other half of the tests runs beside these; its output follows, meanwhile it is in $log"
.venv/bin/python -m pytest tests/integration/test_[a-n]*.py tests/faults "$@" </dev/null &
front=$!
# Both are in the background: a shell that waits for a command in front hears of no signal before that has ended. Either
# ends its services before it ends.
trap 'kill -TERM "$front" "$other" 2>/dev/null; wait "$front" "$other"; exit 130' INT TERM
wait "$front"
front_code=$?
wait "$other"
behind=$?
trap - INT TERM
printf '\n'
cat "$log"
[ "$front_code" = "$NOTHING" ] && front_code=0 && [ "$behind" = "$NOTHING" ] && behind=1
[ "$behind" = "$NOTHING" ] && behind=0
[ "$front_code" = 0 ] && [ "$behind" = 0 ] || { echo "failed: exit code of this half: $front_code; of the other: $behind" >&2; exit 1; }
