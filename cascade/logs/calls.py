"""Calls of a foreign log become rows of episodes, in SQL.

`raw` has the texts of the records; `calls` their values, a row for each call; `episodes` what is equal in all rows of a
question; `rows` cascade's columns. Nothing is in Python's memory, whatever the size of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.logs.duck import Duck, name_literal, text_literal
from cascade.logs.own import copy_rows, sql_type
from cascade.logs.presets import ALSO, SIGNALS, Asked, Preset
from cascade.logs.rowcheck import KINDS, NUMBER, TEXT, TEXTS, TRUTH, WHOLE
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, Dropped
from cascade.logs.source import Source, note_rejects

ROLES = ("base", "guide", "judge")
"""The roles of a model in a cascade. A judge's calls are paid for, but give no answer."""
OF_EPISODE = ("dataset", "split", "group", "segment", "user", "question", "context", "gold")
"""The columns that are equal in all rows of an episode: the first call with a value decides."""
_TEXTS = ("call_id", "trace", "parent", "names", "question_id", "request", "tools", "system", "reply", "finish")
_MACROS = {TEXT: "unless_empty", WHOLE: "whole", NUMBER: "number", TRUTH: "truth", TEXTS: "texts"}
_COUNTS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
_TARGETS = {*_TEXTS, *COLUMNS, *ALSO, "at", "ended_at"}
_PLACES = 3


@dataclass(slots=True)
class Tables:
    """The tables of one import: the connection, its sources, the targets that a record has, and what was left out."""

    duck: Duck
    sources: Sequence[Source]
    dropped: Dropped
    targets: dict[str, str] = field(default_factory=dict)

    def location(self, file: int, row: int) -> str:
        """Return the location of a record."""
        return self.sources[file].location(row)

    def count(self, reasons: str, note: bool = False) -> None:
        """Count what a query finds: a reason, how often, and the first records as [file, row]."""
        for reason, count, records in self.duck.rows(reasons):
            report = self.dropped.note if note else self.dropped.drop
            for file, row in records[:-1]:
                report(reason, self.location(file, row), 1)
            file, row = records[-1]
            report(reason, self.location(file, row), count - len(records) + 1)


def counted(reason: str, table: str, condition: str) -> str:
    """Return a query for `Tables.count`."""
    return (
        f"SELECT {reason} AS reason, count(*), min([file, row], {_PLACES}) FROM {table} WHERE {condition} "
        "GROUP BY ALL HAVING count(*) > 0 ORDER BY min(n)"
    )


def read_raw(tables: Tables, paths: Mapping[str, Sequence[str]], preset: Preset) -> None:
    """Make the table `raw` of the fields as texts, with the reason why a record is no call in `status`."""
    duck = tables.duck
    union = " UNION ALL BY NAME ".join(f"({source.select(paths, preset.prepare)})" for source in tables.sources)
    computed = {name: sql for name, sql in preset.sql.items() if is_target(name)}
    # an expression reads the file's values, also of the columns that it replaces, and the expressions before it
    plain = {name: name_literal(name) for name in paths if name not in preset.sql and (is_target(name) or preset.rows)}
    listed = ", ".join(
        f"({sql}){'::VARCHAR' if is_target(name) else ''} AS {name_literal(name)}"
        for name, sql in {**plain, **preset.sql}.items()
    )
    reasons = {**preset.skip, **preset.drop}
    if preset.only:
        reasons = {"": f"NOT coalesce({preset.only}, false)", **reasons}
    status = " ".join(f"WHEN {condition} THEN {text_literal(reason)}" for reason, condition in reasons.items())
    free = f", coalesce({preset.free}, false) AS free" if preset.free else ""
    noted = "".join(f", coalesce({sql}, false) AS note{at}" for at, sql in enumerate(preset.notes.values()))
    files = ", ".join(text_literal(source.path) for source in tables.sources)
    duck.run(preset.macros)
    duck.run(
        f"CREATE TABLE raw AS SELECT n, file, row, CASE WHEN bad IS NOT NULL THEN bad {status} END AS status{free}"
        f"{noted}, {listed} FROM (SELECT row_number() OVER () AS n, [{files}][file + 1] AS file_path, * FROM ({union}))"
    )
    for source in tables.sources:
        if source.rejects:
            note_rejects(duck, source, tables.dropped)
    tables.targets = {name: name_literal(name) for name in (*paths, *computed) if is_target(name)}
    skipped = ", ".join(map(text_literal, preset.skip)) or "''"
    tables.count(counted("status", "raw", f"status <> '' AND status IN ({skipped})"), note=True)
    tables.count(counted("status", "raw", f"status <> '' AND status NOT IN ({skipped})"))
    for at, reason in enumerate(preset.notes):
        tables.count(counted(text_literal(reason), "raw", f"status IS NULL AND note{at}"), note=True)


