"""Stream shop.clicks_clean, compiled by Penstock from models/clicks_clean.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.engine import runtime

SQL = """
-- Clicks that name an item.
select
    user_id,
    item_id,
    price,
    clicked_at,
    'it''s "quoted" \\\\ here' as note
from shop__clicks as clicks
where item_id is not null
"""


def header(name: str) -> Column:
    """The value of the last header of that name."""
    return F.try_element_at(F.filter("headers", lambda each: each["key"] == name), F.lit(-1))["value"]


def shop__clicks(spark: SparkSession) -> DataFrame:
    """Source shop.clicks: topic 'clicks', JSON values."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.fetch.max.wait.ms", 20)
        .options(**runtime.kafka_options(spark, None))
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200000)
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .load()
    )
    message = F.from_json(
        F.col("value").cast("string"),
        "`item_id` STRING, "
        "`price` DECIMAL(10,2), "
        "`clicked_at` TIMESTAMP, "
        "`place` STRUCT<`city`: STRING, `country`: STRING>",
        {"mode": "PERMISSIVE"},
    )
    # An empty or unreadable message is no row.
    rows = records.withColumn("message", message).where(
        "message.`item_id` is not null or "
        "message.`price` is not null or "
        "message.`clicked_at` is not null or "
        "message.`place`.`city` is not null or "
        "message.`place`.`country` is not null",
    )
    return rows.select(
        F.col("key").cast("string").alias("user_id"),
        F.col("message.`item_id`").alias("item_id"),
        F.col("message.`price`").alias("price"),
        F.col("message.`clicked_at`").alias("clicked_at"),
        F.col("message.`place`.`city`").alias("city"),
        F.col("message.`place`.`country`").alias("country"),
        header("trace_id").cast("string").alias("trace"),
        F.col("timestamp").alias("arrived_at"),
    ).withWatermark("clicked_at", "10 minutes")


def build(spark: SparkSession) -> DataFrame:
    """The rows of shop.clicks_clean, as a streaming DataFrame."""
    shop__clicks(spark).createOrReplaceTempView("shop__clicks")
    return spark.sql(SQL)


STREAM = runtime.Stream(
    name="shop.clicks_clean",
    build=build,
    table="shop.clicks_clean",
    mode="append",
    keys=(),
    time_window_ms=1000,
    continuous=True,
    shuffle_partitions=2,
    small_batch_rows=50000,
    stateful=False,
)


if __name__ == "__main__":
    runtime.main(STREAM)
