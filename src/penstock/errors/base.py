"""The shape of an error: its kind, where it happened, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class ExitCode(IntEnum):
    """What a `penstock` command returns to the shell."""

    OK = 0
    FAILED = 1  # the work was tried and failed
    BAD_INPUT = 2  # the project, the command line or the profile is wrong
    ENVIRONMENT = 3  # Java, jars, ports, disk: the machine is not ready
    UNAVAILABLE = 4  # a broker, registry or engine does not answer
    CONFLICT = 5  # somebody else holds what this command needs


@dataclass(frozen=True)
class Location:
    """A place in the user's project."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Kind:
    """One entry of the catalogue."""

    code: str  # PEN-1203
    title: str
    why: str
    fix: str
    exit_code: ExitCode = ExitCode.FAILED

    def error(self, message: str, *, at: Location | None = None, hint: str | None = None) -> PenstockError:
        """The exception to raise; `message` is one sentence in the user's words."""
        return PenstockError(self, message, at=at, hint=hint)


@dataclass(eq=False)
class PenstockError(Exception):
    """A failure with a code. `str()` is the line a user reads."""

    kind: Kind
    message: str
    at: Location | None = None
    hint: str | None = None
    detail: dict[str, str] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def next_step(self) -> str:
        return self.hint or self.kind.fix

    def __str__(self) -> str:
        where = f"{self.at}: " if self.at else ""
        return f"{self.code} {where}{self.message} {self.next_step}".rstrip()

    def as_dict(self) -> dict[str, str | int | None]:
        """For `--output json`, the store and Dagster."""
        return {
            "code": self.code,
            "message": self.message,
            "file": self.at.file if self.at else None,
            "line": self.at.line if self.at else None,
            "hint": self.next_step,
        }

    def __reduce__(self) -> tuple[object, ...]:
        return (PenstockError, (self.kind, self.message, self.at, self.hint, self.detail))
