"""The rival: a PySpark job as a good engineer writes it by hand, with Spark's own Delta sink.

`job` is the job. The rest lets a measurement start and stop it in a warm application: a line of JSON on standard input
per command, a line on standard output per answer. Same heap, cores, jars and garbage collector as the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from penstock import jars

SCHEMA = (
    "event_id STRING, session_id STRING, item_id STRING, event_type STRING, page STRING, "
    "clicked_at TIMESTAMP, price DOUBLE"
)


def job(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    path: str,
    checkpoint: str,
    *,
    tuned: bool,
    limit: int | None,
    where: str = "true",
    counted: bool = False,
) -> StreamingQuery:
    """Clicks from a topic into a Delta table, as soon as they are there; or how many there are of each item."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
    )
    if limit:
        reader = reader.option("maxOffsetsPerTrigger", limit)
    if tuned:  # what somebody knows who has looked for the half second
        reader = reader.option("kafka.fetch.max.wait.ms", 20)
    clicks = reader.load().select(
        F.col("key").cast("string").alias("user_id"),
        F.from_json(F.col("value").cast("string"), SCHEMA).alias("click"),
        F.col("timestamp").alias("at"),
    )
    rows = clicks.select("user_id", "click.*", "at").where(where)
    if counted:
        rows = rows.groupBy("item_id").agg(F.count("*").alias("n"), F.max("at").alias("at"))
        return _merged(spark, rows, ["item_id"], path).option("checkpointLocation", checkpoint).start()
    return rows.writeStream.format("delta").outputMode("append").option("checkpointLocation", checkpoint).start(path)


def _merged(spark: SparkSession, rows: DataFrame, keys: list[str], path: str) -> DataStreamWriter:
    """Rows that replace those with the same key."""
    if not Path(path, "_delta_log").is_dir():
        spark.createDataFrame([], rows.schema).write.format("delta").save(path)

    def merge(batch: DataFrame, _: int) -> None:
        same = " AND ".join(f"old.`{key}` <=> new.`{key}`" for key in keys)
        batch.createOrReplaceTempView("changed")
        batch.sparkSession.sql(
            f"MERGE INTO delta.`{path}` AS old USING changed AS new ON {same} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return rows.writeStream.outputMode("update").foreachBatch(merge)


def drained(
    spark: SparkSession,
    bootstrap: str,
    views: dict[str, dict[str, Any]],
    sql: str,
    keys: list[str],
    path: str,
    checkpoint: str,
    *,
    full: bool,
) -> None:
    """A query over topics, until all of it is read: rows are appended, or replaced by their keys, or all of them are
    computed as a batch."""
    for name, view in views.items():
        messages = spark.read if full else spark.readStream.option("maxOffsetsPerTrigger", 200_000)
        rows = _decoded(messages.format("kafka"), bootstrap, view)
        (rows if full else rows.withWatermark(view["time"], view["delay"])).createOrReplaceTempView(name)
    rows = spark.sql(sql)
    if full:
        Path(checkpoint).mkdir(parents=True)
        Path(checkpoint, "metadata").touch()  # where a stream writes its first file
        rows.write.format("delta").mode("overwrite").save(path)
        return
    writer = _merged(spark, rows, keys, path) if keys else rows.writeStream.format("delta").option("path", path)
    query = writer.option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    query.stop()


def _decoded(messages: DataFrameReader | DataStreamReader, bootstrap: str, view: dict[str, Any]) -> DataFrame:
    ddl = ", ".join(f"{column} {kind}" for column, kind in view["columns"].items())
    reader = messages.option("kafka.bootstrap.servers", bootstrap).option("subscribe", view["topic"])
    rows = reader.option("startingOffsets", "earliest").load()
    return rows.select(F.from_json(F.col("value").cast("string"), ddl).alias("message")).select("message.*")


def session(memory: str, cores: int) -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("hand-written")
        .config("spark.jars", ",".join(str(jar) for jar in jars.fetch("engine")))
        .config("spark.driver.memory", memory)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", cores)
        .config("spark.databricks.delta.snapshotPartitions", cores)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", default="1g")
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    spark = session(arguments.memory, arguments.cores)
    spark.sparkContext.setLogLevel("ERROR")
    queries: list[StreamingQuery] = []
    _answer({"ready": True, "pid": os.getpid()})
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        while queries:
            queries.pop().stop()
        if command["do"] == "start":
            del command["do"]
            path, checkpoint, conditions = (command.pop(name) for name in ("path", "checkpoint", "conditions"))
            for at, where in enumerate(conditions or ["true"]):
                own = {"path": f"{path}/{at}", "checkpoint": f"{checkpoint}/{at}", "where": where}
                queries.append(job(spark, **command, **own))
        elif command["do"] == "drain":
            del command["do"]
            drained(spark, **command)
        elif command["do"] == "quit":
            break
        _answer({"done": True})
    spark.stop()


def _answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
