"""docs/sources.md: the reference of sources, written from the models that validate them.

Every YAML block with `sources:` is a whole source file; a test reads each of them as a project would.
"""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel

from penstock.cli.schema_page import SCHEMAS
from penstock.kafka.security import NAMES
from penstock.project.formats import FORMATS
from penstock.project.settings import (
    ColumnSettings,
    RegistrySettings,
    SecuritySettings,
    StreamSettings,
    WatermarkSettings,
    names_of,
)
from penstock.project.start import StartAt

_INTRO = """\
A source is a Kafka topic, declared in a YAML file of dbt. Its settings stand below `config.meta.stream` of the table;
those of the source are the defaults of its tables. Unknown or misspelt settings are errors, with file, line and the
nearest right name, and are found without a broker and without Spark.

```yaml
sources:
  - name: shop
    tables:
      - name: clicks
        config:
          meta:
            stream:
              topic: clicks
              value: {format: json}
              watermark: {column: clicked_at, delay: 10 minutes}
        columns:
          - {name: user_id, data_type: string, config: {meta: {stream: {from: key}}}}
          - {name: item_id, data_type: string}
          - {name: price, data_type: "decimal(10, 2)"}
          - {name: clicked_ms, data_type: bigint, config: {meta: {stream: {from: value.time.ms}}}}
          - {name: clicked_at, data_type: timestamp, config: {meta: {stream: {expr: timestamp_millis(clicked_ms)}}}}
```
"""
_COLUMNS = """\
A column has a name and a `data_type`, which is any Spark SQL type that a message can carry: `boolean`, `tinyint`,
`smallint`, `int`, `bigint`, `float`, `double`, `decimal(p, s)`, `string`, `binary`, `date`, `timestamp`,
`timestamp_ntz`, and `array<…>`, `map<…, …>` and `struct<name: type, …>` of these. A value that does not fit its type is
null; the other columns of the row stay.

Where a column comes from stands below its own `config.meta.stream`:
"""
_ORIGINS = {
    "(nothing)": "The field of the column's name, in a format that has fields; else the whole value.",
    "`value.path.to.field`": "A field of the value; `key.path.to.field` of the key.",
    "`key`, `value`": "The whole key or value, cast from its text, or as its schema says; `binary` takes the bytes.",
    "`header(name)`": "The last header of that name.",
    "`headers`": "All headers: `map<string, string>`, `map<string, binary>` or an array of `struct<key, value>`.",
    "`topic`, `partition`, `offset`, `timestamp`": "The record's own: `string`, `int`, `bigint`, `timestamp`.",
    "`record`": "The full name of the value's type, in a format with a schema.",
}
_COMPUTED = """\
A computed column has `expr`: one Spark SQL expression over the other columns of its source, computed or not, in any
order. It sees its own row alone, so there are no aggregates, window functions, subqueries or generators. A watermark
may stand on it.

```yaml
sources:
  - name: plant
    tables:
      - name: readings
        config:
          meta:
            stream:
              topic: readings
              key: {format: json}
              value: {format: csv, delimiter: ";", null_value: "-"}
              watermark: {column: measured_at, delay: 1 minute}
        columns:
          - {name: sensor, data_type: string, config: {meta: {stream: {from: key.sensor.id}}}}
          - {name: day, data_type: date}
          - {name: seconds, data_type: int}
          - {name: celsius, data_type: double}
          - name: measured_at
            data_type: timestamp
            config: {meta: {stream: {expr: "timestampadd(second, seconds, cast(day as timestamp))"}}}
          - {name: is_hot, data_type: boolean, config: {meta: {stream: {expr: celsius > 90}}}}
          - {name: unit, data_type: string, config: {meta: {stream: {from: header(unit)}}}}
```
"""
_START = """\
Where a stream begins that has read nothing yet. A stream that ran before goes on where it was; to begin anew, run the
model with `--full-refresh`. Where it was is a place in one Kafka cluster: with `bootstrap.servers` of another one it
does not go on, and has to [begin anew](change-a-running-model.md#move-to-another-kafka-cluster).

```yaml
sources:
  - name: logs
    config: {meta: {stream: {value: {format: string}}}}
    tables:
      - name: by_time
        config: {meta: {stream: {topic: logs, start: {timestamp: "2026-01-01T00:00:00Z"}}}}
        columns: [{name: line, data_type: string}]
      - name: with_history
        config: {meta: {stream: {topic: logs, start: {from: "2025-01-01T00:00:00Z", backfill: batch}}}}
        columns: [{name: line, data_type: string}]
      - name: by_offset
        config: {meta: {stream: {topic: logs, partitions: [0, 2], start: {offsets: {0: 42, 2: latest}}}}}
        columns: [{name: line, data_type: string}]
      - name: of_all_services
        config: {meta: {stream: {topic_pattern: "logs_.*", start: latest}}}
        columns:
          - {name: line, data_type: string}
          - {name: service_topic, data_type: string, config: {meta: {stream: {from: topic}}}}
```

Offsets are given for each partition that is read. A time after the last message of a partition means its end. A pattern
takes up topics that appear later, from their beginning.

With `backfill: batch` a stream that begins loads the history first: batches ten times as large as the model's
`max_batch_rows`, committed by Spark's writer. When it has read what the topic held, it goes on with the model's own
settings, on the same checkpoint and at the next offset: no message is left out between the two, and none is read twice.
A stop, or an engine that dies, in the middle of the history changes nothing of that.

A stream whose state knows the watermark (windows, joins, `deduplicate_by`) reads the history in a single batch. A batch
has a share of every partition, whatever the times of its messages: a partition with new ones would bring the watermark
past old ones that another partition has still to give, and they would be left out as late. Without `backfill: batch`
that is what happens to a history of more than `max_batch_rows` messages whose partitions are further apart in time than
the watermark's delay. When a stream first leaves out a row as late, `penstock logs` says so.
"""
_SECURITY = """\
The same keys work in a source, in a source's defaults, and below `kafka:` in the profile, for all sources that have no
`bootstrap.servers` of their own. A source's own credentials replace the profile's as a whole, and the profile's are
never sent to another broker. Every other option of Kafka's consumer passes through as `kafka.<name>`.

**Secrets are references**: `{env_var: NAME}` or `{file: /path}`. A secret that is written out is an error (PEN-1218),
and so is one from Jinja's `env_var()`, because dbt writes that into its manifest. The engine looks the secret up in its
own environment when a stream starts; it appears in no manifest, spec, job, store or log. Paths are relative to the
project.

```yaml
sources:
  - name: bank
    config:
      meta:
        stream:
          bootstrap.servers: "kafka.example:9093"
          security.protocol: SASL_SSL
          sasl.mechanisms: SCRAM-SHA-512
          sasl.username: penstock
          sasl.password: {env_var: KAFKA_PASSWORD}
          ssl.ca.location: certificates/ca.pem
          kafka.client.dns.lookup: use_all_dns_ips
    tables:
      - name: payments
        config: {meta: {stream: {topic: payments}}}
        columns: [{name: amount, data_type: "decimal(18, 2)"}]
  - name: exchange
    tables:
      - name: trades
        config:
          meta:
            stream:
              topic: trades
              bootstrap.servers: "mtls.example:9094"
              security.protocol: SSL
              ssl.ca.location: certificates/ca.pem
              ssl.certificate.location: certificates/client.pem
              ssl.key.location: certificates/client.key
              ssl.key.password: {file: /run/secrets/client-key}
        columns: [{name: amount, data_type: "decimal(18, 2)"}]
```

| way | needs |
|---|---|
| TLS | `security.protocol: SSL`, and `ssl.ca.location` unless the authority is a public one |
| mTLS | also `ssl.certificate.location` and `ssl.key.location` |
| PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 | `security.protocol: SASL_SSL` (or `SASL_PLAINTEXT`), `sasl.mechanisms`, `sasl.username`, `sasl.password` |
"""  # noqa: E501
_FRESHNESS = """\
`dbt source freshness` asks the broker for the time of the topic's latest message, in all partitions that are read. It
needs no table, no `loaded_at_field` and no engine. A topic without messages is an error (PEN-2009).

```yaml
sources:
  - name: shop
    config:
      freshness: {warn_after: {count: 5, period: minute}, error_after: {count: 1, period: hour}}
    tables:
      - name: clicks
        config: {meta: {stream: {topic: clicks}}}
        columns: [{name: item_id, data_type: string}]
```

`penstock list sources` shows every source; `penstock describe shop.clicks` one of them: offsets, retention, latest
message, rows per second, and the streams that read it.
"""
_TABLES = """\
With `kind: table` a source is not the stream of its messages but the latest row of each key, kept up to date by a query
of its own:

```yaml
sources:
  - name: shop
    tables:
      - name: users
        config:
          meta:
            stream:
              kind: table
              topic: users
              primary_key: [id]
        columns:
          - {name: id, data_type: int, config: {meta: {stream: {from: key}}}}
          - {name: name, data_type: string}
          - {name: city, data_type: string}
```

`penstock run` deploys source tables, and `dbt run` those that its models read, before the models: a new one is filled
with what its topic holds first. From then on it is a table to read, by key or whole, in `penstock query`, `dbt show`,
data tests and any Spark client:

```
penstock query "select name, city from shop.users where id = 42"
```

A model that reads it together with a stream joins each of the stream's batches with the rows that the table has then.

- A message replaces the row of its key. One without a value (a tombstone) deletes it; one that cannot be read, or whose
  key has a null in it, changes nothing.
- The columns of the primary key come from the message's key (PEN-1243), because a tombstone has nothing else.
- Messages count in the order of their partition. A key belongs in one partition, as every producer sees to by itself.
  When it is found in two (the topic was given more partitions), the message with the later timestamp counts.
- The query goes on from its own checkpoint. `penstock status` shows it like every other; it has its own lag, restarts
  and job in `target/penstock/`.
- Running again changes nothing when nothing has changed. A change of how messages are read needs `--full-refresh`
  (PEN-3005), which reads the topic again from its start; streams that read the table start again, and the run names
  them.

Sources and source tables are **read-only**: what they hold is what the topic holds. INSERT, UPDATE, DELETE, MERGE,
TRUNCATE, a seed, a snapshot or a model of the same name are refused (PEN-3020), by Spark itself in any other client.
The query behind a source table is not stopped by itself (PEN-3022): `penstock drop shop.users` drops the table with it,
when nothing reads it any more (PEN-3023). The topic is never deleted: the project does not own it (PEN-3021).
"""
_QUERY = """\
Every source is a view of the catalog under its own name, for `penstock query`, `dbt show`, data tests, notebooks and
any other Spark Connect client: the declared columns, then `_partition`, `_offset` and `_timestamp` of each message
(unless the source has columns of these names). It shows the whole topic, wherever streams start in it. An empty or
unreadable message is a row of nulls; a dynamic table has no row for it.

```
penstock query "select item_id, _offset from shop.clicks limit 10 offset 5"
dbt show --inline "select * from {{ source('shop', 'clicks') }}" --limit 10
```

A limit reads from the topic what it needs and no more (of Protobuf, up to 10,000 messages a partition). Any dbt
command that reaches the engine brings the views up to date; an unchanged source costs nothing. A schema that is new in
the registry is known to the view within a minute. `penstock run --prune` drops the views of sources that are gone. The
catalog holds no address and no secret.

`penstock query --follow` shows rows as they come, until Ctrl-C or, with `limit n`, after n rows:

```
penstock query --follow "select item_id, _offset from shop.clicks where event_type = 'cart'"
penstock query --follow --output json "select item_id, count(*) as clicks from shop.clicks group by item_id"
penstock query --follow --from-beginning "select * from clicks_clean"
```

Over sources and append-only dynamic tables it is a stream, with the rules of a dynamic table's SQL: an aggregate counts
from the start of the query (or, with `--from-beginning`, of the topic) and shows a group again whenever it changes.
Over tables that replace rows, the query is run again at each new version, and rows that were not in the result before
are shown; up to 100,000 rows are compared.
"""
_EDITOR = """\
`penstock schema` prints a JSON Schema of source files, made from the same models as this page. With the YAML extension
of VS Code, settings are completed and checked while you type:

```
penstock schema > .vscode/penstock-sources.json
```

`.vscode/settings.json`:

```json
{
  "yaml.schemas": {
    ".vscode/penstock-sources.json": ["sources/*.yml", "models/**/*sources*.yml"]
  }
}
```
"""


