"""Read wide tables: a row for each question, and columns for each model, such as `small_answer` and `large_cost`.

`layout` decides from the column names alone what each column holds; `calls` reads the rows accordingly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.checks import did_you_mean
from cascade.identity import identity, question_id
from cascade.logs.importers.calls import LoggedCall, Runs, field_of, mapped
from cascade.logs.importers.chat import asked, chat_columns, is_short, reply_of, request_in
from cascade.logs.importers.sources import Record
from cascade.logs.importers.values import SIGNALS, answer_in, nano_usd, question_in, whole
from cascade.logs.schema import Dropped
from cascade.policies.signals import OF_ANSWERS, OF_MESSAGES

ANSWER, CORRECT, COST, NANO, SECONDS = "answer", "correct", "cost_usd", "cost_nano_usd", "latency_s"

OF_QUESTION = {
    "question": ("question", "prompt", "input", "query", "question_text", "user_prompt", "messages"),
    "gold": (
        *("gold", "expected", "reference", "label", "answer_key", "target", "ground_truth", "gold_answer"),
        *("gold_label", "expected_answer", "expected_output", "reference_answer", "correct_answer", "true_answer"),
    ),
    "episode_id": ("id", "episode_id", "question_id", "qid", "example_id", "row_id", "uid", "sample_id"),
    "group": ("group", "group_id", "conversation_id", "session_id", "thread_id"),
    "segment": ("segment", "segment_id", "eval_name"),
    **{name: (name,) for name in ("context", "dataset", "split", "created_at")},
}
"""The columns about the question, each with the names under which it is recognised."""

OF_MODEL = {
    ANSWER: ("answer", "output", "response", "reply", "completion", "prediction"),
    CORRECT: ("correct", "is_correct", "right", "ok", "label"),
    COST: ("cost_usd", "cost", "price_usd", "price", "usd"),
    NANO: ("cost_nano_usd",),
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
    "latency_ms": ("latency_ms",),
    SECONDS: ("latency_s", "latency_seconds"),
    "signals.reply_mean_logprob": ("logprob", "mean_logprob", "avg_logprob", "reply_mean_logprob"),
    "signals.confidence": ("confidence",),
    "signals.score": ("score",),
    **{f"{SIGNALS}{name}": (name,) for name in sorted((OF_ANSWERS | OF_MESSAGES) - {"reply_mean_logprob"})},
}
"""The columns about a model, each with the endings after the model's name by which it is recognised."""

BY_GOLD = "which answers are right is decided by the accepted answer when the log is used (--matcher)"
ONE_CALL = frozenset({"answer", "text", "correct", "is_correct"})
"""A column with such a name belongs to the row's only call. In a table of several models its model is ambiguous."""
NOT_WIDE = frozenset({"step", "candidate", "walk", "model", "source", "kept"})
"""Only tables with a row for each call have these columns."""

_MAPPED_TO_MODEL = re.compile(r"(.+?)\.(answer|correct|cost_usd|cost_nano_usd|latency_s|latency_ms|signals\.\w+)")
_APART = re.compile(r"[\s_.\-/:]+")
_ROUTERBENCH = {"|model_response": ANSWER, "|total_cost": COST}
"""The endings of a model's columns in RouterBench; a column with only the model's name is its score."""
_IN_WORDS = {
    "question": "the question",
    "gold": "the accepted answer",
    "episode_id": "the question's id",
    ANSWER: "its answer",
    CORRECT: "whether it is right",
    COST: "its cost in USD",
    NANO: "its cost in nano-USD",
    SECONDS: "its seconds",
    "latency_ms": "its milliseconds",
    "model": "the model",
    "question_id": "the question's id",
    "signals.reply_mean_logprob": "signal reply_mean_logprob, the mean log-prob of its reply's tokens",
}


def names_in(rows: Iterable[Record]) -> list[str]:
    """Return the columns of a table.

    If several columns contain objects with an answer, named by the model, as in `"small": {"answer": …, "cost": …}`,
    the columns are the paths into these objects: `small.answer`, `small.cost`.
    """
    inside: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in row.fields.items():
            fields = inside.setdefault(name, {})
            if isinstance(value, Mapping):
                fields |= dict.fromkeys(str(field) for field in value)
    models = {name for name, fields in inside.items() if any(_ENDINGS.get(folded(one)) == ANSWER for one in fields)}
    opened = models if len(models) > 1 else set[str]()
    return [path for name, fields in inside.items() for path in _paths(name, fields if name in opened else ())]


