"""The catalogue. Codes are stable: a code is never given a second meaning.

10xx machine · 11xx embedded services · 12xx sources · 13xx models · 20xx Kafka · 30xx store and deployment ·
40xx engine and streams · 50xx command line
"""

from __future__ import annotations

from penstock.errors.base import ExitCode, Kind

_BAD = ExitCode.BAD_INPUT
_ENV = ExitCode.ENVIRONMENT
_DOWN = ExitCode.UNAVAILABLE
_HELD = ExitCode.CONFLICT

# -- 10xx: the machine ------------------------------------------------------------------------------------------------
JAVA_MISSING = Kind(
    "PEN-1001",
    "Java is not installed",
    "Spark and the embedded broker run on a Java virtual machine.",
    "Install Java 17 or 21 (Debian/Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME.",
    _ENV,
)
JAVA_VERSION = Kind(
    "PEN-1002",
    "Java has the wrong version",
    "Spark 4 runs on Java 17 and 21 only.",
    "Install Java 17 or 21 and point JAVA_HOME at it.",
    _ENV,
)
JAR_CHECKSUM = Kind(
    "PEN-1003",
    "A jar does not match its checksum",
    "The file that was fetched is not the one the lock file names; it was removed.",
    "Run the command again. If it happens twice, the download or the lock file was tampered with.",
    _ENV,
)
JAR_FETCH = Kind(
    "PEN-1004",
    "A jar could not be fetched",
    "The Java registry did not answer, or does not have the file.",
    "Check the network and run the command again: what was fetched is kept.",
    _ENV,
)
PORT_TAKEN = Kind(
    "PEN-1005",
    "A port is taken",
    "Another program listens on the port that was asked for.",
    "Leave the port out to get a free one, or end the program that holds it.",
    _ENV,
)
DISK_FULL = Kind(
    "PEN-1006",
    "The disk is full",
    "The file system that holds the tables and checkpoints has no room.",
    "Free some room. The stream goes on from its last committed batch; nothing is lost.",
    _ENV,
)

# -- 11xx: embedded services ------------------------------------------------------------------------------------------
BROKER_START = Kind(
    "PEN-1101",
    "The embedded broker did not start",
    "The Kafka process ended or did not answer in time.",
    "Its log is in .penstock/kafka/kafka.log.",
    _DOWN,
)

