"""Stream tests as they are written in YAML.

Rules
- A file has one key, `stream_tests`: a list. It lies below `tests/streams/` or `stream_tests/` of the project.
- A step is a word (`restart`, `kill`) or a mapping with one key.
- What is wrong with a file is told with its line; a misspelt key is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from penstock.errors import Location, PenstockError, did_you_mean
from penstock.errors.catalogue import STREAM_TEST_INVALID

FOLDERS = ("tests/streams", "stream_tests")
WORDS = ("restart", "kill")

Row = dict[str, Any]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fixture(Settings):
    """Recorded messages."""

    fixture: str = Field(description="file of `penstock record`, relative to the project")
    limit: int | None = Field(default=None, ge=1, description="only so many messages, the first")


class Rows(Settings):
    """Expected rows, with how they are compared."""

    rows: list[Row] = Field(default_factory=list, description="the rows; only the columns that they name are compared")
    subset: bool = Field(default=False, description="there may be other rows")
    ordered: bool = Field(default=False, description="in this order; for views with ORDER BY")
    count: int | None = Field(default=None, ge=0, description="how many rows there are, in place of `rows`")

    @model_validator(mode="after")
    def _one(self) -> Rows:
        if self.count is not None and self.rows:
            raise ValueError("'count' is for a table whose rows are not given")
        return self


class Deploy(Settings):
    """A new version of a model."""

    model: str | None = Field(default=None, description="the model; needed when the test has several")
    sql: str | None = Field(default=None, description="its SQL, with ref(), source() and config()")
    file: str | None = Field(default=None, description="a file with its SQL, relative to the project")
    config: dict[str, Any] = Field(default_factory=dict, description="settings that are changed")
    full_refresh: bool = Field(default=False, description="as `dbt run --full-refresh`, with the tables below it")
    verdict: Literal["NO-OP", "HOT", "RESTART", "REBUILD", "REFUSED"] | None = Field(
        default=None, description="what `penstock plan` has to say of it"
    )


class Error(Settings):
    """An expected failure."""

    code: str = Field(description="PEN-…")
    contains: str | None = Field(default=None, description="a part of its message")


def _as_error(value: Any) -> Any:
    return {"code": value} if isinstance(value, str) else value


class Step(Settings):
    """One step; exactly one of its keys is set."""

    input: dict[str, list[Row] | Fixture] | None = Field(
        default=None, description="source or table → messages or rows that arrive together, as one batch"
    )
    advance_watermark: datetime | None = Field(
        default=None, description="the watermark of every stream that has one is at least here"
    )
    restart: Literal[True] | None = Field(default=None, description="stop every stream and start it again")
    kill: Literal[True] | None = Field(
        default=None,
        description="end the engine between the commit of the table and the end of the batch, and start another one",
    )
    deploy: Deploy | None = Field(default=None, description="replace a model by a new version")
    expect: list[Row] | dict[str, list[Row] | Rows] | None = Field(
        default=None, description="rows of the model, or model → rows"
    )
    expect_quarantine: list[Row] | dict[str, list[Row] | Rows] | None = Field(
        default=None, description="quarantined records of the source, or source → records"
    )
    expect_warnings: list[str] | None = Field(
        default=None, description="parts of the warnings on the models, one each; an empty list: there are none"
    )
    expect_error: Annotated[Error | None, BeforeValidator(_as_error)] = Field(
        default=None, description="code of the failure of the step before, or `{code, contains}`"
    )

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if isinstance(value, str) and value in WORDS:
            return {value: True}
        if isinstance(value, Mapping):
            # `- restart:` has no value
            return {key: True if key in WORDS and each is None else each for key, each in value.items()}
        return value

    @model_validator(mode="after")
    def _one(self) -> Step:
        if len(self.model_fields_set) != 1:
            raise ValueError("a step has one key")
        return self

    @property
    def kind(self) -> str:
        return next(iter(self.model_fields_set))


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class StreamTest(Settings):
    """A stream test."""

    name: str = Field(description="of the test, unique in the project")
    description: str = Field(default="", description="what it shows")
    model: Annotated[list[str], BeforeValidator(_as_list)] = Field(
        min_length=1, description="the model, or a list; dynamic tables between them and the inputs are run, too"
    )
    given: dict[str, list[Row]] = Field(
        default_factory=dict, description="seed, table or view → its rows, in place of its own"
    )
    steps: list[Step] = Field(min_length=1, description="what happens, in this order")


@dataclass(frozen=True)
class Case:
    """A test and where it stands."""

    test: StreamTest
    file: str  # relative to the project
    line: int | None = None
    step_lines: tuple[int | None, ...] = field(default=())

    @property
    def name(self) -> str:
        return self.test.name

    def at(self, step: int | None = None) -> Location:
        lines = self.step_lines
        return Location(self.file, lines[step] if step is not None and step < len(lines) else self.line)


def find(project: Path) -> list[Path]:
    """The files with stream tests."""
    folders = [project / each for each in FOLDERS]
    return sorted(file for folder in folders for file in folder.rglob("*") if file.suffix in (".yml", ".yaml"))


def read(file: Path, project: Path) -> list[Case]:
    """The tests of a file; raises the first thing that is wrong with it."""
    shown = str(file.relative_to(project)) if file.is_relative_to(project) else str(file)
    try:
        text = file.read_text(encoding="utf-8")
        content, tree = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as problem:
        raise STREAM_TEST_INVALID.error(f"the file cannot be read: {problem}.", at=Location(shown)) from problem
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        reason = getattr(problem, "problem", None) or "it is no YAML"
        raise STREAM_TEST_INVALID.error(f"{reason}.", at=Location(shown, line)) from None
    if not isinstance(content, Mapping) or set(content) - {"version"} != {"stream_tests"}:
        raise STREAM_TEST_INVALID.error("the file has one key, 'stream_tests'.", at=Location(shown, 1))
    tests = content["stream_tests"]
    if not isinstance(tests, list):
        raise STREAM_TEST_INVALID.error("'stream_tests' is a list.", at=Location(shown, _line(tree, "stream_tests")))
    return [_case(each, index, tree, shown) for index, each in enumerate(tests)]


def read_all(project: Path) -> list[Case]:
    """Every stream test of a project; a name is there once."""
    found: dict[str, Case] = {}
    for file in find(project):
        for case in read(file, project):
            if case.name in found:
                raise STREAM_TEST_INVALID.error(
                    f"the name '{case.name}' is taken by the test at {found[case.name].at()}.", at=case.at()
                )
            found[case.name] = case
    return list(found.values())


def _case(content: Any, index: int, tree: yaml.Node | None, file: str) -> Case:
    place: tuple[str | int, ...] = ("stream_tests", index)
    try:
        test = StreamTest.model_validate(content)
    except ValidationError as problem:
        raise _problem(problem, content, place, tree, file) from None
    lines = tuple(_line(tree, *place, "steps", number) for number in range(len(test.steps)))
    return Case(test, file, _line(tree, *place), lines)


def _problem(
    problem: ValidationError, content: Any, place: tuple[str | int, ...], tree: yaml.Node | None, file: str
) -> PenstockError:
    # A value that may be of several kinds is told about once for each: the deepest is meant.
    found = max(problem.errors(), key=lambda each: (each["type"] == "extra_forbidden", len(each["loc"])))
    steps = [step for step in found["loc"] if isinstance(step, int) or "[" not in step]
    at = Location(file, _line(tree, *place, *steps))
    named = f"'{content['name']}': " if isinstance(content, Mapping) and isinstance(content.get("name"), str) else ""
    last = str(steps[-1]) if steps else ""
    if found["type"] == "extra_forbidden":
        known = sorted({name for kind in (StreamTest, Step, Deploy, Rows, Error) for name in kind.model_fields})
        return STREAM_TEST_INVALID.error(f"{named}'{last}' is unknown.", at=at, hint=did_you_mean(last, known))
    if found["type"] == "missing":
        return STREAM_TEST_INVALID.error(f"{named}'{last}' is missing.", at=at)
    message = found["msg"].removeprefix("Value error, ")
    where = f"'{last}': " if last and not last.isdigit() else ""
    return STREAM_TEST_INVALID.error(f"{named}{where}{message[:1].lower()}{message[1:]}.", at=at)


def _line(tree: yaml.Node | None, *steps: str | int) -> int | None:
    """Of the last step that can be found."""
    line = tree.start_mark.line + 1 if tree is not None else None
    for step in steps:
        if isinstance(tree, yaml.SequenceNode) and isinstance(step, int) and step < len(tree.value):
            tree = tree.value[step]
            assert tree is not None
            line = tree.start_mark.line + 1
        elif isinstance(tree, yaml.MappingNode):
            pair = next(((k, v) for k, v in _pairs(tree) if k.value == step), None)
            if pair is None:
                break
            line, tree = pair[0].start_mark.line + 1, pair[1]
        else:
            break
    return line


def _pairs(node: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            yield key, value


def chosen(cases: Sequence[Case], names: Sequence[str], keyword: str | None) -> list[Case]:
    """The tests of these names, models or files, and of these those with the keyword in their name."""

    def is_named(case: Case) -> bool:
        known = {case.name, *case.test.model, case.file, Path(case.file).name, Path(case.file).stem}
        return not names or any(name in known for name in names)

    return [case for case in cases if is_named(case) and (keyword is None or keyword.lower() in case.name.lower())]