def is_target(name: str) -> bool:
    """Whether a name is one of a call's values; the others are only read by expressions."""
    return name in _TARGETS or name.startswith((SIGNALS, "? ")) or name[0].isdigit()


def macro_of(target: str) -> str:
    """Return the macro that converts a text to a target's value."""
    if target == "cost_usd":
        return "nano"
    if target in {"at", "ended_at"}:
        return "seconds"
    if target == "created_at":
        return "moment"
    if target == "latency_s" or target.startswith(SIGNALS):
        return "number"
    return "unless_empty" if target in _TEXTS else _MACROS.get(KINDS.get(target, TEXT), "unless_empty")


_WRONG = {"cost_usd": "is no amount of USD", "at": "is no time: the order of the rows counts"}


def _faults(targets: Sequence[str], preset: Preset, fields: Mapping[str, str]) -> dict[str, str]:
    """Return tests of a call's texts by what they find: values that become null. `fields` has their fields' names."""
    faults = {}
    for name in targets:
        text, value = name_literal(name), f"{macro_of(name)}({name_literal(name)})"
        if macro_of(name) not in {"unless_empty", "texts"}:
            kind = _WRONG.get(name) or f"is no {KINDS.get(name, NUMBER)}"
            faults[f"{fields.get(name, name)} {kind}, read as null"] = f"{text} IS NOT NULL AND {value} IS NULL"
        if name.startswith(SIGNALS) and name.endswith("logprob"):
            faults[f"{fields.get(name, name)} is above 0, which no log-prob is, read as null"] = f"{value} > 0"
    if preset.list_price:
        spent = [f"{macro_of(name)}({name_literal(name)})" for name in ("cost_nano_usd", "cost_usd") if name in targets]
        free = "NOT free AND " if preset.free else ""
        reason = "a cost of 0 though nothing says that the call was free: its tokens' list price, or else null"
        faults[reason] = f"{free}coalesce({', '.join([*spent, 'NULL'])}) = 0"
    return faults


def typed(targets: Sequence[str]) -> str:
    """Return the select list that makes a call's values from its texts."""
    has = set(targets)

    def value(name: str, otherwise: str = "NULL") -> str:
        return f"{macro_of(name)}({name_literal(name)})" if name in has else otherwise

    values = {name: value(name) for name in (*_TEXTS, *COLUMNS) if name in has and name not in {"names", "gold"}}
    if "gold" in has:
        values["gold"] = value("gold")
    if "names" in has:
        values["names"] = 'TRY_CAST("names" AS VARCHAR[])'
    values["cost_nano_usd"] = f"coalesce({value('cost_nano_usd', 'NULL::BIGINT')}, {value('cost_usd', 'NULL::BIGINT')})"
    if has & {"at", "created_at"}:
        values["at_s"] = value("at", f"seconds({value('created_at')})")
    if "at" in has:
        values["created_at"] = 'iso(seconds("at"))'
    waits = [value("latency_ms", "NULL::DOUBLE"), f"round({value('latency_s', 'NULL::DOUBLE')} * 1000, 3)"]
    if "ended_at" in has:
        duration = f"round(({value('ended_at')} - {values['at_s']}) * 1000, 3)"
        waits.append(f"list_filter([{duration}], lambda ms: ms >= 0)[1]")
    if has & {"latency_ms", "latency_s", "ended_at"}:
        values["latency_ms"] = f"coalesce({', '.join(waits)})"
    signals = [name for name in targets if name.startswith(SIGNALS)]
    if signals:
        pairs = ", ".join(f"{text_literal(name.removeprefix(SIGNALS))}, {_signal(name)}" for name in signals)
        values["signals"] = f"nullif(json_merge_patch('{{}}', json_object({pairs}))::VARCHAR, '{{}}')"
    elif "signals" in has:
        values["signals"] = 'as_object("signals")'
    return ", ".join(f"{sql} AS {name_literal(name)}" for name, sql in values.items())


