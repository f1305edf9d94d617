"""The Spark application of the engine.

Rules
- Everything listens on loopback only; the SQL endpoint wants a token, which travels by environment, never by arguments.
- ANSI mode is off for streams and for dbt alike: a value that does not fit is null, in a test as in the stream.
- Sizes are set on purpose: one JVM, a bounded heap, little history in the web UI.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from penstock import jars
from penstock.engine import archive, polling, pools
from penstock.errors.catalogue import PORT_TAKEN
from penstock.paths import ProjectPaths
from penstock.project.profile import RuntimeSettings

LOOPBACK = "127.0.0.1"

COMMON = {
    "spark.scheduler.mode": "FAIR",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.sources.default": "delta",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "128",
    # The default manager starts a process or two for every file on a local disk; this one renames.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Every operator of every stream has a generated class; one that 100 others pushed out is compiled at each batch.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    polling.CONF: f"{polling.SHORTEST}ms",
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    # Spark's own words and those of options that hold credentials: they are hidden in plans, logs and the web UI.
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|jaas|keystore|truststore|private.?key",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.streaming.ui.retainedProgressUpdates": "20",
    "spark.sql.streaming.ui.retainedQueries": "50",
    "spark.cleaner.periodicGC.interval": "10min",
}


def free_port(wanted: int = 0) -> int:
    """A free port on loopback: the wanted one or PORT_TAKEN; any when 0 is wanted."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted))
        except OSError as problem:
            raise PORT_TAKEN.error(f"Port {wanted} of the engine is taken.") from problem
        return int(probe.getsockname()[1])


def create(
    paths: ProjectPaths, settings: RuntimeSettings, *, port: int, token: str, java_options: str | None = None
) -> SparkSession:
    """The engine's session, with the SQL endpoint open on `port`. The JVM uses the archive of classes, if there is one,
    or has the given options in its place.
    """
    classes = archive.options() if java_options is None else java_options
    engine = settings.engine
    paths.engine.mkdir(parents=True, exist_ok=True)
    scratch = paths.engine / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)  # of an engine that was killed
    scratch.mkdir()
    allocations = paths.engine / "pools.xml"
    allocations.write_text(pools.XML)
    # Spark passes its settings to the JVM as arguments, which every user of the machine can read.
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["PYSPARK_PYTHON"] = (
        sys.executable
    )  # workers that decode need the same packages; Spark would take python3
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # glibc would keep an arena per thread for RocksDB and Arrow
    conf = COMMON | {
        "spark.app.name": f"penstock {paths.project.name}",
        "spark.driver.memory": engine.memory,
        "spark.driver.maxResultSize": result_size(engine.memory),
        "spark.sql.maxBroadcastTableSize": result_size(engine.memory),  # a hint asks for any; past the heap all end
        "spark.driver.extraJavaOptions": f"{_java_options(paths)} {classes}",
        "spark.jars": ",".join(str(jar) for jar in jars.fetch("engine")),
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.scheduler.allocation.file": str(allocations),
        "spark.sql.shuffle.partitions": str(engine.shuffle_partitions),
        "spark.sql.warehouse.dir": str(paths.warehouse),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={paths.metastore};create=true",
        "spark.local.dir": str(scratch),
        "spark.ui.port": "0",
        "spark.penstock.project": str(paths.project),
    }
    if settings.kafka.bootstrap:
        conf["spark.penstock.kafka.bootstrap"] = settings.kafka.bootstrap
    if settings.kafka.options:
        conf["spark.penstock.kafka.options"] = json.dumps(settings.kafka.model_dump(mode="json")["options"])
    if settings.schema_registry.options:
        options = settings.schema_registry.model_dump(mode="json")["options"]
        conf["spark.penstock.registry.options"] = json.dumps(options)
    return _build(f"local[{engine.cores}]", conf | engine.spark_conf)


def result_size(memory: str) -> str:
    """The most that a job may bring to the driver: a part of its heap. Larger results are an error, and not its end."""
    smaller = {"g": "m", "m": "k", "k": "b"}
    return f"{int(memory[:-1]) * 1024 // 4}{smaller[memory[-1].lower()]}"


def for_tests(paths: ProjectPaths, memory: str = "1g") -> SparkSession:
    """A session for stream tests: settings as an engine has them, a catalog in memory, nobody can connect to it."""
    for folder in (paths.logs, paths.engine / "scratch"):
        folder.mkdir(parents=True, exist_ok=True)
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    # It lives for a minute or so: quick compilation does more for it than thorough compilation.
    java_options = f"{_java_options(paths)} -XX:TieredStopAtLevel=1 {archive.options()}"
    conf = COMMON | {
        "spark.app.name": f"stream tests of {paths.project.name}",
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": java_options,
        "spark.jars": ",".join(str(jar) for jar in jars.fetch("engine")),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(paths.warehouse),
        "spark.sql.catalogImplementation": "in-memory",
        # Hadoop starts a chmod for every file that it makes, and twice as many where each has a checksum beside it;
        # Delta's usual way to commit starts a readlink, too. What a test writes is gone in a second.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
        "spark.local.dir": str(paths.engine / "scratch"),
        "spark.ui.enabled": "false",
        polling.CONF: "5ms",
        "spark.penstock.project": str(paths.project),
    }
    session = _build("local[2]", conf)
    session.sparkContext.setLogLevel("ERROR")
    return session


def with_own_catalog(spark: SparkSession) -> SparkSession:
    """Another session of the same application that shares no schema, table or view with it, where the catalog is in
    memory. (`newSession` shares all of them.)
    """
    context = spark.sparkContext
    made = SparkSession._get_j_spark_session_class(spark._jvm)(context._jsc.sc(), {})
    return SparkSession(context, jsparkSession=made)


def standalone(name: str, project: Path) -> SparkSession:
    """A session for one job under `spark-submit`: what the command line sets comes first."""
    conf = COMMON | {"spark.penstock.project": str(project)}
    session = SparkSession.getActiveSession()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if session is None:
        builder = SparkSession.builder.appName(name).enableHiveSupport()
        for key, value in conf.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    return session


def _java_options(paths: ProjectPaths) -> str:
    # In quotes: a path may have spaces.
    files = f'"-Dderby.stream.error.file={paths.logs / "derby.log"}" "-Djava.io.tmpdir={paths.engine / "scratch"}"'
    # The code cache in numbers, too: with quick compilation alone its default is too small for Spark, and the JVM dies.
    sizes = "-XX:MaxMetaspaceSize=512m -XX:ReservedCodeCacheSize=240m -Xss1m"
    return f"{files} {sizes} -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError"


def _build(master: str, conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session