# -- 12xx: sources ----------------------------------------------------------------------------------------------------
SOURCE_KEY_UNKNOWN = Kind(
    "PEN-1201",
    "A setting of a source is unknown",
    "Settings below config.meta.stream are checked strictly.",
    "Correct the name, or remove the setting.",
    _BAD,
)
SOURCE_VALUE_INVALID = Kind(
    "PEN-1202",
    "A setting of a source has a wrong value",
    "The value has another type or form than the setting takes.",
    "See docs/sources.md for what the setting takes.",
    _BAD,
)
FORMAT_UNKNOWN = Kind(
    "PEN-1203",
    "A format is unknown",
    "Only the listed formats can be decoded.",
    "See docs/sources.md.",
    _BAD,
)
SOURCE_NO_COLUMNS = Kind(
    "PEN-1204",
    "A source has no columns",
    "The value's format carries no schema, so the columns must be named.",
    "Add 'columns:' with a name and a data_type each.",
    _BAD,
)
COLUMN_NO_TYPE = Kind(
    "PEN-1205",
    "A column has no data_type",
    "A message is decoded by the declared types.",
    "Add 'data_type:' with a Spark SQL type.",
    _BAD,
)
COLUMN_TWICE = Kind(
    "PEN-1206",
    "A column is declared twice",
    "Column names of a source are unique, whatever their case.",
    "Rename or remove one of them.",
    _BAD,
)
COLUMN_ORIGIN = Kind(
    "PEN-1207",
    "A column's 'from' is unknown",
    "A column comes from the key, the headers, the record or the value.",
    "Use key, headers, header(name), topic, partition, offset, timestamp or value.path.to.field.",
    _BAD,
)
COLUMN_TYPE = Kind(
    "PEN-1208",
    "A data_type is not a Spark SQL type",
    "The type is handed to Spark as it is written.",
    "See docs/sources.md for the types.",
    _BAD,
)
WATERMARK_INVALID = Kind(
    "PEN-1209",
    "A watermark does not fit its column",
    "A watermark needs a timestamp column and a delay.",
    "Name a column of type timestamp and a delay such as '10 minutes'.",
    _BAD,
)
SOURCE_TYPE_UNKNOWN = Kind(
    "PEN-1210",
    "A source type is unknown",
    "Each type is a connector.",
    "See docs/sources.md.",
    _BAD,
)
SOURCE_NOT_STREAM = Kind(
    "PEN-1211",
    "A source is no stream",
    "The dynamic table reads a source that has no config.meta.stream.",
    "Add config.meta.stream with type and topic, or read an existing table with ref().",
    _BAD,
)
HEADER_NO_NAME = Kind(
    "PEN-1212",
    "A header has no name",
    "A column takes one header by its name, or all of them.",
    "Write header(name), or 'headers' for all of them.",
    _BAD,
)
COLUMN_OVERLAP = Kind(
    "PEN-1213",
    "Two columns take the same part of a message in two ways",
    "A message is decoded once, so a field has one type and is not part of another column's field.",
    "Declare the larger one as a struct, and take it apart in a model.",
    _BAD,
)
EXPR_SYNTAX = Kind(
    "PEN-1214",
    "The expression of a computed column cannot be read",
    "'expr' is one expression of Spark SQL.",
    "Correct the expression.",
    _BAD,
)
EXPR_COLUMN = Kind(
    "PEN-1215",
    "A computed column uses a column that does not exist",
    "An expression is computed from the other columns of its source.",
    "Declare that column, or correct its name.",
    _BAD,
)
EXPR_CYCLE = Kind(
    "PEN-1216",
    "Computed columns depend on each other in a circle",
    "Each is computed from columns that come before it.",
    "Write one of them without the other.",
    _BAD,
)
EXPR_NOT_ROWWISE = Kind(
    "PEN-1217",
    "A computed column is not computed from its own row",
    "Aggregates, window functions, subqueries and generators look at other rows or make new ones.",
    "Compute it in a model.",
    _BAD,
)
SECRET_LITERAL = Kind(
    "PEN-1218",
    "A secret is written out",
    "What stands in YAML reaches the manifest, the compiled job and version control.",
    "Name where it is kept: {env_var: NAME} or {file: /path}, without Jinja.",
    _BAD,
)
AUTH_INCOMPLETE = Kind(
    "PEN-1219",
    "Credentials for Kafka do not fit together",
    "A way of authentication needs certain settings, and no others.",
    "See docs/sources.md for what each way needs.",
    _BAD,
)
TOPIC_CHOICE = Kind(
    "PEN-1220",
    "A source names no topic, or in two ways",
    "A source reads one topic, or all topics that match a pattern.",
    "Set 'topic' or 'topic_pattern', and one of them only.",
    _BAD,
)
START_INVALID = Kind(
    "PEN-1221",
    "A start position cannot be used",
    "A stream starts at an end of the topic, at a time or at offsets.",
    "Write earliest, latest, {timestamp: '2026-01-01T00:00:00Z'} or {offsets: {0: 42, 1: latest}}.",
    _BAD,
)
OPTION_RESERVED = Kind(
    "PEN-1222",
    "An option of Kafka is not for a source to set",
    "Penstock sets it itself, or it would make rows come twice or not at all.",
    "Remove it.",
    _BAD,
)

# -- 13xx: models -----------------------------------------------------------------------------------------------------
MODEL_KEY_UNKNOWN = Kind(
    "PEN-1301",
    "A config key of a dynamic table is unknown",
    "A misspelt key would be ignored without a word.",
    "Correct the name; keys of your own go below 'meta'.",
    _BAD,
)
MODEL_VALUE_INVALID = Kind(
    "PEN-1302",
    "A config value of a dynamic table is wrong",
    "The value has another type or form than the key takes.",
    "See docs/models.md for what the key takes.",
    _BAD,
)
MODEL_SYNTAX = Kind(
    "PEN-1303",
    "A model has a syntax error",
    "Spark SQL cannot read the model.",
    "Correct the SQL at that line.",
    _BAD,
)
MODEL_ANALYSIS = Kind(
    "PEN-1304",
    "A model does not fit its inputs",
    "A column, function or table in the SQL does not exist or has another type.",
    "Correct the SQL at that line.",
    _BAD,
)
MODEL_NOT_INCREMENTAL = Kind(
    "PEN-1305",
    "A query cannot be kept incrementally",
    "Spark's streaming engine has no way to update this query's result.",
    "Rewrite the operator, or make the model a view or table.",
    _BAD,
)
MODEL_KEYS = Kind(
    "PEN-1306",
    "The key of an aggregate is not in its result",
    "Rows of an aggregate are replaced by their group key, so the key must be among the columns.",
    "Select every GROUP BY expression, with a name, or set unique_key.",
    _BAD,
)
MODEL_NO_STREAM = Kind(
    "PEN-1307",
    "A dynamic table reads no stream",
    "None of its inputs is a source or an append-only dynamic table.",
    "Use materialized='table' or 'view', or read a source.",
    _BAD,
)
MODEL_LANGUAGE = Kind(
    "PEN-1308",
    "A dynamic table is not SQL",
    "Python models cannot be compiled into a stream.",
    "Write the model in SQL.",
    _BAD,
)
MODEL_UPDATING_INPUT = Kind(
    "PEN-1309",
    "A dynamic table streams from an updating one",
    "The upstream table replaces rows; reading only its new rows would count the old ones again.",
    "Read its own inputs, or make this model a view.",
    _BAD,
)
MODEL_NOT_FOLLOWED = Kind(
    "PEN-1310",
    "A config key does not apply to dynamic tables",
    "The key works for dbt's tables; a stream's table would ignore it without a word.",
    "Remove the key, or make the model a table.",
    _BAD,
)