def _signal(name: str) -> str:
    column = f"number({name_literal(name)})"
    return f"CASE WHEN {column} <= 0 THEN {column} END" if name.endswith("logprob") else column


def make_calls(tables: Tables, texts: str, preset: Preset, fields: Mapping[str, str]) -> None:
    """Make the table `calls` from a query with the texts of each call."""
    duck, targets = tables.duck, list(tables.targets)
    duck.run(f"CREATE VIEW told AS {texts}")
    faults = _faults(targets, preset, fields)
    bits = [f"(coalesce({test}, false)::BIGINT << {at})" for at, test in enumerate(faults.values())]
    columns = f"n, file, row{', free' if preset.free else ''}, {' + '.join(bits) or 0} AS faults, {typed(targets)}"
    duck.run(f"CREATE VIEW values AS SELECT {columns} FROM told")
    names = [row[0] for row in duck.rows("DESCRIBE values")]
    duck.run(f"CREATE VIEW whole_values AS {_with_nulls('values', names)}")
    query = "SELECT * FROM whole_values"
    if {"request", "reply"} & {*names} or _has_messages(tables, names):
        query, names = _with_chats(query, preset), [*names, *_OF_CHAT]
    stored = dict.fromkeys([*names, "cost_source"])
    # a column of nulls would be stored as one value for each call
    duck.run(f"CREATE TABLE known AS SELECT {', '.join(map(name_literal, stored))} FROM ({_with_costs(query, preset)})")
    duck.run(f"CREATE VIEW calls AS {_with_nulls('known', stored)}")
    if duck.value("SELECT count(*) FROM calls WHERE faults > 0"):
        for at, reason in enumerate(faults):
            tables.count(counted(text_literal(reason), "calls", f"faults & (1::BIGINT << {at}) > 0"), note=True)
    if preset.chats:
        _drop(tables, "json_extract_string(chat, '/problem')", "json_extract_string(chat, '/problem') IS NOT NULL")


def _with_nulls(table: str, names: Collection[str]) -> str:
    """Return a query of a table with every column of a call: null where it lacks it."""
    nulls = {name: f"NULL::{sql_type(name)}" for name in (*COLUMNS, *_TEXTS)}
    nulls |= {"at_s": "NULL::DOUBLE", "names": "[model]" if "model" in names else "NULL::VARCHAR[]"}
    listed = [f"{sql} AS {name_literal(name)}" for name, sql in nulls.items() if name not in names]
    return f"SELECT {', '.join(['*', *listed])} FROM {table}"


def _has_messages(tables: Tables, names: Collection[str]) -> bool:
    """Whether the question or the answer of a table's first calls is JSON: messages, perhaps."""
    columns = [name for name in ("question", "answer") if name in names]
    tests = " OR ".join(f"left(ltrim({name}), 1) IN ('[', '{{')" for name in columns)
    return bool(columns) and bool(
        tables.duck.value(f"SELECT count(*) FILTER ({tests}) FROM (SELECT * FROM values LIMIT 100)")
    )


_OF_CHAT = ("chat", "question", "context", "answer", "text", "signals")


