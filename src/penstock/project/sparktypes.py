"""Spark SQL types as they are written in `data_type`, read without Spark.

Rules
- The grammar is Spark's: simple types, decimal(p,s), char(n), varchar(n), array<>, map<,>, struct<name:type, …>.
- Names are case-insensitive; the result is a tree that prints itself in Spark's DDL.
- Types that a message cannot carry (interval, void, variant's relatives) are refused like unknown ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIMPLE = {
    "boolean": "BOOLEAN", "byte": "TINYINT", "tinyint": "TINYINT", "short": "SMALLINT", "smallint": "SMALLINT",
    "int": "INT", "integer": "INT", "long": "BIGINT", "bigint": "BIGINT", "float": "FLOAT", "real": "FLOAT",
    "double": "DOUBLE", "date": "DATE", "timestamp": "TIMESTAMP", "timestamp_ltz": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ", "string": "STRING", "text": "STRING", "binary": "BINARY",
    "decimal": "DECIMAL(10,0)", "dec": "DECIMAL(10,0)", "numeric": "DECIMAL(10,0)",
}  # fmt: skip
KNOWN = frozenset(_SIMPLE) - {"text"} | {"array<type>", "map<key, value>", "struct<name: type>", "decimal(p, s)"}

_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z0-9_]+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<sign>[<>(),:]))")


class TypeSyntaxError(Exception):
    """Why a text is no Spark type; `word` is the part that is wrong."""

    def __init__(self, reason: str, word: str) -> None:
        super().__init__(reason, word)
        self.reason = reason
        self.word = word


@dataclass(frozen=True)
class SparkType:
    """A type: a leaf has `ddl` alone, a struct has its fields."""

    ddl: str
    fields: tuple[tuple[str, SparkType], ...] = ()

    @property
    def is_timestamp(self) -> bool:
        return self.ddl in {"TIMESTAMP", "TIMESTAMP_NTZ"}

    @property
    def is_nested(self) -> bool:
        return self.ddl.startswith(("ARRAY", "MAP", "STRUCT"))


def parse_type(text: str) -> SparkType:
    """The type that the text names, or TypeSyntaxError."""
    parser = _Parser(text)
    found = parser.type()
    parser.end()
    return found


def quoted(name: str) -> str:
    """A name as a Spark identifier."""
    return "`" + name.replace("`", "``") + "`"


_WHOLE = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}  # digits
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def fits(found: SparkType, wanted: SparkType) -> bool:
    """Whether every value of the first type is one of the second: the same type, a wider number, or a text of it."""
    if found.ddl.lower() == wanted.ddl.lower():
        return True
    if found.is_nested or wanted.is_nested or "BINARY" in (found.ddl, wanted.ddl):
        return False
    if wanted.ddl == "STRING":
        return True
    if found.ddl in _WHOLE and wanted.ddl in _WHOLE:
        return _WHOLE[found.ddl] <= _WHOLE[wanted.ddl]
    decimal = _DECIMAL.fullmatch(wanted.ddl)
    if decimal is not None:
        whole, scale = int(decimal[1]) - int(decimal[2]), int(decimal[2])
        if found.ddl in _WHOLE:
            return _WHOLE[found.ddl] <= whole
        own = _DECIMAL.fullmatch(found.ddl)
        return own is not None and int(own[1]) - int(own[2]) <= whole and int(own[2]) <= scale
    return wanted.ddl == "DOUBLE" and found.ddl in {"FLOAT", "TINYINT", "SMALLINT", "INT"}


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_tokens(text))
        self.at = 0

    def type(self) -> SparkType:
        kind, word = self._next("a type")
        if kind != "word":
            raise TypeSyntaxError(f"a type was expected before '{word}'", word)
        name = word.lower()
        if name == "array":
            self._sign("<")
            element = self.type()
            self._sign(">")
            return SparkType(f"ARRAY<{element.ddl}>")
        if name == "map":
            self._sign("<")
            key = self.type()
            self._sign(",")
            value = self.type()
            self._sign(">")
            return SparkType(f"MAP<{key.ddl}, {value.ddl}>")
        if name == "struct":
            return self._struct()
        if name in {"decimal", "dec", "numeric"} and self._peek() == "(":
            return self._decimal()
        if name in {"char", "character", "varchar"}:
            self._sign("(")
            self._number(1, 2**31 - 1)
            self._sign(")")
            return SparkType("STRING")  # a message does not enforce a length, and Spark decodes texts as STRING only
        if name not in _SIMPLE:
            raise TypeSyntaxError(f"'{word}' is no type", word)
        return SparkType(_SIMPLE[name])

    def end(self) -> None:
        if self.at < len(self.tokens):
            left = self.tokens[self.at][1]
            raise TypeSyntaxError(f"'{left}' was not expected there", left)

    def _struct(self) -> SparkType:
        self._sign("<")
        fields: list[tuple[str, SparkType]] = []
        while self._peek() != ">":
            if fields:
                self._sign(",")
            kind, name = self._next("a field")
            if kind == "sign":
                raise TypeSyntaxError(f"a field was expected before '{name}'", name)
            if self._peek() == ":":
                self._sign(":")
            if any(name.lower() == known.lower() for known, _ in fields):
                raise TypeSyntaxError(f"field '{name}' is there twice", name)
            fields.append((name, self.type()))
        self._sign(">")
        return struct(tuple(fields))

    def _decimal(self) -> SparkType:
        self._sign("(")
        precision, scale = self._number(1, 38), 0
        if self._peek() == ",":
            self._sign(",")
            scale = self._number(0, precision)
        self._sign(")")
        return SparkType(f"DECIMAL({precision},{scale})")

    def _number(self, low: int, high: int) -> int:
        _, word = self._next("a number")
        if not word.isdigit() or not low <= int(word) <= high:
            raise TypeSyntaxError(f"a number from {low} to {high} was expected, not '{word}'", word)
        return int(word)

    def _peek(self) -> str | None:
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != "sign":
            return None
        return self.tokens[self.at][1]

    def _sign(self, sign: str) -> None:
        kind, word = self._next(f"'{sign}'")
        if kind != "sign" or word != sign:
            raise TypeSyntaxError(f"'{sign}' was expected before '{word}'", word)

    def _next(self, wanted: str) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise TypeSyntaxError(f"{wanted} is missing at the end", self.text)
        self.at += 1
        return self.tokens[self.at - 1]


def struct(fields: tuple[tuple[str, SparkType], ...]) -> SparkType:
    """A struct of these fields."""
    return SparkType(f"STRUCT<{', '.join(f'{quoted(name)}: {kind.ddl}' for name, kind in fields)}>", fields)


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at, stripped = 0, text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            raise TypeSyntaxError(f"'{stripped[at:].strip()}' cannot be read", stripped[at:].strip())
        kind = str(match.lastgroup)
        word = match.group(kind)
        found.append((kind, word.replace("``", "`") if kind == "quoted" else word))
        at = match.end()
    return found
