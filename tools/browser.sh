#!/usr/bin/env bash
# Chromium for the browser tests, from the system's packages. Run by `make test-deep`; does nothing when there is one.
# Without Chromium the tests are skipped, in CI (the variable CI is set) they fail.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then
  echo "installing chromium with apt" >&2
  out=$({ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } 2>&1) \
    || { echo "$out" >&2; echo "apt-get could not install chromium" >&2; exit 1; }
elif [ -n "${CI:-}" ]; then
  echo "There is no Chromium, and CI has to run the browser tests (Debian/Ubuntu: apt-get install chromium)." >&2
  exit 1
else
  echo "There is no Chromium: the browser tests are skipped. Install it to run them (Debian/Ubuntu: apt-get install chromium)." >&2
fi