def _with_chats(query: str, preset: Preset) -> str:
    """Return a query with the columns of a chat for requests and replies that are recorded whole."""
    question, answer, always = _json_text("question"), _json_text("answer"), "'yes'" if preset.chats else "NULL"
    request = f"coalesce(request, {question})"
    reply = f"coalesce(reply, {answer}, CASE WHEN {question} IS NOT NULL THEN answer END)"
    counts = ", ".join(f"{name}::VARCHAR" for name in _COUNTS)
    arguments = f"{always}, {request}, tools, system, {reply}, finish, {counts}"
    chat = f"CASE WHEN coalesce({request}, {reply}) IS NOT NULL THEN chat({arguments}) END"
    of = {name: f"json_extract_string(chat, '/{name}')" for name in ("question", "context", "answer", "text")}
    plain = {
        "question": f"coalesce(CASE WHEN {question} IS NULL THEN question END, {of['question']}, question)",
        "context": "context",
        "answer": f"CASE WHEN {answer} IS NULL THEN answer ELSE coalesce({of['text']}, answer) END",
        "text": f"coalesce(text, CASE WHEN reply IS NOT NULL THEN {of['text']} END)",
    }
    of["answer"] = f"coalesce(CASE WHEN {answer} IS NULL THEN answer END, {of['answer']})"
    columns = [f"CASE WHEN {of['context']} IS NULL THEN {plain[name]} ELSE {of[name]} END AS {name}" for name in of]
    columns.append(
        "CASE WHEN signals IS NULL THEN json_extract(chat, '/signals')::VARCHAR ELSE "
        "json_merge_patch(coalesce(json_extract(chat, '/signals'), '{}'), signals)::VARCHAR END AS signals"
    )
    return f"SELECT * REPLACE ({', '.join(columns)}) FROM (SELECT *, {chat} AS chat FROM ({query}))"


def _with_costs(query: str, preset: Preset) -> str:
    """Return a query in which each cost has its source. Where 0 may be unknown, the list price counts (L4)."""
    spent, source = "cost_nano_usd", text_literal(preset.cost_source)
    if not preset.list_price:
        chosen = f"coalesce(cost_source, CASE WHEN {spent} IS NULL THEN 'no price' ELSE {source} END)"
        return f"SELECT * REPLACE ({chosen} AS cost_source) FROM ({query})"
    spent = f"CASE WHEN cost_nano_usd > 0 {'OR free' if preset.free else ''} THEN cost_nano_usd END"
    counts = ", ".join(f"{name}::VARCHAR" for name in _COUNTS)
    listed = f"CASE WHEN ({spent}) IS NULL THEN price(model, {counts}) END"
    chosen = f"CASE WHEN spent IS NOT NULL THEN {source} WHEN listed IS NOT NULL THEN 'list price' ELSE 'no price' END"
    return (
        f"SELECT * EXCLUDE (spent, listed) REPLACE (coalesce(spent, listed) AS cost_nano_usd, {chosen} AS cost_source) "
        f"FROM (SELECT *, {spent} AS spent, {listed} AS listed FROM ({query}))"
    )


def _json_text(name: str) -> str:
    return f"CASE WHEN left(ltrim({name}), 1) IN ('[', '{{') AND json_valid({name}) THEN {name} END"


# --- calls as rows of episodes ---


def checked_roles(roles: Mapping[str, str] | None) -> dict[str, str]:
    """Return the role of each model; raise UsageError for an unknown role."""
    wrong = [f"{model}={role}{did_you_mean(role, ROLES)}" for model, role in (roles or {}).items() if role not in ROLES]
    if wrong:
        raise UsageError(f"A model must be base, guide or judge: {'; '.join(wrong)}")
    return dict(roles or {})


def drop_copies(tables: Tables) -> None:
    """Leave out the second copy of a call, and a call inside of another with the same model, question and text (L6)."""
    duck = tables.duck
    copies = (
        "call_id IS NOT NULL AND EXISTS (SELECT 1 FROM calls AS f WHERE f.call_id = calls.call_id AND f.n < calls.n)"
    )
    within = (
        "parent IS NOT NULL AND EXISTS (SELECT 1 FROM ancestors AS a JOIN calls AS o ON o.call_id = a.above WHERE "
        "a.call_id = calls.call_id AND o.model = calls.model AND o.question IS NOT DISTINCT FROM calls.question AND "
        "coalesce(o.text, o.answer) IS NOT DISTINCT FROM coalesce(calls.text, calls.answer))"
    )
    if not duck.value("SELECT count(call_id) FROM calls"):
        return
    _drop(tables, "'the same call a second time'", copies)
    if not duck.value("SELECT count(parent) FROM calls"):
        return
    duck.run(
        "CREATE TABLE ancestors AS WITH RECURSIVE above_of AS (SELECT call_id, parent AS above, 1 AS depth FROM calls "
        "WHERE parent IS NOT NULL UNION ALL SELECT a.call_id, r.parent, depth + 1 FROM above_of AS a JOIN raw AS r "
        "ON r.call_id = a.above WHERE r.parent IS NOT NULL AND depth < 64) SELECT call_id, above FROM above_of"
    )
    _drop(tables, "'a call inside of another with the same model, question and text: one call'", within)


