"""Every setting of a dynamic table: what it takes, what holds without it, and what it means.

This is the one list: the keys that a model may have (`penstock.project.model`) and the reference in docs/models.md are
made from it. A default of None is a number that the compiler knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.project.expectations import KEYS as EXPECTATION_KEYS
from penstock.project.settings import ON_BAD_RECORD

REFRESH_MODES = ("auto", "incremental", "full")
EMITS = ("changes", "final")
MODES = ("micro_batch", "real_time")
OnSchemaChange = Literal["fail", "ignore", "append_new_columns", "sync_all_columns"]
ON_SCHEMA_CHANGE: tuple[OnSchemaChange, ...] = get_args(OnSchemaChange)
ON_CONFIGURATION_CHANGE = ("fail", "continue", "apply")
FORMATS = ("json", "avro", "protobuf")
KEY_FORMATS = ("string", *FORMATS)
DELIVERIES = ("exactly_once", "at_least_once")


@dataclass(frozen=True)
class Setting:
    """A key of a model's config, or of a mapping in it; texts are Markdown."""

    key: str
    takes: str
    default: str | None
    about: str


def _of(key: str, words: Sequence[str], about: str, default: str | None = None) -> Setting:
    """One of some words; the first of them holds unless said otherwise."""
    return Setting(key, ", ".join(f"`{word}`" for word in words), default or f"`{words[0]}`", about)


_TIME = "`'500 ms'`, `'1 second'`, `'2 minutes'`, or milliseconds"
_COLUMNS = "column, or list of columns"

OWN = (
    Setting("time_window", _TIME, None, "the longest time that messages wait in the buffer; between looks at an "
            "upstream table"),
    Setting("buffer_limit", "number of messages", None, "a batch is written when so many messages wait, or the time "
            "has passed; 1: at once"),
    Setting("target_lag", "a time, as above", "none", "how far the table may be behind, in place of the two above: "
            "rows wait for half of it at most, in batches as large as that allows"),
    _of("refresh_mode", REFRESH_MODES, "see [Incremental or full](#incremental-or-full)"),
    _of("emit", EMITS, "of a windowed aggregate with a watermark: rows as they change, or each window once, when it "
        "is over; session windows once, unless `changes` is written, which refreshes them in full"),
    Setting("deduplicate_by", _COLUMNS, "none", "of the rows with the same values there, the first is taken; with a "
            "watermark, keys are forgotten when it has passed them; an error where the table is refreshed in full"),
    Setting("unique_key", _COLUMNS, "the GROUP BY columns", "rows are replaced by this key; on a plain SELECT it "
            "makes the table an upsert, the last message of a key wins"),
    Setting("watermark", "`{column: …, delay: '10 minutes'}`", "none", "the event time of this table's rows, for "
            "those who stream from it; as a default in dbt_project.yml, of the tables that have the column"),
    Setting("max_batch_rows", "number of messages", None, "the largest batch while a stream catches up"),
    Setting("max_lag", "`'30 seconds'`, `'5 minutes'`", None, "Dagster's lag check warns above it, and fails above "
            "twice of it; the stream itself is not changed by it"),
    _of("on_bad_record", ON_BAD_RECORD, "what becomes of a message that does not fit its source: see "
        "[bad records](bad-records.md)", "as each source says"),
    Setting("publish", "`{topic: …, value: {format: avro}}`", "none", "the rows go to a Kafka topic, too: see "
            "[Publishing to Kafka](#publishing-to-kafka)"),
    _of("mode", MODES, "`real_time`: from topic to topic within milliseconds: see [In real time](#in-real-time)"),
    Setting("small_batch_rows", "number of rows", None, "up to here a batch passes through the driver's memory and "
            "is committed in milliseconds, above by Spark's own writer; 0: always by Spark"),
    Setting("expectations", f"list of `{{{', '.join(EXPECTATION_KEYS)}}}`", "none", "what every row is expected to "
            "be: see [Expectations](#expectations)"),
    Setting("maintenance", "`{every: '1 hour', keep: '1 day'}`", "as the profile says", "how often small files of the "
            "table are put together, and for how long old versions are kept: see "
            "[maintenance](operate.md#maintenance)"),
    Setting("shuffle_partitions", "number", None, "partitions of the state; frozen into a stateful stream's "
            "checkpoint"),
)  # fmt: skip

# Keys of dbt's that mean something of their own here.
OF_DBT = (
    _of("on_schema_change", ON_SCHEMA_CHANGE, "what becomes of the table when the query has other columns: see "
        "[When columns change](#when-columns-change)"),
    _of("on_configuration_change", ON_CONFIGURATION_CHANGE, "what a run does when a change needs a rebuild: see "
        "[When a model changes](#when-a-model-changes)"),
)  # fmt: skip

PUBLISH = (
    Setting("topic", "a name", "required", "made if it is missing; the broker and its credentials are the profile's"),
    Setting("key", _COLUMNS, "the table's key; of appended rows none", "the key of the messages"),
    _of("key_format", KEY_FORMATS, "a key of one column is the bare value, except in Protobuf",
        "`avro` and `protobuf` as the value; else `string`, of several columns `json`"),
    Setting("value", "`{format: json}`, `avro` or `protobuf`; in short `value: avro`", f"`{FORMATS[0]}`",
            "the format of the values"),
    _of("key_in_value", ("true", "false"), "whether the columns of the key are in the value, too"),
    _of("table", ("true", "false"), "`false`: there is no table, and no `ref()` to the model"),
    _of("delivery", DELIVERIES, "see below"),
    Setting("partitions", "number", "the broker's", "of a topic that is made"),
)  # fmt: skip


def keys(settings: Sequence[Setting]) -> tuple[str, ...]:
    return tuple(each.key for each in settings)
