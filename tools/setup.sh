#!/usr/bin/env bash
# Makes .venv ready: Java, Python packages, jars. Run by `make setup`; does nothing that is already done.
#
# - Packages are installed again only when pyproject.toml or constraints.txt changed (.venv/.installed is the mark).
# - On Debian and Ubuntu, as root, what is missing of the system is installed with apt; elsewhere one line says what to do.
# - Output of the tools goes to .venv/setup.log and is shown only if something fails.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
mark=.venv/.installed
log=.venv/setup.log

say() { printf '%s\n' "$*" >&2; }
fail() { say "setup: $*"; exit 1; }
can_apt() { [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; }

apt_install() {
  say "installing $* with apt"
  local out
  out=$({ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } 2>&1) \
    || { say "$out"; fail "apt-get could not install $*"; }
}

java_found() {
  # as Spark looks for it: JAVA_HOME first; on macOS there is a java that only says that there is none
  if [ -n "${JAVA_HOME:-}" ]; then [ -x "$JAVA_HOME/bin/java" ]; else java -version >/dev/null 2>&1; fi
}

if ! java_found; then
  [ -z "${JAVA_HOME:-}" ] || fail "JAVA_HOME=$JAVA_HOME has no bin/java; point it at Java 17 or 21, or unset it."
  can_apt || fail "Java is missing. Install Java 17 or 21 (Debian/Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) and run again."
  apt_install openjdk-17-jre-headless
fi

if [ ! -e "$mark" ] || [ pyproject.toml -nt "$mark" ] || [ constraints.txt -nt "$mark" ]; then
  command -v "$python" >/dev/null || fail "$python is missing. Install Python 3.10 or newer, or name one: make setup PYTHON=/path/to/python3"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
    || fail "$("$python" --version 2>&1) is too old. Python 3.10 or newer is needed; name one: make setup PYTHON=/path/to/python3"
  if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    say "virtual environment in .venv ($("$python" --version 2>&1))"
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      can_apt || fail "$python cannot make virtual environments. Install its venv module (Debian/Ubuntu: apt-get install python3-venv)."
      apt_install python3-venv
    fi
    "$python" -m venv --clear .venv || fail "$python could not make .venv"
  fi
  say "Python packages (a minute or two the first time)"
  .venv/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt -e ".[dev,orchestration]" >"$log" 2>&1 \
    || { tail -n 25 "$log" >&2; fail "pip could not install the packages; the whole output is in $log"; }
  touch "$mark"
fi

# silent when all jars are there; checks the version of Java, too
.venv/bin/python -m penstock.jars

# an archive of Spark's classes, beside the packages: engines start in half the time; nothing needs it
if ! compgen -G '.venv/share/penstock/engine-*.jsa' >/dev/null; then
  say "archive of Spark's classes (half a minute, once)"
  JDK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1 .venv/bin/python -m penstock.engine.archive >>"$log" 2>&1 \
    || say "setup: the archive could not be made; engines start without it (see $log)"
fi