def _drop(tables: Tables, reason: str, condition: str) -> None:
    tables.count(counted(reason, "calls", condition))
    tables.duck.run(f"DELETE FROM known WHERE n IN (SELECT n FROM calls WHERE {condition})")


def place_calls(tables: Tables, preset: Preset, options: Asked) -> None:
    """Make the relation `placed`: the calls with their episode, step and place, and what is equal in an episode."""
    duck = tables.duck
    prefixes = ", ".join(text_literal(f"{source.path.name}{source.unit}") for source in tables.sources)
    named = "digest(question, context)" if preset.runs else "NULL"
    trace = f"coalesce(trace, question_id, call_id, {named}, [{prefixes}][file + 1] || row)"
    if preset.flat and not options.roles:
        _place_flat(tables, trace, options)
        return
    placing = "n, file, row, model, names, walk, step, candidate, source, horizon, at_s"
    narrow = f'{placing}, episode_id, dataset, segment, "group"'
    query = f"SELECT {narrow}, hash(context) AS context, {trace} AS episode FROM calls"
    separating = ["dataset", "segment"] + ([] if preset.runs else ["context"])
    for column in separating:
        if duck.value(f"SELECT count(DISTINCT {name_literal(column)}) FROM calls") > 1:
            query = _split(query, name_literal(column), column == "context")
    run = "CASE WHEN episode_id IS NULL THEN row_number() OVER (PARTITION BY episode, model ORDER BY n) ELSE 1 END"
    duck.run(f"CREATE TABLE parted AS {_in_runs(query, run) if preset.runs else query}")
    if preset.runs:
        tables.count(counted(_AGAIN, "parted", "run > 1"), note=True)
    order = "CASE WHEN count(at_s) OVER w = count(*) OVER w THEN at_s END" if preset.steps == "time" else "n"
    duck.run(
        "CREATE TABLE timed AS SELECT *, row_number() OVER (PARTITION BY episode, walk ORDER BY moment, n) AS turn "
        f"FROM (SELECT *, {order} AS moment FROM parted WINDOW w AS (PARTITION BY episode, walk))"
    )
    _place_in_steps(tables, preset, options)
    table = {name: "keyed" if name == "group" else "calls" for name in OF_EPISODE}
    heads = ", ".join(
        f"arg_min({table[name]}.{name_literal(name)}, turn) AS {name_literal(name)}" for name in OF_EPISODE
    )
    first = ", arg_min(asked, turn) AS asked" if preset.runs else ", NULL::VARCHAR AS asked"
    duck.run(
        f"CREATE TABLE episodes AS SELECT * REPLACE (coalesce(dataset, {text_literal(options.dataset)}) AS dataset, "
        'coalesce("group", CASE WHEN question IS NULL THEN coalesce(asked, episode) END) AS '
        f'"group") FROM (SELECT episode, min(n) AS first, {heads}{first} FROM keyed JOIN calls USING (n) '
        "GROUP BY episode)"
    )
    firsts = "keyed JOIN episodes ON episodes.first = keyed.n"
    tables.count(counted(_NO_QUESTION, firsts, "episodes.question IS NULL"), note=True)
    columns = {name: f"episodes.{name_literal(name)}" for name in OF_EPISODE} | {"episode_id": "keyed.episode"}
    columns |= {name: f"keyed.{name}" for name in ("step", "candidate", "source", "horizon")} | {"n": "place"}
    changed = ", ".join(f"{sql} AS {name_literal(name)}" for name, sql in columns.items())
    duck.run(
        f"CREATE VIEW placed AS SELECT calls.* REPLACE ({changed}) FROM (SELECT keyed.*, row_number() OVER "
        "(ORDER BY first, step, turn) AS place FROM keyed JOIN (SELECT episode, first FROM episodes) USING (episode)) "
        "AS keyed JOIN calls ON calls.n = keyed.n JOIN episodes ON episodes.episode = keyed.episode"
    )


_NO_QUESTION = "'question is null'"
_AGAIN = "'a model answers a question again, without an episode_id: read as another run'"


