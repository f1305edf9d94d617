"""Stream shop.bought_after_click, compiled by Penstock from models/bought_after_click.sql.

Change the model, not this file. Run it alone:
spark-submit --jars "$(penstock jars)" job.py --checkpoint DIR
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.engine import runtime

SQL = """
select clicks.user_id, clicks.item_id, orders.amount, orders.ordered_at
from shop__clicks as clicks
join shop__orders as orders
    on clicks.user_id = orders.user_id
    and clicks.item_id = orders.item_id
    and orders.ordered_at between clicks.clicked_at and clicks.clicked_at + interval 30 minutes
"""


SHOP__CLICKS__JUDGED = """
select
    *,
    case
        when `value` is null or length(`value`) = 0 then 'empty'
        when message.`item_id` is not null
            or message.`clicked_at` is not null
            or exists(
                array(
                    from_json(
                        cast(`value` as string),
                        '`price` DECIMAL(10,2), `place` STRUCT<`city`: STRING, `country`: STRING>',
                        map('mode', 'PERMISSIVE')
                    )
                ),
                rest -> rest.`price` is not null
                or rest.`place`.`city` is not null
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
            '`item_id` STRING, `clicked_at` TIMESTAMP, `_unfit` STRING',
            map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
        ) as message
    from shop__clicks__records
)
"""


SHOP__CLICKS = """
select
    cast(`key` as STRING) as `user_id`,
    message.`item_id` as `item_id`,
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


SHOP__ORDERS__JUDGED = """
select
    *,
    case
        when `value` is null or length(`value`) = 0 then 'empty'
        when message.`user_id` is not null
            or message.`item_id` is not null
            or message.`amount` is not null
            or message.`ordered_at` is not null
            then if(message.`_unfit` is not null, 'partly bad', 'good')
        when message.`_unfit` is null
            and (
                coalesce(size(json_object_keys(cast(`value` as string))), 0) < 1
                or arrays_overlap(
                    json_object_keys(cast(`value` as string)),
                    array('user_id', 'item_id', 'amount', 'ordered_at')
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
            '`user_id` STRING, '
            '`item_id` STRING, '
            '`amount` DOUBLE, '
            '`ordered_at` TIMESTAMP, '
            '`_unfit` STRING',
            map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_unfit')
        ) as message
    from shop__orders__records
)
"""


SHOP__ORDERS = """
select
    message.`user_id` as `user_id`,
    message.`item_id` as `item_id`,
    message.`amount` as `amount`,
    message.`ordered_at` as `ordered_at`
from shop__orders__judged
where quality in ('good', 'partly bad')
"""


def shop__orders(spark: SparkSession) -> DataFrame:
    """Source shop.orders: topic 'orders', JSON values."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.fetch.max.wait.ms", 20)
        .options(**runtime.kafka_options(spark, "orders.example:9092"))
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200000)
        .option("failOnDataLoss", "true")
        .option("kafka.max.poll.records", "500")
        .load()
    )
    records.createOrReplaceTempView("shop__orders__records")
    judged = runtime.counted(spark, "shop.orders", SHOP__ORDERS__JUDGED)
    judged.createOrReplaceTempView("shop__orders__judged")
    rows = runtime.rows(spark, "shop.orders", SHOP__ORDERS)
    return rows.withWatermark("ordered_at", "1 hour")


def build(spark: SparkSession) -> DataFrame:
    """The rows of shop.bought_after_click, as a streaming DataFrame."""
    shop__clicks(spark).createOrReplaceTempView("shop__clicks")
    shop__orders(spark).createOrReplaceTempView("shop__orders")
    return spark.sql(SQL)


STREAM = runtime.Stream(
    name="shop.bought_after_click",
    build=build,
    table="shop.bought_after_click",
    mode="append",
    keys=(),
    time_window_ms=1000,
    continuous=True,
    shuffle_partitions=2,
    small_batch_rows=200000,
    stateful=True,
)


if __name__ == "__main__":
    runtime.main(STREAM)