# -- 20xx: Kafka ------------------------------------------------------------------------------------------------------
BROKER_UNREACHABLE = Kind(
    "PEN-2001",
    "No broker answers",
    "Nothing speaks Kafka at the address.",
    "Check bootstrap.servers; 'penstock up' starts the embedded broker.",
    _DOWN,
)
TOPIC_MISSING = Kind(
    "PEN-2002",
    "A topic does not exist",
    "The broker answers but does not know the topic.",
    "Create it, or correct 'topic:' in the source.",
    _BAD,
)
OFFSETS_LOST = Kind(
    "PEN-2003",
    "Messages were deleted before they were read",
    "The topic's retention is shorter than the time the stream was stopped.",
    "Run with --full-refresh to start again from what the topic still has.",
    ExitCode.FAILED,
)
BROKER_NOT_CONFIGURED = Kind(
    "PEN-2004",
    "No broker is configured",
    "The source names no bootstrap.servers and the profile has no kafka.",
    "Set bootstrap.servers in the source, or 'kafka:' in the profile.",
    _BAD,
)
SECRET_MISSING = Kind(
    "PEN-2005",
    "A secret is not there",
    "The variable or the file that a setting refers to does not exist or is empty.",
    "Set it where the engine runs ('penstock down', set it, 'penstock up'), or correct the reference.",
    _BAD,
)
KEY_UNREADABLE = Kind(
    "PEN-2006",
    "A certificate or private key cannot be used",
    "Certificates are read as PEM, and private keys as PEM in the form PKCS #8.",
    "Convert the key: openssl pkcs8 -topk8 -in key.pem -out key8.pem (-nocrypt for no password).",
    _BAD,
)
AUTH_REFUSED = Kind(
    "PEN-2008",
    "A broker refused the credentials",
    "The login or the certificate is not valid there, or the broker's certificate is not trusted.",
    "Check security.protocol, sasl.* and ssl.* of the source or the profile, and the secrets they refer to.",
    _BAD,
)
PARTITION_MISSING = Kind(
    "PEN-2007",
    "Partitions of a source do not fit its topic",
    "A partition that is asked for does not exist, or start offsets leave one out.",
    "Correct 'partitions' or 'start' in the source.",
    _BAD,
)
TOPIC_EMPTY = Kind(
    "PEN-2009",
    "A topic has no messages",
    "A source is as fresh as its latest message, and there is none: nothing was sent, or retention removed it.",
    "Send messages, or look at the topic's retention with 'penstock describe'.",
    ExitCode.FAILED,
)

# -- 30xx: store and deployment ---------------------------------------------------------------------------------------
STREAM_UNKNOWN = Kind(
    "PEN-3001",
    "A stream is not deployed",
    "The deployment store has no stream of that name.",
    "'penstock status' lists the streams; 'dbt run' deploys them.",
    _BAD,
)
SUPERVISOR_RUNNING = Kind(
    "PEN-3002",
    "A supervisor is already running",
    "One supervisor looks after a project; a second would fight it.",
    "Use the one that runs, or 'penstock down' first.",
    _HELD,
)
DEPLOY_BUSY = Kind(
    "PEN-3003",
    "Another deployment is under way",
    "Two runs at once could deploy halves of two versions.",
    "Wait for the other run to end and run again.",
    _HELD,
)
STORE_UNUSABLE = Kind(
    "PEN-3004",
    "The deployment store cannot be used",
    "The database is missing, damaged, locked or of a newer version.",
    "Check the store's address and its permissions.",
    ExitCode.FAILED,
)
CHANGE_NEEDS_REBUILD = Kind(
    "PEN-3005",
    "A change needs a rebuild",
    "The stream's state or rows do not fit the new version of the model.",
    "Run with --full-refresh to compute the table anew from the start of its inputs.",
    _BAD,
)
LEASE_LOST = Kind(
    "PEN-3006",
    "A lease was lost",
    "Another process took over; this one stopped before it could write.",
    "Nothing to do: the other one goes on.",
    _HELD,
)
SUPERVISOR_START = Kind(
    "PEN-3007",
    "The supervisor did not start",
    "The process ended or did not report in time.",
    "Its log is in .penstock/logs/supervisor.log.",
    ExitCode.FAILED,
)

