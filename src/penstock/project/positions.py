"""Where in a YAML file a setting stands.

Rules
- The file is read again for its positions alone; values always come from dbt or from the profile's own reading.
- Nothing here fails: a file that is missing or that YAML cannot read just has no lines.
- A path that is only partly there gives the line of its deepest part that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from penstock.errors import Location


@dataclass(frozen=True)
class Named:
    """A step into a list: the item whose `name` is this one."""

    name: str
    nth: int = 0  # the n-th item of that name


Step = str | Named


@dataclass(frozen=True)
class Positions:
    """The node tree of one YAML file."""

    file: str  # as the user knows it: relative to the project
    root: yaml.Node | None

    @classmethod
    def read(cls, path: Path, shown_as: str) -> Positions:
        try:
            return cls(shown_as, yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            return cls(shown_as, None)

    def at(self, *steps: Step) -> Location:
        """The place of the last step that can be found."""
        line, _ = self._walk(steps)
        return Location(self.file, line)

    def has(self, *steps: Step) -> bool:
        """Whether the whole path is in the file."""
        return self._walk(steps)[1] == len(steps)

    def first(self, *paths: tuple[Step, ...]) -> Location:
        """The place of the first path that is wholly there, or else of the one that is found the furthest."""
        found = [(self._walk(path), len(path)) for path in paths]
        (line, _), _ = max(found, key=lambda each: (each[0][1] == each[1], each[0][1]))
        return Location(self.file, line)

    def names(self, *steps: Step) -> list[str]:
        """The `name` of each item of the list at that path, in the file's order."""
        node = self.root
        for step in steps:
            below = _below(node, step) if node is not None else None
            if below is None:
                return []
            node = below[1]
        if not isinstance(node, yaml.SequenceNode):
            return []
        return [name for item in node.value if (name := _name_of(item)) is not None]

    def _walk(self, steps: tuple[Step, ...]) -> tuple[int | None, int]:
        node, line, depth = self.root, None, 0
        if node is None:
            return None, 0
        for step in steps:
            below = _below(node, step)
            if below is None:
                break
            line, node = below
            depth += 1
        return line, depth


def _below(node: yaml.Node, step: Step) -> tuple[int, yaml.Node] | None:
    if isinstance(step, Named):
        if not isinstance(node, yaml.SequenceNode):
            return None
        items = [item for item in node.value if _name_of(item) == step.name]
        return (items[step.nth].start_mark.line + 1, items[step.nth]) if step.nth < len(items) else None
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value == step:
            return key.start_mark.line + 1, value
    return None


def _name_of(item: yaml.Node) -> str | None:
    below = _below(item, "name")
    return str(below[1].value) if below is not None and isinstance(below[1], yaml.ScalarNode) else None
