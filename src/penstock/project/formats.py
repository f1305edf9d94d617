"""The formats of keys and values: what may be set for each, and which columns it can give.

Rules
- A format is one class here (its settings) and one in `penstock.compiler.formats` (its decoding), under the same name.
- `fields` says which columns a format gives: `nested` value.a.b, `flat` value.a, `whole` the value as one column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
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


FORMATS: dict[str, type[FormatSettings]] = {
    "json": JsonFormat,
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