def _paths(name: str, fields: Iterable[str]) -> list[str]:
    return [f"{name}.{field}" for field in fields] or [name]


def folded(name: str) -> str:
    """Return a column's name in lower case, its words joined by `_`."""
    return _APART.sub("_", name.strip()).casefold()


_SPELLED = {spelling: what for what, spellings in OF_QUESTION.items() for spelling in spellings}
_ENDINGS = {spelling: what for what, spellings in OF_MODEL.items() for spelling in spellings}


def _camel(spelling: str) -> str:
    return "".join(word.capitalize() for word in spelling.split("_"))


def _joined(spelling: str) -> str:
    """Return a pattern for a spelling as the end of one word: it matches `Cost` and `CostUSD`, not `cost`."""
    word = _camel(spelling)
    return f"{word[0]}(?i:{word[1:]})"


def _ending_pattern() -> re.Pattern[str]:
    """Return a pattern that splits `small_answer` and `smallAnswer` into a model and its field."""
    apart = "|".join(spelling.replace("_", r"[\s_.\-]+") for spelling in _ENDINGS)
    joined = "|".join(map(_joined, _ENDINGS))
    return re.compile(rf"(?P<model>.+?)(?:[\s_.\-/:]+(?P<apart>(?i:{apart}))|(?<=[a-z0-9])(?P<joined>{joined}))")


_ENDING = _ending_pattern()
_JOINED = {_camel(spelling).casefold(): what for spelling, what in _ENDINGS.items()}


class Said(NamedTuple):
    """A column about a model: the model as it is spelled, and its field, one of `OF_MODEL` or a signal."""

    model: str
    what: str


def said_of_model(name: str) -> Said | None:
    """Return the model and the field of a column; None if the column is about no model.

    >>> said_of_model("gpt-4o-mini_cost_usd"), said_of_model("largeAnswer"), said_of_model("topic")
    (Said(model='gpt-4o-mini', what='cost_usd'), Said(model='large', what='answer'), None)
    """
    for ending, what in _ROUTERBENCH.items():
        if name.endswith(ending) and name != ending:
            return Said(name.removesuffix(ending), what)
    found = _ENDING.fullmatch(name.strip())
    if found is None:
        return None
    if found["joined"] is not None:
        return Said(found["model"], _JOINED[found["joined"].casefold()])
    return Said(found["model"], _ENDINGS[folded(found["apart"])])


