"""Which Java runs the JVMs.

Rules
- JAVA_HOME is taken first, then the PATH, as Spark's own scripts do: what is checked is what will run.
- Only 17 and 21 are accepted. A wrong JAVA_HOME is an error even if a right Java is on the PATH, because Spark would
  take the wrong one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from penstock.errors.catalogue import JAVA_MISSING, JAVA_VERSION

ACCEPTED = (17, 21)
_VERSION = re.compile(r'version "(?P<first>\d+)(?:\.(?P<second>\d+))?[^"]*"')
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Java:
    """A Java that Penstock can use."""

    path: Path
    major: int


def parse_major(text: str) -> int | None:
    """The major version in the output of `java -version`; 1.8 is 8. None when it is no such output."""
    found = _VERSION.search(text)
    if found is None:
        return None
    first = int(found["first"])
    return int(found["second"]) if first == 1 and found["second"] else first


def java(env: Mapping[str, str] | None = None) -> Java:
    """The Java to use; raises JAVA_MISSING or JAVA_VERSION."""
    environment = os.environ if env is None else env
    return _checked(environment.get("JAVA_HOME") or None, environment.get("PATH", os.defpath))


@lru_cache(maxsize=8)
def _checked(home: str | None, search: str) -> Java:
    path = _locate(home, search)
    origin = f"JAVA_HOME={home}" if home else str(path)
    try:
        ran = subprocess.run(
            [str(path), "-version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise JAVA_MISSING.error(f"Java at {path} cannot be run: {cause}.") from cause
    if ran.returncode != 0:
        # macOS ships a /usr/bin/java that only says that there is none
        raise JAVA_MISSING.error(f"Java at {path} does not start.")
    major = parse_major(ran.stderr + ran.stdout)
    if major not in ACCEPTED:
        raise JAVA_VERSION.error(f"{origin} is Java {major if major is not None else 'of an unknown version'}.")
    return Java(path, major)


def _locate(home: str | None, search: str) -> Path:
    if home:
        path = Path(home) / "bin" / "java"
        if not path.is_file():
            raise JAVA_MISSING.error(
                f"JAVA_HOME={home} has no bin/java.", hint="Point JAVA_HOME at a Java 17 or 21, or unset it."
            )
        return path
    found = shutil.which("java", path=search)
    if found is None:
        raise JAVA_MISSING.error("No Java on the PATH, and JAVA_HOME is not set.")
    return Path(found)
