"""The formats of keys and values: what may be set for each, and which columns it can give.

Rules
- A format is one class here (its settings) and one in `penstock.compiler.formats` (its decoding), under the same name.
- `fields` says which columns a format gives: `nested` value.a.b, `flat` value.a, `whole` the value as one column.
- A format with a schema (avro, protobuf) takes it from the registry, from the source itself or from a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from penstock.errors import did_you_mean
from penstock.project.sparktypes import SparkType

Fields = Literal["nested", "flat", "whole"]


class FormatSettings(BaseModel):
    """Base of every format."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fields: ClassVar[Fields] = "whole"
    needs_columns: ClassVar[bool] = True  # False: the format carries a schema that columns can be taken from
    format: str

    def options(self) -> tuple[tuple[str, str], ...]:
        """The settings beside the name that differ from their defaults, as a spec keeps them."""
        return tuple(sorted((name, str(value)) for name, value in self.model_dump(exclude_defaults=True).items()
                            if name != "format"))  # fmt: skip

    @classmethod
    def refuses(cls, kind: SparkType) -> str | None:
        """Why a column of this type cannot come from the format; None if it can."""
        if cls.fields == "whole" and kind.is_nested:
            return "Use string or binary, or name a field of a format that has fields: value.path.to.field."
        return None


class JsonFormat(FormatSettings):
    """A JSON object. A column without `from` is the field of its name; `from: value.a.b` is a field of a field."""

    fields: ClassVar[Fields] = "nested"
    format: Literal["json"] = Field(default="json", description="A JSON object.")


class CsvFormat(FormatSettings):
    """One line of separated texts, without a header: fields belong to the columns in the order of their declaration."""

    fields: ClassVar[Fields] = "flat"
    format: Literal["csv"] = Field(description="One line of separated texts.")
    delimiter: str = Field(default=",", min_length=1, max_length=8, description="What stands between two fields.")
    quote: str = Field(default='"', max_length=1, description="What a field with delimiters in it stands between.")
    escape: str = Field(default="\\", max_length=1, description="What makes the sign after it part of the field.")
    null_value: str = Field(default="", description="The text that stands for null.")

    @classmethod
    def refuses(cls, kind: SparkType) -> str | None:
        if kind.is_nested or kind.ddl == "BINARY":
            return "A field of CSV is a simple value: use string, and take it apart in a computed column."
        return None


class StringFormat(FormatSettings):
    """Text in UTF-8, in one column; a column of another type is cast from the text."""

    format: Literal["string"] = Field(description="Text in UTF-8.")