def _in_runs(query: str, run: str) -> str:
    """Return a query in which an episode's calls of a later run are another episode."""
    return (
        "SELECT * REPLACE (episode || CASE WHEN run > 1 THEN '#' || run ELSE '' END AS episode) FROM "
        f"(SELECT *, {run} AS run, episode AS asked FROM ({query}))"
    )


def _place_flat(tables: Tables, episode: str, options: Asked) -> None:
    """Place the calls of a flat table: a row is an episode, and the models, in their order, are its steps."""
    duck, listed = tables.duck, "[" + ", ".join(map(text_literal, options.models)) + "]"
    record, name = f"n // {len(options.models)}", text_literal(options.dataset)
    query = f"SELECT *, {episode} AS episode, list_position({listed}, model) AS rung FROM calls"
    if duck.value(f"SELECT count(DISTINCT hash(episode, {record})) > count(DISTINCT episode) FROM ({query})"):
        run = f"dense_rank() OVER (PARTITION BY episode ORDER BY {record})"
        duck.run(f"CREATE TABLE parted AS {_in_runs(query, run)} ORDER BY n")
        tables.count(counted(_AGAIN, "parted", "run > 1"), note=True)
        query = "SELECT * EXCLUDE (run) FROM parted"
    else:
        query = f"SELECT *, episode AS asked FROM ({query})"
    tables.count(
        counted(_NO_QUESTION, "(SELECT file, row, min(n) AS n FROM calls WHERE question IS NULL GROUP BY ALL)", "true"),
        True,
    )
    changed = f"n - n % {len(options.models)} + rung AS n, episode AS episode_id, rung AS step, 0 AS candidate"
    changed += f", model AS source, {len(options.models)} AS horizon, coalesce(dataset, {name}) AS dataset"
    changed += ', coalesce("group", CASE WHEN question IS NULL THEN asked END) AS "group"'
    duck.run(f"CREATE VIEW placed AS SELECT * EXCLUDE (episode, asked, rung) REPLACE ({changed}) FROM ({query})")


def _split(query: str, column: str, is_chat: bool) -> str:
    """Return a query in which calls of one episode with different values of a column are separate episodes.

    Requests of one conversation are split where all its calls are chats; the trace is then their group.
    """
    chats = "bool_and(context IS NOT NULL) OVER (PARTITION BY episode) AND" if is_chat else f"{column} IS NOT NULL AND"
    group = ', coalesce("group", CASE WHEN several THEN episode END) AS "group"' if is_chat else ""
    return (
        f"SELECT * EXCLUDE (several, began, part) REPLACE (CASE WHEN several AND part > 1 THEN episode || '/' || part "
        f"ELSE episode END AS episode{group}) FROM (SELECT *, dense_rank() OVER (PARTITION BY episode ORDER BY began) "
        f"AS part FROM (SELECT *, {chats} max({column}) OVER (PARTITION BY episode) IS DISTINCT FROM min({column}) "
        f"OVER (PARTITION BY episode) AS several, min(n) OVER (PARTITION BY episode, {column}) AS began "
        f"FROM ({query})))"
    )


def models_in_order(tables: Tables, preset: Preset, options: Asked) -> tuple[list[str], str]:
    """Return the models of a ladder by rising mean cost, or as they are given, and why.

    Raises:
        UsageError: a model is not in the log, or nothing says which is the cheaper one.
    """
    rows = tables.duck.rows(
        "SELECT model, avg(cost_nano_usd), min(n) FROM calls WHERE model IS NOT NULL GROUP BY model ORDER BY 3"
    )
    models = [model for model, _, _ in rows]
    if options.models:
        return list(options.models), "as --models says"
    costs = {model: float(mean) for model, mean, _ in rows if mean is not None}
    if len(costs) == len(models):
        by_cost = sorted(models, key=lambda model: costs[model])
        listed = ", ".join(f"{model} {costs[model] / 1e9:.3g}" for model in by_cost)
        return by_cost, f"in the order of their mean costs (USD: {listed})"
    if preset.files or preset.runs:
        return models, "in the order of the files" if preset.files else "in the order in which they appear"
    unpriced = [model for model in models if model not in costs]
    raise UsageError(
        f"The models are ordered by cost, but the log has no cost of {', '.join(unpriced)}. Name the models of the "
        f"cascade, the cheapest first: --models {','.join(models)}"
    )


