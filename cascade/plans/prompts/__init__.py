"""Prompts as files: sections headed [system], [user] and [assistant], with {question} or {data} where text goes in.

A folder of files with the same names replaces them (`strategy.prompts` in the configuration). For files that the folder
lacks, the shipped ones are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import cast

from cascade.errors import ConfigError
from cascade.safety import defuse, read_bounded
from cascade.text import data_block
from cascade.types import Message, Question, Role

MOST_BYTES = 1_000_000
_SECTION = re.compile(r"^\[(system|user|assistant)\][ \t]*$", re.MULTILINE)


def question_text(question: Question) -> str:
    """Return a question as the answering model reads it: the context first, if any."""
    text = f"Question: {defuse(question.text)}"
    return f"Text: {defuse(question.context)}\n\n{text}" if question.context else text


def question_data(question: Question, **fields: str) -> str:
    """Return a question and more about it as a block of data, the context first, if any."""
    return data_block(question_fields(question, **fields))


def question_fields(question: Question, **fields: str) -> dict[str, str]:
    """Return a question and more about it by name, the context first, if any."""
    context = {"text": question.context} if question.context else {}
    return {**context, "question": question.text, **fields}


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt: fixed messages, and a last one with a place for text."""

    fixed: tuple[Message, ...]
    role: Role
    before: str
    after: str

    def fill(self, text: str) -> tuple[Message, ...]:
        """Return the messages with `text` filled in. Placeholders inside `text` are not replaced."""
        return (*self.fixed, Message(self.role, f"{self.before}{text}{self.after}"))


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of the strategies, each in the file of its name; `place` is where its text goes in."""

    answer: Template = field(metadata={"place": "{question}"})
    again: Template
    judge: Template
    judge_chat: Template
    judge_decision: Template
    decide: Template
    exit: Template


def load(folder: str | Path | None = None) -> Prompts:
    """Read the prompts: from `folder` if it has the file, else the shipped ones.

    Raises:
        ConfigError: the folder is missing, or a file is malformed; all problems at once.
    """
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError([f"strategy.prompts: the folder {folder} does not exist"])
    templates, problems = {}, []
    for entry in fields(Prompts):
        own = None if folder is None else Path(folder) / f"{entry.name}.txt"
        shipped = resources.files(__name__).joinpath(f"{entry.name}.txt")
        try:
            text = _own(own) if own is not None and own.exists() else shipped.read_text("utf-8")
            templates[entry.name] = parse(text, entry.metadata.get("place", "{data}"))
        except (ValueError, OSError) as error:
            problems.append(f"strategy.prompts: {own or entry.name}: {getattr(error, 'strerror', None) or error}")
    if problems:
        raise ConfigError(problems)
    return Prompts(**templates)


def _own(path: Path) -> str:
    data = read_bounded(path, MOST_BYTES)
    if data is None:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return data.decode("utf-8")


def parse(text: str, placeholder: str) -> Template:
    """Read a prompt file; `placeholder` must occur exactly once, in the last section.

    Raises:
        ValueError: the placeholder does not, or there is no section.
    """
    heads = list(_SECTION.finditer(text))
    if not heads:
        raise ValueError("no section: start with a line [system] or [user]")
    ends = [head.start() for head in heads[1:]] + [len(text)]
    messages = [
        Message(cast("Role", head[1]), text[head.end() : end].strip()) for head, end in zip(heads, ends, strict=True)
    ]
    *fixed, last = messages
    if last.content.count(placeholder) != 1 or any(placeholder in message.content for message in fixed):
        raise ValueError(f"{placeholder} must occur exactly once, in the last section")
    before, after = last.content.split(placeholder)
    return Template(tuple(fixed), last.role, before, after)
