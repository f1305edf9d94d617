"""Where in a topic a stream begins when it has read nothing yet: the setting `start`.

Rules
- A time has a zone; it is kept in UTC. Reading starts at the first message of that time or later, in each partition.
- `from` is a time, or `earliest`. With `backfill: batch` what the topic holds when the stream begins is read in large
  batches; then the stream goes on as its model says.
- Offsets are given for each partition that is read: a number, earliest or latest.
"""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from penstock.errors import did_you_mean

ENDS = ("earliest", "latest")
_SPARK = {"earliest": -2, "latest": -1}


def _time(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
        except ValueError:
            raise _wrong(f"'{value}' is not a time.") from None
        if value.tzinfo is None:
            raise _wrong("the time has no zone.", "End it with Z for UTC, or with an offset such as +02:00.")
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise _wrong("the timestamp is not a time.")
    # YAML reads a time without quotes by itself, and some readers turn it into UTC without saying so.
    return value.astimezone(timezone.utc) if value.tzinfo else value.replace(tzinfo=timezone.utc)


def _from(value: Any) -> datetime | str:
    return value if value == "earliest" else _time(value)


def _offset(value: Any) -> int:
    if isinstance(value, str) and value in _SPARK:
        return _SPARK[value]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        shown = did_you_mean(value, ENDS) if isinstance(value, str) else "It is a number from 0, earliest or latest."
        raise _wrong(f"the offset '{value}' is none.", shown)
    return int(value)


def _wrong(message: str, hint: str | None = None) -> PydanticCustomError:
    return PydanticCustomError("PEN-1221", "{message}", {"message": message, **({"hint": hint} if hint else {})})


Time = Annotated[datetime, BeforeValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})]
From = Annotated[
    datetime | Literal["earliest"],
    BeforeValidator(_from),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"const": "earliest"}]}),
]
Offset = Annotated[
    int, BeforeValidator(_offset), WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"enum": list(ENDS)}]})
]
Partition = Annotated[int, Field(ge=0)]


class StartAt(BaseModel):
    """A place within the topic: one of the three."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    timestamp: Time | None = Field(
        default=None, description="The first message of that time or later, such as '2026-01-01T00:00:00Z'."
    )
    from_: From | None = Field(
        default=None, alias="from", description="The same, or `earliest`; the word that goes with `backfill`."
    )
    offsets: dict[Partition, Offset] | None = Field(
        default=None, min_length=1, description="For each partition an offset, `earliest` or `latest`."
    )

    backfill: Literal["batch"] | None = Field(
        default=None,
        description="`batch`: what is there when the stream begins is read in large batches; then the stream goes "
        "on as its model says, at the same offset.",
    )

    @model_validator(mode="after")
    def _one(self) -> StartAt:
        if sum(each is not None for each in (self.timestamp, self.from_, self.offsets)) != 1:
            raise _wrong("a start has either 'timestamp', 'from' or 'offsets'.")
        return self

    @property
    def time(self) -> datetime | None:
        """The time to begin at, whichever word it was given with."""
        return self.from_ if isinstance(self.from_, datetime) else self.timestamp


def _checked(value: Any) -> Any:
    if isinstance(value, str) and value not in ENDS:
        raise _wrong(f"'start' is '{value}'.", did_you_mean(value, ENDS))
    if not isinstance(value, str | dict | StartAt):
        raise _wrong("'start' is neither a word nor a mapping.")
    return value


def _tag(value: Any) -> str:
    return "#end" if isinstance(value, str) else "#at"


Start = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("#end")] | Annotated[StartAt, Tag("#at")],
    Discriminator(_tag),
    BeforeValidator(_checked),
]