@dataclass(frozen=True, slots=True)
class ModelColumns:
    """A model of a wide table: its name as the columns spell it, and the column of each of its fields."""

    name: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a wide table is read.

    `question` has the column of the table for each of cascade's; the models come in the order in which they are steps
    of a ladder, for the reason `order` (None if roles place them). `ignored` columns have their reasons, `problems` the
    ambiguities of the names.
    """

    question: Mapping[str, str]
    models: tuple[ModelColumns, ...]
    ignored: Mapping[str, str]
    problems: tuple[str, ...] = ()
    order: str | None = "the order of their columns"

    def describe(self) -> list[str]:
        """Return how each column is read: a line for the question, one for each model, and one for ignored columns."""
        lines = [f"columns of the question: {_listed(self.question)}"]
        for step, one in enumerate(self.models, 1):
            lines.append(f"{'' if self.order is None else f'step {step}, '}{one.name}: {_listed(one.columns)}")
        if self.order is not None and len(self.models) > 1:
            lines.append(f"the models are in {self.order}; --role MODEL=base and --role MODEL=guide change that")
        if self.ignored:
            lines.append(f"ignored: {', '.join(name + why for name, why in self.ignored.items())}")
        judged = [one.name for one in self.models if CORRECT in one.columns]
        if len(judged) < len(self.models) and "gold" not in self.question:
            unjudged = ", ".join(one.name for one in self.models if one.name not in judged)
            lines.append(f"no column says which answers of {unjudged} are right, nor what the accepted answer is")
        elif len(judged) < len(self.models):
            lines.append(BY_GOLD)
        return lines


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{field} ({in_words(what)})" for what, field in columns.items())


def in_words(what: str) -> str:
    """Return what a column holds, in words."""
    if what in _IN_WORDS:
        return _IN_WORDS[what]
    return f"signal {what.removeprefix(SIGNALS)}" if what.startswith(SIGNALS) else what


def layout(names: Sequence[str], given: Mapping[str, str] | None = None) -> Layout | None:
    """Return how a table with these column names is read as a wide table; None if it is not one.

    Columns that are `given` by hand (`{"question": "prompt", "small.answer": "a1"}`) come first, and resolve ambiguous
    names.
    """
    chosen = dict(given or {})
    of_wide = all(name in OF_QUESTION or _MAPPED_TO_MODEL.fullmatch(name) for name in chosen)
    if NOT_WIDE.intersection(map(folded, names)) or not of_wide:
        return None
    question, problems, ignored = _of_question(names, chosen)
    taken = {*chosen.values(), *question.values()}
    models, more, left = _of_models([name for name in names if name not in taken], chosen)
    calls = [name for name in names if folded(name) in ONE_CALL and name not in taken]
    if not models or (calls and len(models) < 2):
        return None
    problems += more
    problems += [_open_call(name, models) for name in calls]
    if "question" not in question and "episode_id" not in question:
        problems.append("no column is mapped to the question: add --map question=FIELD")
    for name in names:
        if name not in taken and name not in calls and all(name not in one.columns.values() for one in models):
            ignored.setdefault(name, left.get(name, ""))
    return Layout(question, tuple(models), ignored, tuple(problems))


def _open_call(name: str, models: Sequence[ModelColumns]) -> str:
    what = CORRECT if CORRECT in folded(name) else ANSWER
    beside = _and([one.name for one in models])
    return (
        f"{name} is ambiguous beside columns of {beside}: add --map gold={name} if it is the accepted answer, or "
        f"--map NAME.{what}={name} if it belongs to another model"
    )


def _of_question(names: Sequence[str], given: Mapping[str, str]) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Return the question's columns, the ambiguities, and the columns that a mapping excludes."""
    found: dict[str, list[str]] = {}
    for name in names:
        what = _SPELLED.get(folded(name))
        if what is not None and name not in given.values():
            found.setdefault(what, []).append(name)
    made, problems = dict[str, str](), list[str]()
    ignored: dict[str, str] = {}
    for what in OF_QUESTION:
        spelled = found.get(what, [])
        if what in given:
            made[what] = given[what]
            ignored |= dict.fromkeys(spelled, f" (--map says {what}={given[what]})")
        elif len(spelled) > 1:
            choices = " or ".join(f"--map {what}={name}" for name in spelled)
            problems.append(f"{_and(spelled)} may each be {in_words(what)}: add {choices}")
            made[what] = spelled[0]
        elif spelled:
            made[what] = spelled[0]
    return made, problems, ignored


def _of_models(names: Sequence[str], given: Mapping[str, str]) -> tuple[list[ModelColumns], list[str], dict[str, str]]:
    """Return the models, the ambiguities, and why columns that look like a model's are not read."""
    spelled: dict[str, str] = {}
    found: dict[str, dict[str, list[str]]] = {}
    settled = [(Said(*parts.groups()), field) for name, field in given.items() if (parts := _parts(name))]
    read = [(said, name) for name in names if folded(name) not in _SPELLED and (said := said_of_model(name))]
    read += _bare(names, [*read, *settled])
    read += _doubts(names, {said.model for said, _ in [*read, *settled] if said.what in {ANSWER, CORRECT}})
    for said, name in [*read, *settled]:
        key = folded(said.model)
        spelled.setdefault(key, said.model)
        of_model = found.setdefault(key, {})
        if (said, name) in settled:
            of_model[said.what] = [name]
        else:
            of_model.setdefault(said.what, []).append(name)
    answered = any(ANSWER in columns for columns in found.values())
    models, problems = list[ModelColumns](), list[str]()
    left: dict[str, str] = {}
    for key, columns in found.items():
        if not _is_model(columns, answered, key in {folded(said.model) for said, _ in settled}):
            why = f" (there is no {spelled[key]}_answer)" if CORRECT in columns or COST in columns else ""
            left |= {name: why for fields in columns.values() for name in fields}
            continue
        problems += _doubled(spelled[key], columns)
        models.append(ModelColumns(spelled[key], {what: columns[what][0] for what in _ordered(columns)}))
    return models, problems, left


