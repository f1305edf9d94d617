"""The part of docs/sources.md on formats with a schema."""

from __future__ import annotations

SCHEMAS = """\
A value or key of the format `avro` or `protobuf` has a schema, from one of three places: a schema registry that speaks
Confluent's API (the default), the source itself (`schema`), or a file of the project (`schema_file`).

```yaml
sources:
  - name: plant
    tables:
      - name: readings
        config:
          meta:
            stream:
              topic: readings
              value:
                format: protobuf
                message: plant.Reading
                schema: |
                  syntax = "proto3";
                  package plant;
                  message Reading { string sensor = 1; double celsius = 2; optional string note = 3; }
        columns:
          - {name: machine, data_type: string, config: {meta: {stream: {from: key}}}}
          - {name: celsius, description: Taken once a second; its type is the schema's.}
```

With the schemas in a registry, `value: {format: avro}` is all there is to say; the subject is `<topic>-value`:

```yaml
- name: commercials
  config: {meta: {stream: {topic: commercials_avro, value: {format: avro}}}}
```

**Columns.** Fields that no declared column takes are columns by themselves, after the declared ones. A declared column
may leave out its `data_type`; one that has it must hold every value of the field: the same type, a wider number, or
`string`. Anything else is an error (PEN-1254, PEN-1255) with the nearest right word. A field that contains itself can
be no column, and is left out.

| Avro | column | Protobuf | column |
|---|---|---|---|
| boolean, int, long, float, double | boolean, int, bigint, float, double | bool, int32, int64, … | the same |
| string, uuid, enum | string | string, enum (its name) | string |
| bytes, fixed | binary | bytes | binary |
| decimal | decimal(p, s) | uint32, uint64 | bigint, decimal(20, 0) |
| date | date | google.protobuf.Timestamp | timestamp |
| timestamp-millis, -micros | timestamp | google.protobuf.*Value | its value, or null |
| local-timestamp-millis, -micros | timestamp_ntz | google.protobuf.Struct, Value, ListValue | string, as JSON |
| time-millis, time-micros, timestamp-nanos | int, bigint, bigint | Duration, Any | struct of their fields |
| record, array, map | struct, array, map | message, repeated, map | struct, array, map |
| union with null | the other type, or null | optional, oneof | null when it is not set |
| another union | struct of `member_<type>` | without presence | its default value when it is not set |

**The lock file.** `penstock.lock` in the project's root pins each schema with its fingerprint and its columns. Commit
it: a project is read with the schemas of its lock file, without asking a registry, and means the same everywhere.
`penstock run`, `penstock compile` and dbt add what is missing. A newer schema in the registry changes nothing until
`penstock lock --update` takes it, and shows up as a diff; `penstock lock --check` ends with 1 then, for CI.

**Versions.** A message is decoded with the schema whose id stands before it, so versions may be mixed in a topic. A
field that a version does not have, or has with another meaning, is its default or null; the rest of the message is
read. An id that a stream has not met is looked up while it runs: the batch is tried again with it, and no row is lost
or comes twice. A message whose id the registry does not know is one that cannot be read, like any other bad message.
Known schemas are kept below `.penstock/registry`: a registry that does not answer stops no stream until a new id
arrives (PEN-2102), which is retried.

**Several types in one topic.** `record` (in Protobuf `message`) names the type that a source reads; messages of other
types are no rows of it. A list of names makes a struct column of each, null where a message is of another type, and a
column `from: record` has the full name of each message's type. `subject: "{record}"` is the record-name strategy,
`"{topic}-{record}"` the topic-record-name strategy.

```yaml
- name: events
  config:
    meta:
      stream:
        topic: events
        value: {format: avro, record: [shop.Order, shop.Payment], subject: "{record}"}
  columns:
    - {name: type, data_type: string, config: {meta: {stream: {from: record}}}}
    - {name: amount, config: {meta: {stream: {from: value.Payment.amount}}}}
```

**The registry** of the profile, embedded or by its address:

```yaml
schema_registry: {embedded: true}
```

```yaml
schema_registry:
  url: https://registry.example
  basic.auth.user.info: {env_var: REGISTRY_USER}  # user:password
  ssl.ca.location: certificates/ca.pem
```

A source may have its own, with the prefix; the profile's credentials are never sent there:
"""
