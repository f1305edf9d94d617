"""A warm `penstock run` with nothing changed beside `dbt ls`, both as processes of their own, taking turns."""

from __future__ import annotations

from bench.demo_project import Call, Demo, demo
from bench.report import median, note, table

_COMMANDS = {
    "dbt ls": ("dbt", "ls", "--quiet"),
    "penstock run": ("penstock", "run"),
    "penstock status": ("penstock", "status"),
}


def run(*, quick: bool, rounds: int | None, rows: int | None) -> None:
    """Print the medians and their ratios. `rows` has no meaning here."""
    rounds = rounds or (3 if quick else 5)
    calls: dict[str, list[Call]] = {name: [] for name in _COMMANDS}
    with demo() as project:
        _deploy(project)
        for number in range(-1, rounds):  # the first is for warming up
            for name, (tool, *arguments) in _COMMANDS.items():
                call = project.call(tool, *arguments)
                if number >= 0:
                    calls[name].append(call)
                    note(f"round {number + 1}, {name}: {call.seconds:.2f} s, {call.cpu_seconds:.2f} s of a core")
    clock = {name: median([each.seconds for each in made]) for name, made in calls.items()}
    cpu = {name: median([each.cpu_seconds for each in made]) for name, made in calls.items()}
    table(
        f"Nothing changed, median of {rounds}",
        ["command", "by the clock", "of dbt ls", "CPU", "of dbt ls"],
        [
            [
                name,
                f"{clock[name]:.2f} s",
                f"{clock[name] / clock['dbt ls']:.2f}x",
                f"{cpu[name]:.2f} s",
                f"{cpu[name] / cpu['dbt ls']:.2f}x",
            ]
            for name in _COMMANDS
        ],
    )


def _deploy(project: Demo) -> None:
    project.call("penstock", "up")
    project.call("penstock", "seed")
    project.call("penstock", "run")
