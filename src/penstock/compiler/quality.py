"""How good a record is: empty, bad, partly bad or good, as Spark SQL.

Rules
- Empty: there is no value, or it holds nothing: no bytes, `{}`, nulls alone.
- Bad: something is there, and no declared column of the value could be read from it.
- Partly bad: something in the key, value or headers does not fit the type that a column declares; the rest does.
- The first look costs a good record next to nothing: what was decoded anyway says whether all of it fits. What is the
  matter is worked out for the others alone.
- A message with a schema is decoded as a whole or is bad; a field that its schema has otherwise is null.
- Without a word on bad records a record is judged by the columns that are used; and where they are all null, by the
  others, so that a row is there whatever a model uses. With any other choice all columns are judged.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.compiler.formats import BY_PLACE, Part
from penstock.compiler.origins import decoder, expression, field_of, given_bytes, part, struct_of
from penstock.compiler.spec import Column, KafkaInput
from penstock.compiler.sqltext import WIDTH, call, indented, listed, text
from penstock.project.sparktypes import quoted

EMPTY, BAD, PARTLY, GOOD = "empty", "bad", "partly bad", "good"
_ALWAYS_FITS = frozenset({"STRING", "BINARY"})  # what bytes are cast to without fail


def quality(source: KafkaInput, used: KafkaInput) -> str:
    """One of the four words, of the records with their decoded keys and values. `used` has the columns to judge by."""
    verdict = _if_any(_unfit(source, used), PARTLY, GOOD)
    cases = [("`value` is null or length(`value`) = 0", text(EMPTY))]
    if decoder(source, "value").ready:
        return _case([*cases, (f"{struct_of('value')} is not null", verdict)], text(BAD))
    if part(source, "value").columns:
        cases += [(_either(_has_value(source, used)), verdict), (_without_values(source, used), text(EMPTY))]
        return _case(cases, text(BAD))
    whole = [column for column in source.columns if column.origin == "value"]
    if whole and not any(column.type in _ALWAYS_FITS for column in whole):
        return _case([*cases, (_either(_not_null([expression(column) for column in whole])), verdict)], text(BAD))
    return _case(cases, verdict)


def decoded_part(source: KafkaInput, chosen: KafkaInput, name: str) -> Part:
    """What is decoded of a key or value: the chosen fields, or all where they have no names."""
    format_name = source.key_format if name == "key" else source.value_format
    of = part(chosen, name)
    return part(source, name) if format_name in BY_PLACE and of.columns else of


def problem(source: KafkaInput) -> str:
    """What is the matter with a record that is not good: a struct of `column` (the first at fault) and `error`."""
    value, key = part(source, "value"), part(source, "key")
    faults = [
        *decoder(source, "key").faults(key, struct_of("key")),
        *((column, _misfit(column)) for column in source.columns if _may_misfit(column)),
        *decoder(source, "value").faults(value, struct_of("value")),
    ]
    names = [call("if", [condition, text(column.name), "null"]) for column, condition in faults]
    found = call("filter", [call("array", names or ["cast(null as string)"]), "name -> name is not null"])
    unreadable = [
        (decoder(source, each.name).unreadable(each, struct_of(each.name)), _no_readable(source, each.name))
        for each in (value, key)
        if each.columns or (each is value and decoder(source, "value").ready)
    ]
    column = _case([(condition, "null") for condition, _ in unreadable], "try_element_at(faults, 1)")
    misfit = "concat('the message does not fit the type of ', array_join(faults, ', '))"
    error = _case([*unreadable, ("size(faults) > 0", misfit)], text(decoder(source, "value").misfit))
    told = call("struct", [f"{column} as column", f"{error} as error"])
    return f"{call('transform', [call('array', [found]), f'faults -> {told}'])}[0]"


RAISED = "PENSTOCK_BAD_RECORD"  # begins the text of `raising`; JSON follows


def raising(source: KafkaInput) -> str:
    """An expression that ends the stream, with the place of the record and what is the matter."""
    told = call("to_json", [call("struct", ["topic", "`partition`", "`offset`", f"{problem(source)} as problem"])])
    return call("raise_error", [call("concat", [text(f"{RAISED} "), told])])


def _no_readable(source: KafkaInput, name: str) -> str:
    return text(f"the {name} is no readable {decoder(source, name).shown}")


# -- is it a row ------------------------------------------------------------------------------------------------------


def _has_value(source: KafkaInput, used: KafkaInput) -> list[str]:
    """The conditions of which one must hold. A condition a field: their types differ, so no coalesce."""
    every, chosen = part(source, "value"), part(used, "value")
    conditions = _not_null([field_of(column) for column in chosen.columns])
    decoded = {column.origin for column in decoded_part(source, used, "value").columns}
    others = [column for column in every.columns if column.origin not in {each.origin for each in chosen.columns}]
    beside = [column for column in others if column.origin in decoded]
    conditions += _not_null([field_of(column) for column in beside])
    rest = replace(every, columns=tuple(column for column in others if column.origin not in decoded))
    struct = decoder(source, "value").struct(rest)
    if struct is not None:
        fields = _not_null([field_of(column, "rest") for column in rest.columns])
        conditions.append(call("exists", [call("array", [struct]), f"rest -> {listed(fields, 'or')}"]))
    return conditions


def _without_values(source: KafkaInput, used: KafkaInput) -> str:
    every = part(source, "value")
    whole = decoded_part(source, used, "value").columns == every.columns
    struct = None if whole else decoder(source, "value").struct(every, judged=True)
    return decoder(source, "value").without_values(every, struct or struct_of("value"))


def _not_null(fields: list[str]) -> list[str]:
    return [f"{field} is not null" for field in dict.fromkeys(fields)]


# -- does all of it fit -----------------------------------------------------------------------------------------------


def _unfit(source: KafkaInput, used: KafkaInput) -> list[str]:
    """The conditions of which each says that something does not fit."""
    conditions = []
    for name in ("value", "key"):
        of = decoded_part(source, used, name)
        if not of.columns:
            continue
        if decoder(source, name).marks():
            conditions.append(f"{struct_of(name)}.{quoted(of.mark)} is not null")
        elif name == "key":
            conditions.append(decoder(source, name).unreadable(of, struct_of(name)))
    return conditions + [_misfit(column) for column in used.columns if _may_misfit(column)]


def _may_misfit(column: Column) -> bool:
    return given_bytes(column) is not None and column.type not in _ALWAYS_FITS


def _misfit(column: Column) -> str:
    return f"{given_bytes(column)} is not null\n    and {expression(column)} is null"


# -- text -------------------------------------------------------------------------------------------------------------


def _if_any(conditions: list[str], yes: str, no: str) -> str:
    return call("if", [_either(conditions), text(yes), text(no)]) if conditions else text(no)


def _either(conditions: list[str]) -> str:
    return listed(conditions, "or") if len(conditions) > 1 else conditions[0]


def _case(cases: list[tuple[str, str]], otherwise: str) -> str:
    if not cases:
        return otherwise
    lines = []
    for condition, outcome in cases:
        when, then = f"when {indented(condition).lstrip()}", f"then {indented(outcome).lstrip()}"
        short = "\n" not in when + then and len(when + then) < WIDTH
        lines.append(f"{when} {then}" if short else f"{when}\n    {then}")
    body = "\n".join([*lines, f"else {otherwise}"])
    return f"case\n{indented(body)}\nend"
