"""All that can be set below `config.meta.stream` of a source and of a column.

Rules
- These models are the one place: validation (`penstock.project.source`), the JSON Schema for editors
  (`penstock.project.schema`) and the reference in docs/sources.md are made from them.
- A model says what is wrong with one setting; what settings mean together is for the reader of sources.
- A custom error has the code of its kind as type, and may have a `hint` and, in `at`, the key below that is wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from penstock.errors import did_you_mean
from penstock.kafka.security import MECHANISMS, PROTOCOLS, Reference
from penstock.project.formats import JsonFormat, KeyFormat, StringFormat, ValueFormat
from penstock.project.start import Start
from penstock.registry.address import PREFIX as REGISTRY_PREFIX

RECORD = ("key", "headers", "topic", "partition", "offset", "timestamp", "value", "record")
KINDS = ("stream", "table")
ORIGIN_PATTERN = r"^(key|value)(\.[^.]+)+$|^header\(\s*[^\s)][^)]*\)$"

Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Names = Annotated[
    list[Text],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class Settings(BaseModel):
    """Base: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WatermarkSettings(Settings):
    """How late rows may come, and by which column."""

    column: str = Field(description="A column of type timestamp; a computed one will do.")
    delay: str = Field(description="How late a row may come: '30 seconds', '10 minutes', '1 hour'.")


def _reference(value: Any) -> Any:
    if isinstance(value, str | int | float):
        raise PydanticCustomError("PEN-1218", "it is a secret and is written out.")  # never with the value
    return value


