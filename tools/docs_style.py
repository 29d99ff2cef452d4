"""An extension of mkdocstrings for the way docstrings are written here.

Examples (`>>> …`) are shown as code wherever they stand; without this only those under a heading `Examples:` are. What
a class says of its attributes under `Attributes:` is shown with each attribute, beside its type and default.
"""

from __future__ import annotations

from typing import Any

import griffe


def fenced(docstring: str) -> str:
    """Return a docstring with a fence around each example, from its first `>>>` to the next empty line.

    One that has fences already is left alone: griffe may show an object twice.
    """
    if "```" in docstring:
        return docstring
    lines: list[str] = []
    indent: str | None = None
    for line in [*docstring.splitlines(), ""]:
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines[:-1])


class HouseStyle(griffe.Extension):
    """Changes docstrings after they were read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give each attribute what the class says of it."""
        for section in cls.docstring.parse("google") if cls.docstring is not None else ():
            if isinstance(section, griffe.DocstringSectionAttributes):
                for attribute in section.value:
                    member = cls.members.get(attribute.name)
                    if isinstance(member, griffe.Attribute) and member.docstring is None:
                        member.docstring = griffe.Docstring(attribute.description, parent=member)
