"""The rival: a PySpark job as a good engineer writes it by hand, with Spark's own Delta sink.

`job` is the job. The rest lets a measurement start and stop it in a warm application: a line of JSON on standard input
per command, a line on standard output per answer. Same heap, cores, jars and garbage collector as the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from penstock import jars

SCHEMA = (
    "event_id STRING, session_id STRING, item_id STRING, event_type STRING, page STRING, "
    "clicked_at TIMESTAMP, price DOUBLE"
)


def job(
    spark: SparkSession, bootstrap: str, topic: str, path: str, checkpoint: str, *, tuned: bool, limit: int | None
) -> StreamingQuery:
    """Clicks from a topic into a Delta table, as soon as they are there."""
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
    return (
        clicks.select("user_id", "click.*", "at")
        .writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .start(path)
    )


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
    query: StreamingQuery | None = None
    _answer({"ready": True, "pid": os.getpid()})
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        if query is not None:
            query.stop()
            query = None
        if command["do"] == "start":
            del command["do"]
            query = job(spark, **command)
        elif command["do"] == "quit":
            break
        _answer({"done": True})
    spark.stop()


def _answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