def _bare(names: Sequence[str], read: Sequence[tuple[Said, str]]) -> Iterator[tuple[Said, str]]:
    """Yield the columns named only by a model. They have its answers; in RouterBench's tables its scores.

    Another column must have the model's truth or cost: a `topic_label` does not make `topic` a model.
    """
    scored = {said.model for said, name in read if name.endswith(tuple(_ROUTERBENCH))}
    answered = {folded(said.model) for said, _ in read if said.what == ANSWER}
    judged = {
        folded(said.model)
        for said, name in read
        if said.what in {CORRECT, COST, NANO} and not folded(name).endswith("label")
    }
    for name in names:
        if name in scored:
            yield Said(name, CORRECT), name
        elif (plain := folded(name)) in judged - answered and plain not in _ENDINGS:
            yield Said(name.strip(), ANSWER), name


def _doubts(names: Sequence[str], models: Iterable[str]) -> Iterator[tuple[Said, str]]:
    """Yield the columns of these models that end with uncertainty or entropy: more of it means more doubt."""
    longest = sorted(models, key=len, reverse=True)
    for name in names:
        plain = folded(name)
        model = next((one for one in longest if plain.startswith(f"{folded(one)}_")), None)
        if model is not None and plain.endswith(("uncertainty", "entropy")):
            yield Said(model, SIGNALS + plain.removeprefix(f"{folded(model)}_")), name


def _parts(name: str) -> re.Match[str] | None:
    return None if name in OF_QUESTION else _MAPPED_TO_MODEL.fullmatch(name)


def _ordered(columns: Iterable[str]) -> list[str]:
    known = list(OF_MODEL)
    return sorted(columns, key=lambda what: (known.index(what) if what in known else len(known), what))


def _is_model(columns: Mapping[str, Sequence[str]], answered: bool, settled: bool) -> bool:
    """Whether columns of one name make a model: with an answer; or a truth, and a cost or no answers in the table."""
    if ANSWER in columns or settled:
        return True
    if CORRECT not in columns:
        return False
    labels = all(folded(name).endswith("label") for name in columns[CORRECT])
    return COST in columns or NANO in columns or not (answered or labels)


def _doubled(model: str, columns: Mapping[str, Sequence[str]]) -> Iterator[str]:
    merged = {**columns, COST: [*columns.get(COST, ()), *columns.get(NANO, ())]}
    for what, fields in merged.items():
        if len(fields) > 1:
            wanted = " or ".join(f"--map {model}.{what}={field}" for field in fields)
            yield f"{_and(fields)} may each be {in_words(what)}, for {model}: add {wanted}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def role_problems(found: Layout, roles: Mapping[str, str]) -> list[str]:
    """Return the problems of the roles that models were given: names that the table does not have."""
    names = [one.name for one in found.models]
    return [f"the table has no model {name}{did_you_mean(name, names)}" for name in roles if name not in names]


def by_cost(found: Layout, rows: Iterable[Record]) -> Layout:
    """Return the layout with its models by rising mean cost, over the rows in which all have one.

    The order of their columns stays if no row has all their costs.
    """
    if len(found.models) < 2:
        return found
    totals, n = [0] * len(found.models), 0
    for record in rows:
        costs = [cost_in(record.fields, one.columns) for one in found.models]
        if None not in costs:
            totals, n = [total + (cost or 0) for total, cost in zip(totals, costs, strict=True)], n + 1
    if not n:
        return replace(found, order="the order of their columns, since no row has all their costs")
    places = sorted(range(len(totals)), key=lambda at: totals[at])
    order = by_mean_cost([(totals[at] / n, found.models[at].name) for at in places])
    return replace(found, models=tuple(found.models[at] for at in places), order=order)


def by_mean_cost(means: Iterable[tuple[float, str]]) -> str:
    """Return in words that models are in the order of these mean costs, nano-USD."""
    return f"the order of their mean costs (USD: {', '.join(f'{name} {mean / 1e9:.3g}' for mean, name in means)})"


def cost_in(fields: Mapping[str, Any], columns: Mapping[str, str]) -> int | None:
    """Return the cost of a call, nano-USD, in the column that has it; None if it is unknown."""
    if NANO in columns:
        return whole(field_of(fields, columns[NANO]))
    return nano_usd(field_of(fields, columns[COST])) if COST in columns else None


