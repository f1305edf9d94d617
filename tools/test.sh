#!/usr/bin/env bash
# Tests, as two runs side by side, one for each of two cores. Each has a broker, a registry and an engine of its own,
# and takes the next tests that the other has not taken (tests/unit/halves.py): both end at about the same time. The
# dearest come first, the cheapest last. Arguments go to both (`make test PYTEST_ARGS=…`).
set -uo pipefail
cd "$(dirname "$0")/.."

NOTHING=5 # pytest's code for a run that found no test: fine for one of the two
ORDER=(tests/e2e tests/faults tests/integration tests/conformance/test_sample.py tests/unit)
log=target/tests-beside.log
mkdir -p target
PENSTOCK_SHARED_TESTS=$(mktemp -d)
export PENSTOCK_SHARED_TESTS
trap 'rm -rf "$PENSTOCK_SHARED_TESTS"' EXIT

.venv/bin/python -m pytest "${ORDER[@]}" "$@" >"$log" 2>&1 </dev/null &
other=$!
echo "another run takes its part of the tests beside this one; its output follows, meanwhile it is in $log"
.venv/bin/python -m pytest "${ORDER[@]}" "$@" </dev/null &
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
