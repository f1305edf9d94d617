"""Ivy, the downloader that PySpark ships: Java alone fetches jars, no Maven, no repository address.

Rules
- Ivy runs as a process of its own and writes into a cache directory of its own; a file there may be half of one or a
  wrong one until its checksum was looked at.
- Ivy goes on after a file it could not get, so one run brings all that can be had.
- A company's mirror is named by PENSTOCK_MAVEN_REPOSITORY.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from penstock.errors.catalogue import JAR_FETCH
from penstock.jars.java import java
from penstock.jars.lock import Coordinate

# Ivy's own name for the place of a file in its cache, written out because the fetcher looks for the files there.
_PATTERN = "[organisation]/[module]/[artifact]-[revision](-[classifier]).[ext]"
_TAIL = 40  # lines of output kept for a failure


@dataclass(frozen=True)
class Outcome:
    """How a run of Ivy ended. `offline` means that the repository's host could not be reached at all."""

    complete: bool
    offline: bool
    tail: tuple[str, ...]


def cached(ivy_cache: Path, coordinate: Coordinate) -> Path:
    return ivy_cache / coordinate.group / coordinate.artifact / coordinate.file_name


def run(
    coordinates: Iterable[Coordinate],
    ivy_cache: Path,
    *,
    transitive: bool = False,
    extra: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
) -> Outcome:
    """Download into `ivy_cache` what is not there yet."""
    ivy_cache.mkdir(parents=True, exist_ok=True)
    settings = ivy_cache / "ivysettings.xml"
    module = ivy_cache / "ivy.xml"
    settings.write_text(
        settings_xml(ivy_cache, poms=transitive, repository=os.environ.get("PENSTOCK_MAVEN_REPOSITORY"))
    )
    module.write_text(module_xml(coordinates, transitive=transitive))
    command = [str(java().path), "-Xmx256m", "-jar", str(_ivy_jar())]
    command += ["-settings", str(settings), "-ivy", str(module), *extra]
    tail: deque[str] = deque(maxlen=_TAIL)
    offline = False
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                line = raw.rstrip()
                tail.append(line)
                offline = offline or ("Host " in line and " not found" in line) or "Connection refused" in line
                if on_line is not None:
                    on_line(line)
        except BaseException:
            process.kill()
            raise
    return Outcome(process.returncode == 0, offline, tuple(tail))


def settings_xml(ivy_cache: Path, *, poms: bool, repository: str | None) -> str:
    root = f" root={quoteattr(repository)}" if repository else ""
    return (
        '<ivysettings><settings defaultResolver="central"/>'
        f"<caches defaultCacheDir={quoteattr(str(ivy_cache))} artifactPattern={quoteattr(_PATTERN)}/>"
        f'<resolvers><ibiblio name="central" m2compatible="true" usepoms="{str(poms).lower()}"{root}/></resolvers>'
        "</ivysettings>\n"
    )


def module_xml(coordinates: Iterable[Coordinate], *, transitive: bool) -> str:
    """The list to download, as the dependencies of a module that exists only here."""
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '<info organisation="penstock" module="jars"/><configurations><conf name="default"/></configurations>',
        "<dependencies>",
    ]
    for c in coordinates:
        head = (
            f"<dependency org={quoteattr(c.group)} name={quoteattr(c.artifact)} rev={quoteattr(c.version)} "
            f'transitive="{str(transitive).lower()}" conf="default->default"'
        )
        if c.classifier or c.ext != "jar":
            classifier = f" m:classifier={quoteattr(c.classifier)}" if c.classifier else ""
            ext = quoteattr(c.ext)
            lines.append(
                f"{head}><artifact name={quoteattr(c.artifact)} type={ext} ext={ext}{classifier}/></dependency>"
            )
        else:
            lines.append(f"{head}/>")
    return "\n".join([*lines, "</dependencies></ivy-module>", ""])


def _ivy_jar() -> Path:
    # found, not imported: importing pyspark takes a second and belongs to the engine
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        jars = sorted((Path(place) / "jars").glob("ivy-*.jar"))
        if jars:
            return jars[-1]
    raise JAR_FETCH.error("PySpark's Ivy is not there.", hint="Install pyspark again: it ships jars/ivy-*.jar.")