def _place_in_steps(tables: Tables, preset: Preset, options: Asked) -> None:
    """Make the table `keyed`: each call with its step, candidate and source."""
    duck = tables.duck
    if options.roles:
        _place_in_rounds(tables, options)
        return
    if preset.steps == "time":
        candidate = "candidate" if "candidate" in tables.targets else "0"
        duck.run(
            f"CREATE TABLE keyed AS SELECT * REPLACE (coalesce(step, turn) AS step, {candidate} AS candidate, "
            "coalesce(source, model) AS source) FROM timed"
        )
        _note_order(tables)
        return
    models, _ = models_in_order(tables, preset, options)
    listed = "[" + ", ".join(map(text_literal, models)) + "]"
    nameless = "a call that names no model, where the models are the steps"
    tables.count(counted(text_literal(nameless), "timed", "model IS NULL"))
    duck.run(
        f"CREATE TABLE keyed AS SELECT * REPLACE (list_position({listed}, model) AS step, 0 AS candidate, "
        f"model AS source, {len(models)} AS horizon) FROM timed WHERE list_contains({listed}, model)"
    )
    if preset.whole:
        lacking = f"episode IN (SELECT episode FROM keyed GROUP BY episode HAVING count(DISTINCT step) < {len(models)})"
        tables.count(counted(text_literal("a question that not all models answered"), "keyed", lacking))
        duck.run(f"DELETE FROM keyed WHERE {lacking}")


_ANOTHER_ORDER = (
    "the models, and so the steps, are in another order than for the first question: sort the rows, the cheapest model "
    "first"
)


def _note_order(tables: Tables) -> None:
    """Note it if the models of an episode come in another order than in the first one with the same models."""
    tables.count(
        f"SELECT {text_literal(_ANOTHER_ORDER)} AS reason, count(*), min([file, row], 3) FROM (SELECT *, first(listed) "
        "OVER (PARTITION BY list_sort(listed) ORDER BY n) AS usual FROM (SELECT min(n) AS n, arg_min(file, n) AS file, "
        "arg_min(row, n) AS row, list_distinct(list(model ORDER BY turn DESC)) AS listed FROM timed GROUP BY episode)) "
        "WHERE listed <> usual GROUP BY ALL HAVING count(*) > 0",
        note=True,
    )


def _place_in_rounds(tables: Tables, options: Asked) -> None:
    """Place the calls by their models' roles: a second call of the base or the guide in a step opens the next step."""
    duck = tables.duck
    names = {name for (name,) in duck.rows("SELECT DISTINCT unnest(names) FROM timed")}
    wrong = [f"{name}{did_you_mean(name, sorted(names - {None}))}" for name in options.roles if name not in names]
    if wrong:
        raise UsageError(f"The log has no model {'; and no model '.join(wrong)}.")
    pairs = ", ".join(f"{text_literal(model)}: {text_literal(role)}" for model, role in options.roles.items())
    role = f"list_filter(list_transform(names, lambda name: MAP {{{pairs}}}[name]), lambda role: role IS NOT NULL)[1]"
    duck.run(f"CREATE TABLE acting AS SELECT *, {role} AS role FROM timed")
    nameless = counted(
        "'the model ' || coalesce(model, 'None') || ' has no role: its calls are costs without an answer'",
        "acting",
        "role IS NULL",
    )
    tables.count(nameless, note=True)
    duck.run(
        "CREATE TABLE keyed AS SELECT * EXCLUDE (role, steps) REPLACE (steps[turn] AS step, CASE role WHEN 'base' "
        "THEN 0 WHEN 'guide' THEN 1 END AS candidate, coalesce(role, model) AS source) FROM (SELECT acting.*, steps "
        "FROM acting JOIN (SELECT episode, walk, from_json(rounds(to_json(list(coalesce(role, '') ORDER BY turn))"
        "::VARCHAR), '[\"BIGINT\"]') AS steps FROM acting GROUP BY episode, walk) AS of_walk "
        "ON of_walk.episode = acting.episode "
        "AND of_walk.walk IS NOT DISTINCT FROM acting.walk)"
    )