def sources_page(note: str) -> str:
    lines = [
        note,
        "# Sources",
        "",
        _INTRO,
        "## Settings",
        "",
        *_table(StreamSettings, leave_out=(*NAMES, *names_of(RegistrySettings))),
        "",
    ]
    lines += ["### watermark", "", *_table(WatermarkSettings), ""]
    lines += ["## Formats", "", "Keys and values have a format each: `key: {format: …}`, `value: {format: …}`.", ""]
    for name, settings in FORMATS.items():
        lines += [f"### {name}", "", inspect.cleandoc(str(settings.__doc__)), ""]
        if len(settings.model_fields) > 1:
            lines += [*_table(settings, leave_out=("format",)), ""]
    lines += ["## Columns", "", _COLUMNS, *_table(ColumnSettings), "", "| `from` | |", "|---|---|"]
    lines += [f"| {origin} | {about} |" for origin, about in _ORIGINS.items()]
    lines += ["", "### Computed columns", "", _COMPUTED, "## Schemas", "", SCHEMAS, *_table(RegistrySettings), ""]
    lines += ["## Start, partitions, patterns", "", _START]
    lines += ["`start` is `earliest`, `latest`, or a mapping with one of:", "", *_table(StartAt), ""]
    lines += ["## Credentials and encryption", "", _SECURITY, *_table(SecuritySettings), ""]
    lines += ["## Source tables", "", _TABLES]
    lines += ["## Freshness", "", _FRESHNESS]
    lines += ["## Reading a source directly", "", _QUERY]
    lines += ["## In the editor", "", _EDITOR]
    return "\n".join(lines).rstrip() + "\n"


def _table(model: type[BaseModel], leave_out: tuple[str, ...] = ()) -> list[str]:
    lines = ["| setting | default | |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in leave_out:
            default = "required" if field.is_required() else _shown(field.default)
            lines.append(f"| `{key}` | {default} | {field.description} |")
    return lines


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        return f"`{{{', '.join(f'{key}: {text}' for key, text in value.model_dump().items())}}}`"
    return f"`{value}`" if value != "" else "empty"