# --- rows ---


def calls(found: Layout, rows: Iterable[Record], dropped: Dropped, *, as_ladder: bool) -> Iterator[LoggedCall]:
    """Yield the calls of each row, in the order of the models.

    A row is an episode; a repeated question or id is another run. In a ladder a model without values in a row was not
    asked if no later model was either. Without `as_ladder` the models' roles place them.
    """
    runs, groups, field = Runs(), dict[int, str](), found.question.get("question")
    for record in rows:
        request = None if field is None else request_in(field_of(record.fields, field))
        head = _of_head(found, record, dropped)
        if request is not None and not is_short(request):
            head |= asked(request)
        trace = head.pop("episode_id", None)
        if trace is None and "question" in head:
            trace = question_id(head["question"], head.get("context"))
        if trace is not None:
            named, trace = trace, runs.trace(trace)
            if head.get("question") is not None and head.get("group") is None:
                own = identity(head["question"], head.get("context"))
                of = hash((named, head.get("dataset"), head.get("segment")))  # two sets may number their rows alike
                head["group"] = groups.setdefault(of, own)
            if trace != named:
                dropped.note("a question or an id that was there before, read as another run", record.place)
        made = [_of_call(one, record, dropped, request) for one in found.models]
        for call in _of_row(found, made, record.place, dropped, as_ladder=as_ladder):
            yield call._replace(trace=trace, columns={**head, **call.columns})


_UNKNOWN = (
    "though a later model has: its call is read as made, its answer as unknown, so that agreement counts a difference"
)


def _of_row(
    found: Layout, made: Sequence[Mapping[str, Any]], at: str, dropped: Dropped, *, as_ladder: bool
) -> Iterator[LoggedCall]:
    there = [step for step, one in enumerate(made, 1) if one.keys() & {"answer", "correct", "cost_nano_usd"}]
    if not there:
        dropped.drop("no model has an answer, a truth or a cost", at)
        return
    for step, (one, columns) in enumerate(zip(found.models, made, strict=True), 1):
        if step not in there and (not as_ladder or step > there[-1]):
            dropped.note(f"{one.name} has no answer, truth or cost, so it was not asked", at)
            continue
        if step not in there:
            dropped.note(f"{one.name} has no answer, truth or cost, {_UNKNOWN}", at)
        place = {"step": step, "candidate": 0, "source": one.name, "horizon": len(made)} if as_ladder else {}
        yield LoggedCall(at, None, None, None, {"model": one.name, **place, **columns}, (one.name,))


def _of_head(found: Layout, record: Record, dropped: Dropped) -> dict[str, Any]:
    fields = dict(record.fields)
    field = found.question.get("question")
    held = None if field is None else field_of(fields, field)
    if field is not None and isinstance(held, list | Mapping):
        fields[field] = question_in(held)
    return mapped(fields, found.question, record.place, dropped)


def check_logprobs(made: dict[str, Any], columns: Mapping[str, str], place: str, dropped: Dropped) -> None:
    """Set the log-probs above 0 in a call's signals to null, and count them; a field's name says what is a log-prob."""
    for what, field in columns.items():
        name = what.removeprefix(SIGNALS)
        value = made["signals"][name] if name != what else None
        if value is not None and value > 0 and "logprob" in folded(field):
            dropped.note(f"{field} is above 0, which no log-prob is, read as null", place)
            made["signals"][name] = None


def _of_call(one: ModelColumns, record: Record, dropped: Dropped, request: ChatRequest | None) -> dict[str, Any]:
    fields = dict(record.fields)
    said = one.columns.get(ANSWER)
    held = None if said is None else field_of(fields, said)
    if said is not None and isinstance(held, list | Mapping):
        fields[said] = answer_in(held)
    made = mapped(fields, one.columns, record.place, dropped, by_field=True)
    made["cost_source"] = "no price" if made.get(NANO) is None else "the table"
    check_logprobs(made, one.columns, record.place, dropped)
    if request is None:
        return made
    chat = chat_columns(made, request, reply_of(held))
    return {**made, **chat, "signals": {**chat["signals"], **made.get("signals", {})}} if chat else made
