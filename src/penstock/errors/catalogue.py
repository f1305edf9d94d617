"""The catalogue. Codes are stable: a code is never given a second meaning.

10xx machine · 11xx embedded services · 12xx sources · 13xx models · 20xx Kafka · 21xx schema registry ·
30xx store and deployment · 40xx engine and streams · 50xx command line · 60xx tests
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

REGISTRY_START = Kind(
    "PEN-1102",
    "The embedded schema registry did not start",
    "Its process ended or did not answer in time.",
    "Its log is in .penstock/registry/registry.log.",
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
SOURCE_ANALYSIS = Kind(
    "PEN-1230",
    "Spark cannot read a source as it is declared",
    "An expression of a computed column names a function that Spark does not have, or gives it values of wrong types.",
    "Correct the expression in the source's YAML.",
    _BAD,
)
PRIMARY_KEY_MISSING = Kind(
    "PEN-1240",
    "A source table has no primary key",
    "A table holds the latest row of each key, so it must know which columns are the key.",
    "Add 'primary_key: [column]' beside 'kind: table'.",
    _BAD,
)
PRIMARY_KEY_COLUMN = Kind(
    "PEN-1241",
    "A primary key names a column that cannot be one",
    "A primary key is made of declared columns of simple types, each named once.",
    "Name columns of the source.",
    _BAD,
)
PRIMARY_KEY_OF_STREAM = Kind(
    "PEN-1242",
    "A source stream has a primary key",
    "A stream has every message as a row of its own; only a table keeps one row a key.",
    "Add 'kind: table', or remove 'primary_key'.",
    _BAD,
)
PRIMARY_KEY_VALUE = Kind(
    "PEN-1243",
    "A primary key comes from the message's value",
    "A message without a value deletes a row; which one, only its key can say.",
    "Take the column from the key: 'from: key', or 'from: key.field' with a key format that has fields.",
    _BAD,
)
SOURCE_TABLE_SETTING = Kind(
    "PEN-1244",
    "A setting is not for source tables",
    "A source table is read as it stands, not as a stream of events.",
    "Remove the setting, or use 'kind: stream'.",
    _BAD,
)

# schemas of sources
SCHEMA_CHOICE = Kind(
    "PEN-1250",
    "A schema is given in two ways, or in none that can be used",
    "A schema comes from the registry, from the source itself or from a file.",
    "Keep one of 'subject', 'schema' and 'schema_file'.",
    _BAD,
)
SCHEMA_FILE_MISSING = Kind(
    "PEN-1251",
    "A schema file cannot be read",
    "'schema_file' is a path below the project.",
    "Correct the path, or add the file.",
    _BAD,
)
SCHEMA_INVALID = Kind(
    "PEN-1252",
    "A schema cannot be read",
    "It is not a schema of that format, or it refers to something that is not there.",
    "Correct the schema.",
    _BAD,
)
RECORD_UNKNOWN = Kind(
    "PEN-1253",
    "A message or record is not in the schema",
    "The schema has no type of that name.",
    "Name one that the schema has, with its package or namespace.",
    _BAD,
)
FIELD_UNKNOWN = Kind(
    "PEN-1254",
    "A column takes a field that the schema does not have",
    "Columns are checked against the schema that the lock file pins.",
    "Correct the name, or take the registry's latest schema with 'penstock lock --update'.",
    _BAD,
)
COLUMN_UNFIT = Kind(
    "PEN-1255",
    "A column's data_type does not fit the schema",
    "The schema says which type a field has, and not every value of it fits the column.",
    "Declare the type that the schema has, and cast in a model.",
    _BAD,
)
SCHEMA_UNLOCKED = Kind(
    "PEN-1256",
    "A schema is not in the lock file",
    "Sources are read with the schema that penstock.lock pins, so that a project means the same everywhere.",
    "Run 'penstock lock', and commit penstock.lock.",
    _BAD,
)
LOCK_DIFFERS = Kind(
    "PEN-1257",
    "The lock file is not up to date",
    "A schema has changed since it was pinned, or a source has.",
    "'penstock lock --update' takes the new schemas; look at the difference, and commit penstock.lock.",
    ExitCode.FAILED,
)
LOCK_INVALID = Kind(
    "PEN-1258",
    "The lock file cannot be read",
    "penstock.lock is written by 'penstock lock' and not by hand.",
    "Take it from version control, or remove it and run 'penstock lock'.",
    _BAD,
)
SCHEMA_TYPE = Kind(
    "PEN-1259",
    "A field has a type that no column can have",
    "Spark has no type for it: it contains itself, or it is a union of too many types.",
    "Declare the columns that you need, without this field.",
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
    "Spark's streaming engine has no way to update this query's result, and refresh_mode is 'incremental'.",
    "Rewrite the operator, or leave refresh_mode at 'auto': the table is then recomputed when an input changed.",
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
    "It reads nothing that changes; or refresh_mode is 'incremental' and it reads no source and no dynamic table.",
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
UNIT_TEST_INPUT = Kind(
    "PEN-1350",
    "The columns of a unit test's input are not known",
    "Given rows need types. A stream has those of its source, a dynamic table those of its query, which is analysed.",
    "Correct the query, build what it reads (dbt run --empty), or give the rows with 'format: sql'.",
    _BAD,
)
CLONE_OVER_STREAM = Kind(
    "PEN-1351",
    "A clone would replace the table of a stream",
    "dbt clone --full-refresh replaces what is there; a stream writes this table.",
    "Clone into another schema, leave the model out with --exclude, or end its stream with 'penstock drop'.",
    _HELD,
)
MODEL_UPDATING_INPUT = Kind(
    "PEN-1309",
    "A dynamic table streams from an updating one",
    "The upstream table replaces rows, which this query cannot follow; and refresh_mode is 'incremental'.",
    "Leave refresh_mode at 'auto': the table is then recomputed when an input changed. Or read the table's own inputs.",
    _BAD,
)
MODEL_NOT_FOLLOWED = Kind(
    "PEN-1310",
    "A config key does not apply to dynamic tables",
    "The key works for dbt's tables; a stream's table would ignore it without a word.",
    "Remove the key, or make the model a table.",
    _BAD,
)
CONTRACT_BROKEN = Kind(
    "PEN-1320",
    "A model does not keep its contract",
    "The contract is enforced, and the query gives other columns or other types than the YAML file promises.",
    "Correct the query or the columns' data_type; nothing was started or changed.",
    _BAD,
)
CONSTRAINT_BROKEN = Kind(
    "PEN-1321",
    "A row does not hold a constraint of its table",
    "The model's contract has a constraint that this row breaks. Nothing of its batch was written.",
    "Filter or repair such rows in the model, or change the constraint.",
    ExitCode.FAILED,
)

MODEL_SETTING = Kind(
    "PEN-1311",
    "A setting of a dynamic table does not fit its query",
    "unique_key and deduplicate_by name columns of the result that stay with a row, emit: final needs a window and a "
    "watermark, deduplicate_by appended rows.",
    "Change the setting or the query; see docs/models.md.",
    _BAD,
)
FUNCTION_UNFIT = Kind(
    "PEN-1312",
    "A stream cannot call a function of the project",
    "A stream has the project's functions put into its query, which Spark does with scalar functions in SQL alone.",
    "Correct the function below functions/, or write it as a macro.",
    _BAD,
)
MODEL_KEY_IN_FULL = Kind(
    "PEN-1313",
    "A full refresh cannot keep a unique_key or deduplicate_by",
    "All rows are computed at once, and which row of a key came first or last is not known then: none can replace "
    "another or be taken before it.",
    "Keep the rows by their key in a dynamic table in between, and 'ref' it here without the setting. Or leave it out "
    "and take the row in the query: max_by(...) or min_by(...) with GROUP BY, or row_number().",
    _BAD,
)

EXPECTATION_INVALID = Kind(
    "PEN-1345",
    "An expectation cannot be checked",
    "The condition of an expectation is read over the columns of the table, and is true or false for each row.",
    "Correct 'expect': a condition in Spark SQL that names columns of the query's result.",
    _BAD,
)
EXPECTATION_BROKEN = Kind(
    "PEN-1346",
    "Rows are otherwise than expected",
    "An expectation with 'on_violation: fail' does not hold for a row; nothing of its batch was written.",
    "Correct the data, the model or the expectation, or take 'drop' or 'warn'; then 'dbt run' or 'penstock start'.",
    _BAD,
)
PUBLISH_UNFIT = Kind(
    "PEN-1330",
    "A model cannot be published as it says",
    "A topic takes appended rows, or changed rows by the key of the table: not a table that is recomputed as a whole, "
    "and no other key than the table's own.",
    "Change 'publish' or the query; see docs/models.md.",
    _BAD,
)
PUBLISH_KEY = Kind(
    "PEN-1331",
    "A key of published messages is not a column of the result",
    "publish.key names the columns that are the key of the messages.",
    "Select the column, or correct publish.key.",
    _BAD,
)
PUBLISH_TYPE = Kind(
    "PEN-1332",
    "A column cannot be written in the format of the published messages",
    "The format has no way to say a value of its type.",
    "Cast the column in the model, or choose another format.",
    _BAD,
)
PUBLISH_SCHEMA = Kind(
    "PEN-1333",
    "The schema registry does not take the schema of the published messages",
    "The subject's compatibility rule does not allow the new schema beside those that are registered.",
    "Change the model so that its columns are compatible, publish to another topic, or change the subject's rule.",
    _BAD,
)
PUBLISH_LOOP = Kind(
    "PEN-1334",
    "A model is published to a topic that it reads",
    "Each row that it publishes would come back to it as a message, without end.",
    "Publish to another topic.",
    _BAD,
)
PUBLISH_NO_TABLE = Kind(
    "PEN-1335",
    "A model that is read has no table",
    "It is published to a topic in place of a table (publish.table: false).",
    "Give it a table, or read its topic as a source.",
    _BAD,
)

REAL_TIME_UNFIT = Kind(
    "PEN-1336",
    "A model cannot run in real time",
    "Spark's real-time trigger takes queries without state over topics of JSON, CSV, text or raw values, and writes to "
    "a topic alone, at least once, as JSON.",
    "Set publish: {table: false, delivery: at_least_once} with values in JSON, or leave out 'mode'.",
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
CLUSTER_CHANGED = Kind(
    "PEN-2010",
    "A topic is on another Kafka cluster than the one that was read",
    "Up to where a stream has read is an offset, and each cluster gives its own: in another one the stream would pass "
    "messages over, or miss some that were never there. It does not start.",
    "Point the source, or the profile, back and run 'dbt run'; or compute the table from what the new cluster has: "
    "'dbt run --full-refresh --select <model>'.",
    _HELD,
)

# -- 21xx: schema registry --------------------------------------------------------------------------------------------
REGISTRY_NOT_CONFIGURED = Kind(
    "PEN-2101",
    "No schema registry is configured",
    "The source names no schema.registry.url and the profile has no schema_registry.",
    "Set 'schema_registry:' in the profile, with 'url' or 'embedded: true', or schema.registry.url in the source.",
    _BAD,
)
REGISTRY_UNREACHABLE = Kind(
    "PEN-2102",
    "The schema registry does not answer",
    "A schema is needed that is not known yet, and nothing answers at the registry's address.",
    "Check the address; a stream that waits for a schema is started again by itself.",
    _DOWN,
)
REGISTRY_REFUSED = Kind(
    "PEN-2103",
    "The schema registry refused the credentials",
    "The user, password, token or certificate is not valid there, or may not read schemas.",
    "Check basic.auth.user.info and the secret it refers to.",
    _BAD,
)
SUBJECT_MISSING = Kind(
    "PEN-2104",
    "A subject is not in the schema registry",
    "Nothing was registered under the name yet, or the producer uses another one.",
    "Set 'subject' to the name that the producer registers, or register a schema.",
    _BAD,
)
REGISTRY_ANSWER = Kind(
    "PEN-2105",
    "The schema registry gave an answer that cannot be used",
    "What answers at the address does not speak Confluent's API.",
    "Check the address, with its path: Apicurio's ends with /apis/ccompat/v7.",
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
    "'penstock plan' says what it costs; --full-refresh or on_configuration_change: apply computes the table anew.",
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
REBUILD_READERS = Kind(
    "PEN-3008",
    "A rebuild would leave readers behind",
    "Other streams read the table as a stream; their place in the old table means nothing in the new one.",
    "Rebuild them in the same run: --select <model>+ --full-refresh.",
    _BAD,
)
SOURCE_READ_ONLY = Kind(
    "PEN-3020",
    "A source is read-only",
    "What a source holds is what its topic holds, and the topic belongs to those who produce to it.",
    "Send messages to the topic, or write into a table of another name.",
    _BAD,
)
TOPIC_NOT_OWNED = Kind(
    "PEN-3021",
    "A topic is not the project's to delete",
    "A source only reads its topic; others produce to it and may read it, too.",
    "Leave out --delete-topic. To delete the topic itself, use your broker's tools.",
    _BAD,
)
SOURCE_TABLE_STOP = Kind(
    "PEN-3022",
    "The query behind a source table cannot be stopped",
    "Without its query a source table would go on being read with rows that are out of date.",
    "Drop the source table with 'penstock drop'; 'penstock run' makes it again.",
    _BAD,
)
SOURCE_TABLE_IN_USE = Kind(
    "PEN-3023",
    "A source table is being read",
    "Streams that join it would fail without it.",
    "Drop those streams first.",
    _HELD,
)
TABLE_IN_USE = Kind(
    "PEN-3024",
    "A dynamic table is being read",
    "Streams that read it would fail without it, or have no place in one that is made anew.",
    "Drop those streams first, or deploy them with another input.",
    _HELD,
)
REBUILD_FAILED = Kind(
    "PEN-3030",
    "A rebuild failed",
    "The new generation could not take the place of the old one, which goes on.",
    "Mend what the message says, then 'dbt run --full-refresh --select <model>'.",
    ExitCode.FAILED,
)
TAKEOVER_UNFINISHED = Kind(
    "PEN-3032",
    "A takeover has not come to its end",
    "Some rows of a rebuild, or of streams that are rebuilt together, are in their place, and others could not be put.",
    "It is tried again until all are; mend what 'penstock status' says. The tables can be read meanwhile.",
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

BAD_RECORD = Kind(
    "PEN-4030",
    "A stream met a message that does not fit its source",
    "The source, or the model, says on_bad_record: fail, and a message is not of the declared format or types.",
    "Correct the source's columns or the message's producer. With on_bad_record: quarantine the stream goes on and the "
    "message is kept; with skip it goes on without it, with null with what could be read of it.",
    _BAD,
)
REPLAY_OUTDATED = Kind(
    "PEN-4031",
    "A stream does not know the source's newest definition",
    "Records are replayed as the source is declared now; a stream that decodes it otherwise would get other rows.",
    "Deploy it with 'dbt run', then replay.",
    _HELD,
)
REPLAY_STATEFUL = Kind(
    "PEN-4032",
    "A stream that keeps state cannot be given single records",
    "It passed them before the source was corrected, and what it keeps (aggregates, joins, windows, the latest row of "
    "a key) cannot be added to from outside.",
    "Compute it anew with 'dbt run --full-refresh --select <model>': it reads the topic with the corrected source.",
    _HELD,
)
NO_QUARANTINE = Kind(
    "PEN-4033",
    "A source has no quarantine",
    "No deployed stream reads it with on_bad_record: quarantine.",
    "Add on_bad_record: quarantine to the source or to a model and deploy it.",
    _BAD,
)
INPUT_REBUILT = Kind(
    "PEN-4008",
    "An input table was made anew",
    "The table that the stream reads was dropped or fully refreshed; its position in the old one means nothing there.",
    "Run this model with --full-refresh, too.",
    ExitCode.FAILED,
)
STREAM_STUCK = Kind(
    "PEN-4020",
    "A stream was stuck",
    "It said that it runs, and committed nothing for minutes while rows waited for it.",
    "It is started again. If it comes back: Spark's UI shows what its batch waits for.",
    ExitCode.FAILED,
)

PUBLISH_FAILED = Kind(
    "PEN-4040",
    "Rows could not be published",
    "The broker did not take the messages: the topic, its limits or the user's rights do not allow it, or it does not "
    "answer.",
    "Mend the cause; the stream is started again and publishes the batch anew.",
    ExitCode.FAILED,
)
PUBLISH_NULL_KEY = Kind(
    "PEN-4041",
    "A row that is published by its key has no key",
    "The key column is null, and a message without a key replaces no other.",
    "Leave such rows out (where … is not null), or set publish.key_format to json or protobuf, which can say null.",
    ExitCode.FAILED,
)
PUBLISH_FORGOTTEN = Kind(
    "PEN-4042",
    "The broker forgot which batch was published last",
    "It keeps that for offsets.retention.minutes (7 days unless set otherwise). The stream was ended in the middle of "
    "a batch and started again later than that, so nobody knows whether the batch is in the topic.",
    "Deploy with publish.delivery: at_least_once to publish the batch, perhaps again; then set it back.",
    _HELD,
)

REAL_TIME_SLOTS = Kind(
    "PEN-4043",
    "The engine has no room for a stream in real time",
    "Such a stream holds one of the engine's cores for each partition that it reads, as long as it runs; one must be "
    "left for everything else.",
    "Raise 'cores' below 'engine' in the profile (they may be more than the machine has), or leave out 'mode'.",
    _BAD,
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
FOLLOW_TOO_MANY = Kind(
    "PEN-5009",
    "A followed query has too many rows",
    "A query over tables that replace rows is compared with its result before, which has a limit.",
    "Narrow it with WHERE or an aggregate, or follow the source or append-only table behind it.",
    _BAD,
)
ALERT_NOT_SENT = Kind(
    "PEN-5020",
    "An alert could not be sent",
    "The webhook of PENSTOCK_ALERT_WEBHOOK did not answer, or refused.",
    "Check its address; the alert is sent again until it is taken.",
    ExitCode.UNAVAILABLE,
)
ALERT_REFUSED = Kind(
    "PEN-5040",
    "An alert was refused",
    "The webhook of PENSTOCK_ALERT_WEBHOOK answered that it will never take the message (4xx): its token was revoked, "
    "its channel is gone, or it expects another format.",
    "Check its address. The alert is given up, later ones are sent; the checks in the web UI show the state.",
    ExitCode.UNAVAILABLE,
)
UI_NOT_STARTED = Kind(
    "PEN-5021",
    "The web UI did not start",
    "Dagster is not installed, its port is taken, or the project cannot be loaded.",
    "See .penstock/logs/ui.log. Dagster comes with pip install 'penstock[orchestration]'.",
    ExitCode.ENVIRONMENT,
)
AGAINST_UNKNOWN = Kind(
    "PEN-5030",
    "There is nothing to compare with",
    "--against takes a directory with dbt's manifest.json, or a commit, branch or tag of the project's git repository.",
    "Check its name; in CI, fetch the branch first (actions/checkout with fetch-depth: 0).",
    _BAD,
)
AGAINST_BROKEN = Kind(
    "PEN-5031",
    "What is compared with cannot be compiled",
    "dbt could not compile the project as it was at the commit.",
    "Compare with a commit whose project is in order, or with a state directory.",
    _BAD,
)

# -- 60xx: tests ------------------------------------------------------------------------------------------------------
STREAM_TEST_INVALID = Kind(
    "PEN-6001",
    "A stream test cannot be read",
    "The YAML file is damaged, or has a key or a value that stream tests do not have.",
    "docs/stream-tests.md lists the keys.",
    _BAD,
)
STREAM_TEST_NAME = Kind(
    "PEN-6002",
    "A stream test names what the project does not have",
    "The model, source, table or column is not in the project, or has no part in this test.",
    "Check the spelling; 'penstock list tables' and 'penstock list sources' show what there is.",
    _BAD,
)
STREAM_TEST_VALUE = Kind(
    "PEN-6003",
    "A value of a stream test does not fit its column",
    "Rows of a test are converted to the types that the columns have.",
    "Write the value as the column's type has it: '2026-01-31 10:00:00', 12.50, [1, 2], {a: 1}.",
    _BAD,
)
STREAM_TEST_NONE = Kind(
    "PEN-6004",
    "There is no such stream test",
    "No test has that name, model or file, or the project has no stream tests.",
    "Stream tests are YAML files below tests/streams/ or stream_tests/: see docs/stream-tests.md.",
    _BAD,
)
STREAM_TEST_SQL = Kind(
    "PEN-6005",
    "The SQL of a new version cannot be rendered",
    "A version of a model that a test deploys may use ref(), source(), config() and var() with a default.",
    "Write what a macro makes in its place.",
    _BAD,
)
STREAM_TEST_WATERMARK = Kind(
    "PEN-6006",
    "A watermark cannot be advanced",
    "No stream of the test has a watermark, or it is past that time already: it never goes back.",
    "Give the source or the table above a watermark, or a later time.",
    _BAD,
)
FIXTURE_INVALID = Kind(
    "PEN-6010",
    "A fixture cannot be used",
    "The file is missing, or was not written by 'penstock record'.",
    "Record it again.",
    _BAD,
)
MASK_REFUSED = Kind(
    "PEN-6011",
    "A column cannot be masked",
    "Only what is found in a message can be masked: fields of JSON, whole keys and values that are text, and headers.",
    "Leave the option out, or record a topic whose messages are JSON.",
    _BAD,
)
RECORD_RANGE = Kind(
    "PEN-6012",
    "There is nothing to record",
    "The topic has no message between the two ends.",
    "'penstock describe' shows what the topic holds.",
    _BAD,
)

ALL: dict[str, Kind] = {kind.code: kind for kind in list(globals().values()) if isinstance(kind, Kind)}