# -- 40xx: engine and streams -----------------------------------------------------------------------------------------
ENGINE_START = Kind(
    "PEN-4001",
    "The engine did not start",
    "The Spark application ended or did not answer in time.",
    "Its log is in .penstock/logs/engine.log.",
    _DOWN,
)
ENGINE_DOWN = Kind(
    "PEN-4002",
    "The engine does not answer",
    "The Spark application is not running or is overloaded.",
    "'penstock up' starts it; 'penstock status' shows its state.",
    _DOWN,
)
STREAM_FAILED = Kind(
    "PEN-4003",
    "A stream failed",
    "A batch ended with an error that Penstock does not know better.",
    "See 'penstock logs'. The stream is restarted; what was committed stays.",
    ExitCode.FAILED,
)
STREAM_QUARANTINED = Kind(
    "PEN-4004",
    "A stream is quarantined",
    "It failed again and again and was taken out; the others go on.",
    "Mend the cause, then 'penstock restart'.",
    ExitCode.FAILED,
)
ENGINE_LOST = Kind(
    "PEN-4005",
    "The engine ended unexpectedly",
    "The process was killed or crashed.",
    "It is started again; streams go on from their last committed batch.",
    ExitCode.FAILED,
)
QUERY_FAILED = Kind(
    "PEN-4006",
    "A query failed",
    "Spark could not run the query.",
    "Correct the query.",
    _BAD,
)
TABLE_CONFLICT = Kind(
    "PEN-4007",
    "The table belongs to something else",
    "A table or view of the same name exists that this stream did not make.",
    "Rename the model, or drop the other relation; --full-refresh replaces it.",
    _HELD,
)

INPUT_REBUILT = Kind(
    "PEN-4008",
    "An input table was made anew",
    "The table that the stream reads was dropped or fully refreshed; its position in the old one means nothing there.",
    "Run this model with --full-refresh, too.",
    ExitCode.FAILED,
)

# -- 50xx: command line -----------------------------------------------------------------------------------------------
NOT_A_PROJECT = Kind(
    "PEN-5001",
    "No project here",
    "There is no dbt_project.yml in this directory or above it.",
    "Change into a project, pass --project-dir, or make one with 'penstock init'.",
    _BAD,
)
TARGET_EXISTS = Kind(
    "PEN-5002",
    "The directory exists",
    "'init' never writes over files.",
    "Choose another name.",
    _BAD,
)
CODE_UNKNOWN = Kind(
    "PEN-5003",
    "An error code is unknown",
    "The catalogue has no such code.",
    "docs/errors.md lists them.",
    _BAD,
)
PROFILE_INVALID = Kind(
    "PEN-5004",
    "The profile cannot be used",
    "profiles.yml is missing, or its target is not of type penstock.",
    "See profiles/profiles.yml of 'penstock init' for a working one.",
    _BAD,
)
DBT_FAILED = Kind(
    "PEN-5005",
    "dbt failed",
    "dbt reported an error before Penstock's part began.",
    "See dbt's message above.",
    ExitCode.FAILED,
)
USAGE = Kind("PEN-5006", "Wrong use of a command", "The options do not fit together.", "See --help.", _BAD)
DEMO_EMPTY = Kind(
    "PEN-5007",
    "The demo produced no rows",
    "Clicks were written but the result stayed empty until the deadline.",
    "See 'penstock logs'; --sql is the query that is shown.",
    ExitCode.FAILED,
)
RELATION_UNKNOWN = Kind(
    "PEN-5008",
    "A source or table is unknown",
    "The project has no source stream and no dynamic table of that name.",
    "'penstock list sources' and 'penstock list tables' show what there is.",
    _BAD,
)

ALL: dict[str, Kind] = {kind.code: kind for kind in list(globals().values()) if isinstance(kind, Kind)}
