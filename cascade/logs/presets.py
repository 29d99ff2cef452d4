"""Formats of foreign logs as data: a YAML file of column expressions each, in `presets/`; `Preset` has its fields.

Only these files contain SQL; a user's mapping contains names (`mapping`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

from cascade.checks import did_you_mean, hint_at
from cascade.errors import UsageError
from cascade.logs.duck import MEMORY
from cascade.logs.schema import COLUMNS
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES

OWN = "cascade"
"""The kind of cascade's own logs; all other kinds are names of presets."""
ALSO = ("cost_usd", "latency_s", "written_input_tokens", "hour_input_tokens")
"""Targets of a mapping besides cascade's columns: USD, seconds, tokens new to a cache. "signals.NAME" is one, too."""
SIGNALS = "signals."
LOGPROB = "signals.reply_mean_logprob"
_OF_MODEL = ("answer", "correct", *ALSO[:2], "cost_nano_usd", "latency_ms", "input_tokens", "output_tokens")
ENDS = {
    **{name: name for name in _OF_MODEL},
    "ms": "latency_ms",
    "logprob": LOGPROB,
    **{name: f"{SIGNALS}{name}" for name in sorted(OF_ANSWERS | OF_MESSAGES)},
}
"""How a model's columns end in a flat table, after its name and `_` or a dot; what each is read as. Also for --map."""
ANY_END = "|".join(sorted(ENDS, key=len, reverse=True))
_TARGET = re.compile(rf"(?P<model>.+?)\.(?P<what>{ANY_END}|signals\.\w+)")
_SIGNAL = re.compile(r"signals\.\w+")
OF_CENTS = re.compile(r"(?<![a-z])(?i:cents?|cts?|pence)$|C(?:en)?ts?$")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How to read a log.

    Attributes:
        kind: a preset's name; by default recognised by the fields of the log.
        columns: the log's field for each of cascade's columns: {"question": "prompt", "small.answer": "reply.text"}.
        models: a ladder's models, the cheapest first; others are left out. In traces, they are then the steps.
        dataset: the name of the data set; by default the first file's name.
        costs: by model, the nano-USD of a call whose cost the log does not have.
        rename: new names for the log's models.
        request: the body of the chat request in which each question of a table was sent; None: unknown.
        memory: the most that duckdb keeps in memory, such as "1GB"; the rest goes to the disk.
    """

    kind: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    models: Sequence[str] = ()
    dataset: str | None = None
    costs: Mapping[str, int] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    request: Mapping[str, Any] | None = None
    memory: str = MEMORY


@dataclass(frozen=True, slots=True)
class Preset:
    """A format of foreign logs.

    Attributes:
        known_by: sets of fields; a file that has all fields of one set is recognised.
        each: the paths of nested lists that hold the records.
        prepare: the function of `logs.spans` that flattens a record.
        columns: the paths of each value, named as in `calls.is_target`; the first path with a value counts.
        let: the same, for names that only expressions read.
        sql: the expressions that are computed from these; `macros` is run first.
        drop: the condition of records that are left out, by reason; the reason "" is not counted.
        notes: the condition of records that are kept but noted, by the text of the note.
        steps: "time": each call is a step; "models": each model is. Calls with one `trace` are an episode; without one,
            those with one `question_id`, else one `call_id`, else, with `runs`, one question.
        whole: whether a question that not all models answered is left out.
        chats: whether a request of one plain message is also a chat request, not a question.
        files: whether each model has a file of its own; if costs are unknown, their order is that of the models.
        runs: whether a model's further answer to the same question belongs to another run.
        flat: whether a row is an episode, with columns for each model.
        cost_source: where its costs are from, for the column of that name.
        free: the condition under which a cost of 0 is real; if given, others become the tokens' list price.
        models: how the fields of a model end, by column, in a table with columns for each model.
        rows: a query on `raw` that places the rows itself.
    """

    name: str
    known_by: tuple[frozenset[str], ...] = ()
    each: tuple[tuple[str, ...], ...] = ()
    prepare: str | None = None
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    let: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sql: Mapping[str, str] = field(default_factory=dict)
    drop: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    steps: str = "time"
    whole: bool = False
    chats: bool = False
    files: bool = False
    runs: bool = False
    flat: bool = False
    free: str | None = None
    cost_source: str = "the table"
    models: Mapping[str, str] = field(default_factory=dict)
    macros: str = ""
    rows: str | None = None

    def knows(self, names: Iterable[str]) -> bool:
        """Return whether these fields identify the format."""
        return any(fields.issubset(names) for fields in self.known_by)


@cache
def presets() -> Mapping[str, Preset]:
    """Return the formats by name; the format of tables, which no fields identify, comes last."""
    folder = resources.files("cascade.logs").joinpath("presets")
    read = [yaml.safe_load(file.read_text("utf-8")) for file in folder.iterdir() if file.name.endswith(".yaml")]
    for raw in read:
        raw.update(known_by=tuple(map(frozenset, raw.get("known_by", ()))), each=tuple(map(tuple, raw.get("each", ()))))
    by_name = {raw["name"]: Preset(**raw) for raw in read}
    return {name: by_name[name] for name in sorted(by_name, key=lambda name: (not by_name[name].known_by, name))}


def kind_of(names: Iterable[str]) -> str | None:
    """Return the kind of a log by the names of its fields: `OWN`, or a preset's name; None if they identify none."""
    has = set(names)
    if has >= {"step", "episode_id"} or has >= {"step", "question", "source"} or {"step"} <= has <= {*COLUMNS}:
        return OWN
    return next((name for name, form in presets().items() if form.knows(has)), None)


def preset(kind: str) -> Preset:
    """Return a format by its name; raise UsageError for another name."""
    if kind not in presets():
        raise UsageError(f"There is no importer {kind}{did_you_mean(kind, presets())}")
    return presets()[kind]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A user's mapping: the fields for columns of all calls and, by model, for the columns of a flat table."""

    columns: Mapping[str, str]
    of_model: Mapping[str, Mapping[str, str]]


def mapping(fields: Mapping[str, str] | None) -> Mapped:
    """Parse a mapping of COLUMN or MODEL.COLUMN to a field; raise UsageError that names every unknown column."""
    targets = {*COLUMNS, *ALSO, "question_id", *ENDS} - {"schema_version"}
    columns, of_model = dict[str, str](), dict[str, dict[str, str]]()
    wrong = []
    for target, path in (fields or {}).items():
        name, of = "episode_id" if target == "id" else ENDS.get(target, target), _TARGET.fullmatch(target)
        if name.endswith("cost_usd") and OF_CENTS.search(path):
            raise UsageError(f"By its name, {path} holds hundredths, but {name} is in USD: divide the column by 100.")
        if name in targets or _SIGNAL.fullmatch(name):
            columns[name] = path
        elif of is not None:
            of_model.setdefault(of["model"], {})[ENDS.get(of["what"], of["what"])] = path
        else:
            wrong.append(f"{name}{hint_at(name, targets)}")
    if wrong:
        names = ", ".join(name for name in (*COLUMNS, *ALSO, "question_id") if name in targets)
        raise UsageError(
            f"Nothing can be mapped to {'; nor to '.join(wrong)}. A field can be mapped to: {names}, signals.NAME, and "
            f"in a table with columns for each model, to MODEL.NAME with a NAME of {', '.join(ENDS)}"
        )
    return Mapped(columns, of_model)