def _one_of(words: tuple[str, ...]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in words:
            raise PydanticCustomError(
                "PEN-1202", "'{value}' is unknown.", {"value": str(value), "hint": did_you_mean(str(value), words)}
            )
        return value

    return BeforeValidator(check)


ON_BAD_RECORD = ("null", "skip", "quarantine", "fail")
OnBadRecord = Annotated[str, _one_of(ON_BAD_RECORD), WithJsonSchema({"enum": [*ON_BAD_RECORD, None]})]
Secret = Annotated[Reference, BeforeValidator(_reference)]
Mechanism = Annotated[str, _one_of((*MECHANISMS, "GSSAPI", "OAUTHBEARER")), WithJsonSchema({"enum": list(MECHANISMS)})]
Protocol = Annotated[str, _one_of(PROTOCOLS), WithJsonSchema({"enum": list(PROTOCOLS)})]


class SecuritySettings(Settings):
    """Credentials and encryption, by the names of Kafka's clients. The same keys go below `kafka:` in the profile."""

    security_protocol: Protocol | None = Field(
        default=None, alias="security.protocol", description="How to speak to the broker."
    )
    sasl_mechanisms: Mechanism | None = Field(
        default=None, alias="sasl.mechanisms", description="How to log in, with a protocol that begins with SASL."
    )
    sasl_mechanism: Mechanism | None = Field(
        default=None, alias="sasl.mechanism", description="The same, by the name that Java clients use."
    )
    sasl_username: Text | None = Field(default=None, alias="sasl.username", description="Name of the user.")
    sasl_password: Secret | None = Field(
        default=None, alias="sasl.password", description="A reference to the password: {env_var: NAME} or {file: PATH}."
    )
    ssl_ca_location: Text | None = Field(
        default=None,
        alias="ssl.ca.location",
        description="File with the certificates (PEM) that brokers are trusted by.",
    )
    ssl_certificate_location: Text | None = Field(
        default=None,
        alias="ssl.certificate.location",
        description="File with the client's own certificate (PEM), for mTLS.",
    )
    ssl_key_location: Text | None = Field(
        default=None,
        alias="ssl.key.location",
        description="File with the client's private key (PEM, PKCS #8), for mTLS.",
    )
    ssl_key_password: Secret | None = Field(
        default=None, alias="ssl.key.password", description="A reference to the password of the private key."
    )
    ssl_endpoint_identification_algorithm: Annotated[str, _one_of(("https", "none"))] | None = Field(
        default=None,
        alias="ssl.endpoint.identification.algorithm",
        description="Whether the name in the broker's certificate is checked (`https`, the default) or not (`none`).",
    )


def _without_password(url: str) -> str:
    if any("@" in each.partition("//")[2].partition("/")[0] for each in url.split(",")):
        raise PydanticCustomError(
            "PEN-1218", "it has a user or password in it.",
            {"hint": "Name where 'user:password' is kept with basic.auth.user.info: {env_var: NAME} or {file: /path}."},
        )  # fmt: skip
    return url


class RegistrySettings(Settings):
    """The schema registry of a source, by the names of Confluent's clients. In the profile the same keys go below
    `schema_registry:`, without the prefix."""

    registry_url: Annotated[Text, AfterValidator(_without_password)] | None = Field(
        default=None,
        alias="schema.registry.url",
        description="The registry, or several with commas. Left out: the profile's.",
    )
    registry_basic_auth_user_info: Secret | None = Field(
        default=None,
        alias="schema.registry.basic.auth.user.info",
        description="A reference to `user:password`: {env_var: NAME} or {file: PATH}.",
    )
    registry_bearer_auth_token: Secret | None = Field(
        default=None, alias="schema.registry.bearer.auth.token", description="A reference to a token."
    )
    registry_ssl_ca_location: Text | None = Field(
        default=None,
        alias="schema.registry.ssl.ca.location",
        description="File with the certificates (PEM) that the registry is trusted by.",
    )
    registry_ssl_certificate_location: Text | None = Field(
        default=None,
        alias="schema.registry.ssl.certificate.location",
        description="File with the client's own certificate (PEM), for mTLS.",
    )
    registry_ssl_key_location: Text | None = Field(
        default=None,
        alias="schema.registry.ssl.key.location",
        description="File with the client's private key (PEM), for mTLS.",
    )
    registry_ssl_key_password: Secret | None = Field(
        default=None,
        alias="schema.registry.ssl.key.password",
        description="A reference to the password of the private key.",
    )

    def registry(self) -> dict[str, str | Reference]:
        """What is set, by the names without the prefix."""
        found = {
            str(field.alias).removeprefix(REGISTRY_PREFIX): getattr(self, name)
            for name, field in RegistrySettings.model_fields.items()
        }
        return {name: value for name, value in sorted(found.items()) if value is not None}


class StreamSettings(SecuritySettings, RegistrySettings):
    """A topic of Kafka, read as a stream or as a table. Settings of the source are the defaults of its tables."""

    type: Literal["kafka"] = Field(default="kafka", description="The connector.")
    kind: Annotated[str, _one_of(KINDS), WithJsonSchema({"enum": list(KINDS)})] = Field(
        default="stream",
        description="`stream`: every message is a row. `table`: the latest row of each key, kept up to date.",
    )
    primary_key: Names | None = Field(
        default=None, description="The column or columns that tell rows apart, with `kind: table`."
    )
    topic: Text | None = Field(default=None, description="The topic. Either this or `topic_pattern`.")
    topic_pattern: Text | None = Field(
        default=None, description="A regular expression: all topics whose whole name matches, also those to come."
    )
    partitions: list[Annotated[int, Field(ge=0, strict=True)]] | None = Field(
        default=None, min_length=1, description="Read these partitions of the topic only."
    )
    bootstrap_servers: Text | None = Field(
        default=None,
        alias="bootstrap.servers",
        description="The brokers, host:port with commas. Left out: the profile's.",
    )
    start: Start = Field(
        default="earliest",
        description="Where a stream begins that has read nothing yet; later ones go on where they were.",
    )
    key: KeyFormat = Field(default=StringFormat(format="string"), description="The format of keys.")
    value: ValueFormat = Field(default=JsonFormat(), description="The format of values.")
    watermark: WatermarkSettings | None = Field(default=None, description="How late rows may come.")
    on_bad_record: OnBadRecord = Field(
        default="null",
        description=(
            "What becomes of a message that does not fit: `null` (what does not fit is null), `skip` (it is no row), "
            "`quarantine` (it is no row, and is kept in the table `<source>__quarantine`) or `fail` (streams stop)."
        ),
    )


Origin = Annotated[
    str,
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"enum": list(RECORD)}, {"type": "string", "pattern": ORIGIN_PATTERN}]}),
]


class ColumnSettings(Settings):
    """Where a column comes from, if not from the field of its own name. Either `from` or `expr`."""

    origin: Origin | None = Field(
        default=None,
        alias="from",
        description=(
            "`key`, `headers`, `header(name)`, `topic`, `partition`, `offset`, `timestamp`, `value`, "
            "`value.path.to.field`, `key.path.to.field`, or `record`: the full name of the value's type."
        ),
    )
    expr: Text | None = Field(
        default=None, description="A Spark SQL expression over the other columns: a computed column."
    )


def names_of(model: type[BaseModel]) -> list[str]:
    """The keys of a model as a user writes them."""
    return [field.alias or name for name, field in model.model_fields.items()]
