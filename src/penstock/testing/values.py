"""Values of YAML as values of a column's type. Pure.

Rules
- The value that a test writes and the one that a table holds become the same Python value, or they are not equal.
- A time without a zone is in UTC, as in the engine.
- Floating-point numbers are equal when their first twelve digits are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import date, datetime, timezone
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa


class UnfitError(Exception):
    """Why a value does not fit a type."""


def canonical(value: Any, kind: pa.DataType) -> Any:
    """The value as one of that type; raises UnfitError."""
    if value is None:
        return None
    try:
        return _canonical(value, kind)
    except (ValueError, TypeError, InvalidOperation, OverflowError):
        raise UnfitError(f"{shown(value)} is no {named(kind)}") from None


def _canonical(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_boolean(kind):
        return _boolean(value)
    if types.is_integer(kind):
        return _integer(value)
    if types.is_floating(kind):
        return float(f"{float(value):.12g}")
    if types.is_decimal(kind):
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
    if types.is_timestamp(kind):
        return _time(value, zoned=kind.tz is not None)
    if types.is_date(kind):
        return _date(value)
    if types.is_string(kind) or types.is_large_string(kind):
        return _text(value)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _bytes(value)
    if types.is_list(kind) or types.is_large_list(kind):
        return [canonical(each, kind.value_type) for each in _list(value)]
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return {_key(canonical(key, kind.key_type)): canonical(each, kind.item_type) for key, each in pairs}
    if types.is_struct(kind):
        return _struct(value, kind)
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}[str(value).lower()] if str(value).lower() in ("true", "false") else _no()


def _integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        return int(_no())
    return int(value)


def _no() -> Any:
    raise ValueError


def _time(value: Any, *, zoned: bool) -> datetime:
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise ValueError  # noqa: TRY004 -- told in one way
    moved: datetime = value.astimezone(timezone.utc) if value.tzinfo else value.replace(tzinfo=timezone.utc)
    return moved if zoned else moved.replace(tzinfo=None)


def _date(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(str(value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode()
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and set(value) == {"base64"}:
        return base64.b64decode(str(value["base64"]), validate=True)
    return _text(value).encode()


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else _no()


def _key(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, dict | list) else value


def _struct(value: Any, kind: pa.StructType) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    fields = {kind.field(index).name.lower(): kind.field(index) for index in range(kind.num_fields)}
    unknown = [name for name in value if str(name).lower() not in fields]
    if unknown:
        raise UnfitError(f"{shown(value)} has a field '{unknown[0]}' that the column has not")
    given = {str(name).lower(): each for name, each in value.items()}
    return {field.name: canonical(given.get(name), field.type) for name, field in fields.items()}


def named(kind: pa.DataType) -> str:
    """The type as Spark calls it."""
    types = pa.types
    for test, name in (
        (types.is_timestamp, "timestamp"), (types.is_date, "date"), (types.is_boolean, "boolean"),
        (types.is_int64, "bigint"), (types.is_int32, "int"), (types.is_string, "string"), (types.is_binary, "binary"),
    ):  # fmt: skip
        if test(kind):
            return name
    return str(kind).replace("decimal128", "decimal")


def shown(value: Any) -> str:
    """The value as people write it."""
    if value is None:
        return "null"
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ")
        return text.removesuffix(".000000")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"base64 {base64.b64encode(value).decode()}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, default=shown, ensure_ascii=False)
    return str(value)