def rounds(roles: Sequence[str]) -> list[int]:
    """Return the step of each call by the roles of the models.

    >>> rounds(["base", "guide", "judge", "base", "guide"]), rounds(["base", "base", "guide"])
    ([1, 1, 1, 2, 2], [1, 2, 2])
    """
    step, spoken, steps = 1, set[str](), []
    for role in roles:
        if role in spoken:
            step, spoken = step + 1, set()
        if role in ROLES[:2]:
            spoken.add(role)
        steps.append(step)
    return steps


def write_rows(tables: Tables, options: Asked, path: Path, *, placed: bool, sort: bool = True) -> int:
    """Write the rows with cascade's columns into a Parquet file, and return their number.

    `placed`: `calls` has all columns, as they are; else `placed` has the calls of foreign models. `sort`: by `n`.
    """
    duck, source, columns = tables.duck, "calls" if placed else "placed", _given_by_hand(options)
    if not placed:
        answer = "coalesce(answer, unless_empty(trim(text)))"
        silent = f"(candidate IS NULL OR (text IS NOT NULL AND {answer} IS NULL AND correct IS NULL))"
        reply = {"candidate": "candidate", "answer": answer, "correct": "correct"}
        columns |= {name: f"CASE WHEN NOT ({silent} OR {_FAULTY}) THEN {sql} END" for name, sql in reply.items()}
        columns |= {"schema_version": str(SCHEMA_VERSION)}
        reason = "a message with a fault: counted as no answer, since cascade asks the next model instead of serving it"
        if not options.roles and "signals" in {row[0] for row in duck.rows("DESCRIBE known")}:
            tables.count(counted(text_literal(reason), "placed", _FAULTY), note=True)
    listed = ", ".join(
        f"({columns.get(name, name_literal(name))})::{sql_type(name)} AS {name_literal(name)}" for name in COLUMNS
    )
    query = f"SELECT n, {listed} FROM {source}"
    if duck.value("SELECT count(walk) FROM calls"):
        only = "count(candidate) OVER (PARTITION BY episode_id, walk) = 1"
        is_kept = (
            f"CASE WHEN walk IS NOT NULL AND candidate IS NOT NULL AND kept IS NULL AND {only} THEN true ELSE kept END"
        )
        query = f"SELECT * REPLACE ({is_kept} AS kept) FROM ({query})"
    _note_unused(tables, options)
    return copy_rows(duck, f"SELECT * EXCLUDE (n) FROM ({query}){' ORDER BY n' if sort else ''}", path)


_FAULTY = "coalesce(step < horizon AND number(json_extract_string(signals, '/message_faults')) > 0, false)"


def _given_by_hand(options: Asked) -> dict[str, str]:
    """Return the columns that --cost and --rename change."""
    columns = dict[str, str]()
    if options.costs:
        cost = _by_model(options.costs, "model")
        columns["cost_nano_usd"] = f"coalesce(cost_nano_usd, {cost})"
        unpriced = f"cost_nano_usd IS NULL AND {cost} IS NOT NULL"
        columns["cost_source"] = f"CASE WHEN {unpriced} THEN 'given by hand' ELSE cost_source END"
    if options.rename:
        columns["model"] = f"coalesce({_by_model(options.rename, 'model')}, model)"
        columns["source"] = f"coalesce({_by_model(options.rename, 'source')}, source)"
    return columns


def _by_model(values: Mapping[str, Any], column: str) -> str:
    """Return SQL for a value by model; null for other models."""
    cases = " ".join(
        f"WHEN {text_literal(model)} THEN {text_literal(value) if isinstance(value, str) else value}"
        for model, value in values.items()
    )
    return f"CASE {column} {cases} END"


def _note_unused(tables: Tables, options: Asked) -> None:
    if not options.costs and not options.rename:
        return
    unpriced = dict(tables.duck.rows("SELECT model, count(*) FILTER (cost_nano_usd IS NULL) FROM calls GROUP BY model"))
    for model in options.costs:
        if not unpriced.get(model):
            tables.dropped.note("an unused --cost: the log has no such model, or gives the cost of its calls", model)
    for model in options.rename.keys() - unpriced.keys():
        tables.dropped.note("an unused --rename: the log has no such model", model)
