"""An archive of the engine's classes, so that Spark starts in half the time.

Rules
- The archive (Java's class data sharing) belongs to one environment: it knows the jars by their paths, and lies beside
  them. A JVM that finds it does not fit goes on without it.
- It is made once, by a Spark application that does what engines do and ends: `python -m penstock.engine.archive`.
- Nothing depends on it. Where it cannot be written, engines start as they do without.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

import psutil
import pyspark
from pyspark.sql import SparkSession

from penstock.jars import java
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings

_DUMP_TIMEOUT = 180.0  # seconds for the JVM to write the archive when it ends
_WORK = (
    "CREATE SCHEMA work",
    "CREATE TABLE work.rows (id INT, name STRING) USING delta",
    "INSERT INTO work.rows VALUES (1, 'a')",
    """MERGE INTO work.rows AS old USING (SELECT 1 AS id, 'b' AS name) AS new ON old.id = new.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *""",
    "SELECT from_json(name, 'a INT') AS parsed, count(*) FROM work.rows GROUP BY ALL",
    "DESCRIBE DETAIL work.rows",
)


def path() -> Path:
    """Where the archive of this environment, this Spark and this Java lies, if it was made."""
    found = java()
    key = hashlib.sha256(f"{found.path.resolve()} {found.major} {pyspark.__file__} {pyspark.__version__}".encode())
    return Path(sys.prefix) / "share" / "penstock" / f"engine-{key.hexdigest()[:12]}.jsa"


def options() -> str:
    """Java's options that use the archive; none when there is none."""
    archive = path()
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto -Xlog:cds=off' if archive.is_file() else ""


def make() -> Path:
    """Make the archive."""
    archive = path()
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_suffix(f".{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="penstock-archive-") as folder:
        try:
            _run(ProjectPaths(Path(folder)), f'"-XX:ArchiveClassesAtExit={draft}" -Xlog:cds=off -Xlog:cds+dynamic=off')
            draft.replace(archive)
        finally:
            draft.unlink(missing_ok=True)
    return archive


def _run(paths: ProjectPaths, java_options: str) -> None:
    """An engine's session that works a little and ends; its JVM writes the archive then."""
    from penstock.engine import session

    paths.logs.mkdir(parents=True, exist_ok=True)
    settings = RuntimeSettings(target="archive", schema="work")
    spark = session.create(paths, settings, port=session.free_port(), token="none", java_options=java_options)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    _work(spark, paths)
    spark.stop()
    process = psutil.Process(gateway.proc.pid)
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with it
    process.wait(timeout=_DUMP_TIMEOUT)


def _work(spark: SparkSession, paths: ProjectPaths) -> None:
    for statement in _WORK:
        spark.sql(statement).collect()
    counted = spark.readStream.format("rate").load().groupBy("value").count()
    query = (
        counted.writeStream.outputMode("update")
        .foreachBatch(lambda batch, _: batch.toArrow())
        .option("checkpointLocation", str(paths.project / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    if not path().is_file():
        make()