class RawFormat(FormatSettings):
    """Bytes as they are, in one column of type binary (or string, if they are text)."""

    format: Literal["raw"] = Field(description="Bytes as they are.")

    @classmethod
    def refuses(cls, kind: SparkType) -> str | None:
        return None if kind.ddl in {"BINARY", "STRING"} else "Use binary, or the format 'string' to cast from text."


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[
    tuple[Annotated[str, Field(min_length=1, pattern=r"^\S+$")], ...],
    BeforeValidator(_names),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
Text = Annotated[str, Field(min_length=1, pattern=r"\S")]


class SchemaFormat(FormatSettings):
    """Base of the formats whose messages have a schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    fields: ClassVar[Fields] = "nested"
    needs_columns: ClassVar[bool] = False
    subject: Text | None = Field(
        default=None,
        description="The subject in the schema registry; `{topic}` and `{record}` stand for their names. "
        "Left out, and without another schema: `{topic}-value`, or `{topic}-key`.",
    )
    inline: Text | None = Field(default=None, alias="schema", description="The schema itself, instead of a registry.")
    schema_file: Text | None = Field(
        default=None, description="A file with the schema, relative to the project, instead of a registry."
    )
    framing: Literal["confluent", "none"] | None = Field(
        default=None,
        description="What stands before a message: `confluent` (a zero byte and the schema's id; the default with a "
        "registry) or `none` (the default without).",
    )

    @property
    def wanted(self) -> tuple[str, ...]:
        """The types of messages that the source reads; none is named when there is but one."""
        return ()

    @property
    def from_registry(self) -> bool:
        return self.inline is None and self.schema_file is None

    @property
    def framed(self) -> bool:
        return self.from_registry if self.framing is None else self.framing == "confluent"

    def options(self) -> tuple[tuple[str, str], ...]:
        return ()  # a spec keeps the schema itself

    @model_validator(mode="after")
    def _one_schema(self) -> SchemaFormat:
        given = [name for name, value in (("subject", self.subject), ("schema", self.inline),
                                          ("schema_file", self.schema_file)) if value is not None]  # fmt: skip
        if len(given) > 1:
            words = {"first": given[0], "second": given[1], "at": given[1]}
            raise PydanticCustomError("PEN-1250", "it has both '{first}' and '{second}'.", words)
        if self.from_registry and self.framing == "none":
            raise PydanticCustomError(
                "PEN-1250", "a schema of the registry is found by the id that stands before a message.",
                {"at": "framing", "hint": "Remove 'framing', or give 'schema' or 'schema_file'."},
            )  # fmt: skip
        return self

    @classmethod
    def refuses(cls, kind: SparkType) -> str | None:
        return None  # the schema decides


class AvroFormat(SchemaFormat):
    """Avro records, with the schema from a registry, from the source itself or from an .avsc file.

    Columns that are not declared are taken from the schema, and a declared one may leave out its `data_type`.
    """

    format: Literal["avro"] = Field(description="Avro records.")
    record: Names | None = Field(
        default=None,
        description="The full name of the record to read, where a topic has several types of messages; the others are "
        "no rows. A list makes a struct column of each.",
    )

    @property
    def wanted(self) -> tuple[str, ...]:
        return self.record or ()


class ProtobufFormat(SchemaFormat):
    """Protobuf messages, with the schema from a registry, from the source itself or from a .proto file.

    Columns that are not declared are taken from the schema, and a declared one may leave out its `data_type`. No
    `protoc` is needed on the machine. Imports of a file are looked for in its folder and those above, up to the
    project's; Google's well-known types are always there.
    """

    format: Literal["protobuf"] = Field(description="Protobuf messages.")
    message: Names | None = Field(
        default=None,
        description="The full name of the message to read; needed where the schema has several. A list makes a struct "
        "column of each.",
    )

    @property
    def wanted(self) -> tuple[str, ...]:
        return self.message or ()


FORMATS: dict[str, type[FormatSettings]] = {
    "json": JsonFormat,
    "avro": AvroFormat,
    "protobuf": ProtobufFormat,
    "csv": CsvFormat,
    "string": StringFormat,
    "raw": RawFormat,
}


def _checked(default: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, FormatSettings):
            return value
        if not isinstance(value, dict):
            name = value if isinstance(value, str) and value in FORMATS else default
            raise PydanticCustomError("PEN-1202", "it must be a mapping.", {"hint": f"Write '{{format: {name}}}'."})
        name = value.get("format", default)
        if name not in FORMATS:
            raise PydanticCustomError(
                "PEN-1203", "format '{name}' is unknown.",
                {"name": str(name), "hint": did_you_mean(str(name), FORMATS), "at": "format"},
            )  # fmt: skip
        return {**value, "format": name}

    return BeforeValidator(check)


def _tag(value: Any) -> str:
    return f"#{value['format'] if isinstance(value, dict) else value.format}"


if TYPE_CHECKING:
    KeyFormat: TypeAlias = FormatSettings
    ValueFormat: TypeAlias = FormatSettings
else:
    _any = Union[tuple(Annotated[settings, Tag(f"#{name}")] for name, settings in FORMATS.items())]  # noqa: UP007
    KeyFormat = Annotated[_any, Discriminator(_tag), _checked("string")]
    ValueFormat = Annotated[_any, Discriminator(_tag), _checked("json")]
