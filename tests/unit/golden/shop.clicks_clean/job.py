"""Stream shop.clicks_clean, compiled by Penstock from models/clicks_clean.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

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


SHOP__CLICKS__JUDGED = """
select
    *,
    case
        when `value` is null or length(`value`) = 0 then 'empty'
        when message.`item_id` is not null
            or message.`price` is not null
            or message.`clicked_at` is not null
            or exists(
                array(
                    from_json(
                        cast(`value` as string),
                        '`place` STRUCT<`city`: STRING, `country`: STRING>',
                        map('mode', 'PERMISSIVE')
                    )
                ),
                rest -> rest.`place`.`city` is not null
                or rest.`place`.`country` is not null
            )
            then if(message.`_unfit` is not null, 'partly bad', 'good')
        when from_json(
                cast(`value` as string),
                '`item_id` STRING, '
                '`price` DECIMAL(10,2), '
                '`clicked_at` TIMESTAMP, '
                '`place` STRUCT<`city`: STRING, `country`: STRING>, '
                '`_unfit` STRING',
                map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
            ).`_unfit` is null
            and (
                coalesce(size(json_object_keys(cast(`value` as string))), 0) < 1
                or arrays_overlap(
                    json_object_keys(cast(`value` as string)),
                    array('item_id', 'price', 'clicked_at')
                )
                or arrays_overlap(
                    json_object_keys(from_json(cast(`value` as string), '`place` STRING').`place`),
                    array('city', 'country')
                )
            )
            then 'empty'
        else 'bad'
    end as quality
from (
    select
        *,
        from_json(
            cast(`value` as string),
            '`item_id` STRING, '
            '`price` DECIMAL(10,2), '
            '`clicked_at` TIMESTAMP, '
            '`_unfit` STRING',
            map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
        ) as message
    from shop__clicks__records
)
"""


SHOP__CLICKS = """
select
    cast(`key` as STRING) as `user_id`,
    message.`item_id` as `item_id`,
    message.`price` as `price`,
    message.`clicked_at` as `clicked_at`
from shop__clicks__judged
where quality in ('good', 'partly bad')
"""


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
        .load()
    )
    records.createOrReplaceTempView("shop__clicks__records")
    judged = runtime.counted(spark, "shop.clicks", SHOP__CLICKS__JUDGED)
    judged.createOrReplaceTempView("shop__clicks__judged")
    rows = runtime.rows(spark, "shop.clicks", SHOP__CLICKS)
    return rows.withWatermark("clicked_at", "10 minutes")


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
    small_batch_rows=200000,
    stateful=False,
)


if __name__ == "__main__":
    runtime.main(STREAM)
