"""Stream shop.clicks_by_category, compiled by Penstock from models/clicks_by_category.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.engine import runtime

SQL = """
with __dbt__cte__named_items as (

select item_id, name, category from shop.items
) select
    i.category,
    count(*) as clicks,
    approx_count_distinct(c.user_id) as users
from shop__clicks as c
join __dbt__cte__named_items as i on i.item_id = c.item_id
group by i.category
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
        .option("minOffsetsPerTrigger", 500)
        .option("maxTriggerDelay", "5000ms")
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
    """The rows of shop.clicks_by_category, as a streaming DataFrame."""
    shop__clicks(spark).createOrReplaceTempView("shop__clicks")
    return spark.sql(SQL)


STREAM = runtime.Stream(
    name="shop.clicks_by_category",
    build=build,
    table="shop.clicks_by_category",
    mode="upsert",
    keys=("category",),
    time_window_ms=5000,
    continuous=True,
    shuffle_partitions=2,
    small_batch_rows=50000,
    stateful=True,
)


if __name__ == "__main__":
    runtime.main(STREAM)
