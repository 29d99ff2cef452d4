"""Turn the calls of a foreign log into rows of episodes, in SQL.

`raw` has the texts of the records; `calls` has their values, one row per call; `episodes` has the values that all rows
of a question share; `placed` has cascade's columns. The log is never held in Python's memory, whatever its size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from cascade.errors import UsageError
from cascade.logs.duck import name_literal, text_literal
from cascade.logs.presets import SIGNALS, ImportOptions, Preset
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION
from cascade.logs.sql import NO_QUESTION, Tables, bits, converted, copy_rows, macro_of, sql_type, value_name, value_of
from cascade.logs.values import KINDS, NUMBER, TEXT, TEXTS

OF_EPISODE = ("question", "gold", "group", "segment", "user", "context", "dataset", "split")
"""The columns with one value in all rows of an episode: that of the first call with a value."""
_TEXTS = ("call_id", "trace", "parent", "question_id", "request", "settings", "tools", "system", "reply", "finish")
_WRITES = dict.fromkeys(("written_input_tokens", "hour_input_tokens"), "whole")
_COUNTS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens", *_WRITES)
_COUNTED = ", ".join(f"{name}::VARCHAR" for name in _COUNTS)
_MACROS = (
    _WRITES
    | {"cost_usd": "nano", "at": "seconds", "ended_at": "seconds", "created_at": "moment"}
    | dict.fromkeys(("latency_s", "latency_ms"), "duration")
)
"""The macros that convert the texts of times and of targets other than cascade's columns."""
_WORDS = {"nano": "amount of USD", "seconds": "time", "moment": "time", "log_prob": "log-prob", "whole": "count"} | {
    name: name for name in (NUMBER, "duration")
}
"""By macro: the kind of value that it reads, which a note names if a text is none."""
_CREATED = "created_at in seconds"


def is_target(name: str) -> bool:
    """Return whether a name is one of a call's values; other names are only read by expressions."""
    return name in {*_TEXTS, *COLUMNS, *_MACROS} or name.startswith(SIGNALS) or name[0].isdigit()


def read_raw(tables: Tables, paths: Mapping[str, Sequence[str]], preset: Preset) -> None:
    """Create the table `raw` of the fields as texts; `status` is the reason why a record is not a call, or null."""
    duck = tables.duck
    union = " UNION ALL BY NAME ".join(f"({source.select(paths, preset.prepare)})" for source in tables.sources)
    # an expression reads the file's values, even those of the columns that it replaces, and earlier expressions
    plain = {name: name_literal(name) for name in paths if name not in preset.sql and (is_target(name) or preset.rows)}
    listed = ", ".join(
        f"({sql}){'::VARCHAR' if is_target(name) else ''} AS {name_literal(name)}"
        for name, sql in {**plain, **preset.sql}.items()
    )
    status = " ".join(f"WHEN {condition} THEN {text_literal(reason)}" for reason, condition in preset.drop.items())
    free = f", coalesce({preset.free}, false) AS free" if preset.free else ""
    noted = "".join(f", coalesce({sql}, false) AS note{at}" for at, sql in enumerate(preset.notes.values()))
    places = [source.path for source in tables.sources]
    files, models = (", ".join(map(text_literal, names)) for names in (places, file_models(places)))
    duck.run(preset.macros)
    duck.run(
        f"CREATE TABLE raw AS SELECT n, file, row, file_model, CASE WHEN bad IS NOT NULL THEN bad {status} END AS "
        f"status{free}{noted}, {listed} FROM (SELECT row_number() OVER () AS n, [{files}][file + 1] AS file_path, "
        f"[{models}][file + 1] AS file_model, * FROM ({union}))"
    )
    tables.note_rejects()
    tables.targets = list(dict.fromkeys(name for name in (*paths, *preset.sql) if is_target(name)))
    tables.count("status", "raw", "status <> ''")
    for at, reason in enumerate(preset.notes):
        tables.count(text_literal(reason), "raw", f"status IS NULL AND note{at}", note=True)


def file_models(paths: Sequence[Path]) -> list[str]:
    """Return the model of each file: its folder's name if these differ, or else the part of its name that differs.

    >>> file_models([Path("a/samples_arc.jsonl"), Path("b/samples_arc.jsonl")])
    ['a', 'b']
    >>> file_models([Path("arc_small.jsonl"), Path("arc_large.jsonl")])
    ['small', 'large']
    >>> file_models([Path(f"samples_{name}.jsonl") for name in ("arc_s", "arc_l", "boolq_s", "boolq_l")])  # lm-eval's
    ['s', 'l', 's', 'l']
    """
    folders = [path.absolute().parent for path in paths]
    if len({*folders}) > 1:
        common = _common_start([[*folder.parts, ""] for folder in folders])
        return ["/".join(folder.parts[common:]) or folder.name for folder in folders]
    words = [path.name.split(".jsonl")[0].removesuffix(path.suffix).split("_") for path in paths]
    for size in range(1, min(map(len, words)) if {name[0] for name in words} == {"samples"} else 0):
        ends, starts = {tuple(name[-size:]) for name in words}, {tuple(name[:-size]) for name in words}
        if len(ends) > 1 and len(ends) * len(starts) == len(words):
            return ["_".join(name[-size:]) for name in words]
    return ["_".join(name[_common_start(words) :]) for name in words]


def _common_start(names: Sequence[Sequence[str]]) -> int:
    """Return how many leading words the names share; a name's last word never counts.

    >>> _common_start([["arc", "small"], ["arc", "large"]])
    1
    """
    words = zip(*(name[:-1] for name in names), strict=False)
    return sum(1 for _ in takewhile(lambda spelled: len({*spelled}) == 1, words))


# --- texts as values ---


def _macro_of(name: str) -> str | None:
    """Return the macro that converts a target's texts; None if they need no such macro."""
    if name.startswith(SIGNALS):
        return "log_prob" if name.endswith("logprob") else "number"
    return _MACROS.get(name) or macro_of(name)


def _value_of(name: str) -> str:
    """Return SQL for the value of a target's text, in a query of `_with_values`."""
    if name.startswith(SIGNALS) or name in _MACROS:
        return value_name(name)
    return f"unless_empty({name_literal(name)})" if KINDS.get(name, TEXT) == TEXT else value_of(name)


def _with_values(texts: str, targets: Sequence[str]) -> str:
    """Return a query of texts with the columns of values that `_value_of` refers to."""
    seconds = {_CREATED: ("seconds", name_literal("created_at"))} if "created_at" in targets else {}
    return converted(texts, {name: (_macro_of(name), name_literal(name)) for name in targets} | seconds)


def _values(targets: Sequence[str]) -> dict[str, str]:
    """Return SQL for the columns of a call, from the texts of its targets."""
    of = {name: _value_of(name) for name in targets}
    signals = [name for name in targets if name.startswith(SIGNALS)]
    values = {name: sql for name, sql in of.items() if name in {*_TEXTS, *COLUMNS, *_WRITES}}
    values["cost_nano_usd"] = _first_of(*(of.get(name) for name in ("cost_nano_usd", "cost_usd")), kind="BIGINT")
    if "at" in of:
        values |= {"at_s": of["at"], "created_at": f"iso({of['at']})"}
    elif "created_at" in of:
        values["at_s"] = value_name(_CREATED)
    if of.keys() & {"latency_ms", "latency_s", "ended_at"}:
        waits = [of.get("latency_ms"), f"round({of['latency_s']} * 1000, 3)" if "latency_s" in of else None]
        if "ended_at" in of:
            duration = f"round(({of['ended_at']} - {values['at_s']}) * 1000, 3)"
            waits.append(f"list_filter([{duration}], lambda ms: ms >= 0)[1]")
        values["latency_ms"] = _first_of(*waits, kind="DOUBLE")
    if signals:
        pairs = ", ".join(f"{text_literal(name.removeprefix(SIGNALS))}, {of[name]}" for name in signals)
        values["signals"] = f"nullif(json_merge_patch('{{}}', json_object({pairs}))::VARCHAR, '{{}}')"
    return values


def _first_of(*values: str | None, kind: str) -> str:
    return f"coalesce({', '.join([*filter(None, values), f'NULL::{kind}'])})"


def by_effort(tables: Tables, texts: str) -> str:
    """Return a query of texts that names a model MODEL@EFFORT if it answers the same messages at several efforts.

    The effort is then a setting of the model, and is removed from all requests.
    """
    sent = next((name for name in ("request", "question") if name in tables.targets), "question")
    if not {sent, "model"} <= {*tables.targets}:
        return texts
    effort = f"json_extract_string(as_object({sent}), '/reasoning_effort')"
    several = (
        f"SELECT model FROM ({texts}) WHERE model IN (SELECT model FROM ({texts}) WHERE contains({sent}, "
        f"'reasoning_effort')) GROUP BY model, json_extract(as_object({sent}), '/messages') "
        f"HAVING count(DISTINCT coalesce({effort}, '')) > 1"
    )
    models = ", ".join(text_literal(model) for (model,) in tables.duck.rows(f"SELECT DISTINCT model FROM ({several})"))
    named = f"CASE WHEN model IN ({models}) THEN concat_ws('@', model, {effort}) ELSE model END AS model"
    rest = f"""json_merge_patch(as_object({sent}), '{{"reasoning_effort": null}}')::VARCHAR"""
    return f"SELECT * REPLACE ({named}, coalesce({rest}, {sent}) AS {sent}) FROM ({texts})" if models else texts


def make_calls(tables: Tables, texts: str, preset: Preset, fields: Mapping[str, str]) -> None:
    """Create the view `calls` from a query with the texts of each call. `fields` has, by target, the log's field."""
    duck, values = tables.duck, _values(tables.targets)
    if "correct" in tables.targets:
        texts = _only_verdicts(tables, texts, fields.get("correct"), of_table=preset.name == "table")
    kinds = {name: _WORDS.get(_macro_of(name) or "", KINDS.get(name)) for name in tables.targets if name not in _TEXTS}
    faults = {
        f"{fields.get(name, name)} is no {kind}, read as null": f"{name_literal(name)} IS NOT NULL AND "
        f"{_value_of(name)} IS NULL"
        for name, kind in kinds.items()
        if kind not in {TEXT, TEXTS}
    }
    for name in [name for name in ("question", "answer", "gold") if preset.name == "table" and name in tables.targets]:
        reason = f"{fields.get(name, name)} in Python's notation is read with its marks: write its text alone, or JSON"
        faults[reason] = rf"""regexp_full_match({name}, '[\[({{]+''.*[\])}}]', 's')"""
    if preset.free:
        reason = "a cost of 0 for a call that is not known to be free: read as its tokens' list price, or as null"
        faults[reason] = f"NOT free AND {values['cost_nano_usd']} = 0"
    listed = ", ".join(f"{sql} AS {name_literal(name)}" for name, sql in values.items())
    head = f"n, file, row{', free' if preset.free else ''}, {bits(faults.values())} AS faults"
    duck.run(f"CREATE VIEW values AS SELECT {head}, {listed} FROM ({_with_values(texts, tables.targets)})")
    names = [row[0] for row in duck.rows("DESCRIBE values")]
    query = _with_nulls("values", names)
    if {"request", "reply"} & {*names} or _has_messages(tables, names):
        query, names = _with_chats(query, preset), [*names, *_OF_CHAT]
    stored = dict.fromkeys([*names, "cost_source"])
    # only these are stored: a column of nulls would take one value per call
    duck.run(f"CREATE TABLE known AS SELECT {', '.join(map(name_literal, stored))} FROM ({_with_costs(query, preset)})")
    duck.run(f"CREATE VIEW calls AS {_with_nulls('known', stored)}")
    tables.note_faults([*faults], "calls", duck.value("SELECT bit_or(faults) FROM calls") or 0)
    if preset.chats:
        _drop(tables, "json_extract_string(chat, '/problem')", "json_extract_string(chat, '/problem') IS NOT NULL")


def _only_verdicts(tables: Tables, texts: str, field: str | None, *, of_table: bool) -> str:
    """Return a query in which `correct` has verdicts only: in a segment with grades between 0 and 1, no number is read.

    Raises UsageError if 1 may not mean right: for numbers outside 0 to 1, in a field of the user's own table also for
    those between; and for a field with unknown words and no words for right or none for wrong, which would be biased.
    """
    number = """number(rtrim("correct", '% '))"""
    graded, scale = f"{number} NOT IN (0, 1)", "NOT IN (0, 1)" if of_table and field else "NOT BETWEEN 0 AND 1"
    grades, truth = f"""arg_min("correct", n) FILTER ({number} {scale})""", 'truth("correct")'
    unread = f"""coalesce({truth}::VARCHAR, {number}::VARCHAR) IS NULL AND lower(trim("correct")) NOT IN ({_UNKNOWN})"""
    words = f"""arg_min("correct", n) FILTER ({unread}), count(DISTINCT {truth})"""
    grade, word, read, grades_between = tables.duck.rows(
        f"SELECT {grades}, {words}, count() FILTER ({graded}) FROM "
        f'(SELECT "correct", min(n) AS n FROM ({texts}) GROUP BY 1)'
    )[0]
    what = "write true or false there, or name another field (--map correct=FIELD)."
    if grade is not None:
        raise UsageError(f"{field or 'correct'} holds {grade}, on a scale where 1 may not mean right: {what}")
    if field and word is not None and read < 2:
        raise UsageError(
            f"{field} holds {word}, which is not understood, and lacks words for right, for wrong or both (such as "
            f"yes/no, pass/fail, up/down, 1/0 or WAHR/FALSCH): {what}"
        )
    if not grades_between:
        return texts
    segment = '"segment"' if "segment" in tables.targets else "NULL"
    of_scale = f"{number} IS NOT NULL AND bool_or({graded}) OVER (PARTITION BY {segment})"
    return f"""SELECT * REPLACE (CASE WHEN {of_scale} THEN "correct" || ' of a scale' ELSE "correct" END AS "correct")
    FROM ({texts})"""


_UNKNOWN = "'na', 'n/a', 'nan', 'null', 'none', '-', '?', 'unknown'"


def _with_nulls(table: str, names: Collection[str]) -> str:
    """Return a query of a table with every column of a call; those that the table lacks are null."""
    nulls = {name: f"NULL::{sql_type(name)}" for name in (*COLUMNS, *_TEXTS, *_WRITES)} | {"at_s": "NULL::DOUBLE"}
    listed = [f"{sql} AS {name_literal(name)}" for name, sql in nulls.items() if name not in names]
    return f"SELECT {', '.join(['*', *listed])} FROM {table}"


def _has_messages(tables: Tables, names: Collection[str]) -> bool:
    """Return whether, in a table's first 100 calls, a question is JSON, perhaps messages, or an answer is a message."""
    forms = {"question": _json_text("question"), "answer": _MESSAGE}
    tests = " OR ".join(f"{form} IS NOT NULL" for name, form in forms.items() if name in names)
    query = f"SELECT count(*) FILTER ({tests}) FROM (SELECT * FROM values LIMIT 100)"
    return bool(tests) and bool(tables.duck.value(query))


_OF_CHAT = ("chat", "question", "context", "answer", "text", "signals")


def _with_chats(query: str, preset: Preset) -> str:
    """Return a query with the columns of a chat for each call whose request or reply is recorded whole."""
    question, answer, always = _json_text("question"), _MESSAGE, "'yes'" if preset.chats else "NULL"
    request = f"coalesce(request, {question})"
    quoted = "json_object('role', 'assistant', 'content', answer)::VARCHAR"  # unchanged, even if it is JSON
    reply = f"coalesce(reply, {answer}, CASE WHEN {question} IS NOT NULL AND answer IS NOT NULL THEN {quoted} END)"
    arguments = f"{always}, {request}, settings, tools, system, {reply}, finish, {_COUNTED}"
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
    """Return a query in which each cost has its source. The list price may replace unknown costs and 0 (L4)."""
    source, spent, listed = text_literal(preset.cost_source), "cost_nano_usd", "NULL::BIGINT"
    if preset.free:
        spent = "CASE WHEN cost_nano_usd > 0 OR free THEN cost_nano_usd END"
        listed = f"CASE WHEN ({spent}) IS NULL THEN price(model, {_COUNTED}) END"
    chosen = f"CASE WHEN spent IS NOT NULL THEN {source} WHEN listed IS NOT NULL THEN 'list price' ELSE 'no price' END"
    return (
        "SELECT * EXCLUDE (spent, listed) REPLACE (coalesce(spent, listed) AS cost_nano_usd, coalesce(cost_source, "
        f"{chosen}) AS cost_source) FROM (SELECT *, {spent} AS spent, {listed} AS listed FROM ({query}))"
    )


def _json_text(name: str) -> str:
    return f"CASE WHEN left(ltrim({name}), 1) IN ('[', '{{') AND json_valid({name}) THEN {name} END"


_MESSAGE = f"message_in({_json_text('answer')})"
"""SQL for an answer that is a message, else null. Any other JSON is the model's own text and is left unchanged."""


# --- calls as rows of episodes ---


def drop_copies(tables: Tables) -> None:
    """Drop further copies of a call, and a call nested in another with the same model, question and text (L6)."""
    duck = tables.duck
    copies = (
        "call_id IS NOT NULL AND EXISTS (SELECT 1 FROM calls AS f WHERE f.call_id = calls.call_id AND f.n < calls.n)"
    )
    within = (
        "parent IS NOT NULL AND EXISTS (SELECT 1 FROM ancestors AS a JOIN calls AS o ON o.call_id = a.above WHERE "
        "a.call_id = calls.call_id AND o.model = calls.model AND o.question IS NOT DISTINCT FROM calls.question AND "
        "coalesce(o.text, o.answer) IS NOT DISTINCT FROM coalesce(calls.text, calls.answer))"
    )
    if "call_id" in tables.targets:
        _drop(tables, "'the same call a second time'", copies)
    if "parent" in tables.targets:
        duck.run(
            "CREATE TABLE ancestors AS WITH RECURSIVE above_of AS (SELECT call_id, parent AS above, 1 AS depth FROM "
            "calls WHERE parent IS NOT NULL UNION SELECT a.call_id, r.parent, depth + 1 FROM above_of AS a JOIN "
            "raw AS r ON r.call_id = a.above WHERE r.parent IS NOT NULL AND depth < 64) SELECT call_id, above "
            "FROM above_of"
        )
        _drop(tables, "'a call nested in another with the same model, question and text: counted once'", within)


def _drop(tables: Tables, reason: str, condition: str) -> None:
    tables.count(reason, "calls", condition)
    tables.duck.run(f"DELETE FROM known WHERE n IN (SELECT n FROM calls WHERE {condition})")


def place_calls(tables: Tables, preset: Preset, options: ImportOptions, models: Sequence[str]) -> None:
    """Create the view `placed`: the calls with their episode, step and place, and the values that an episode shares.

    `models` are the steps, in order; if there are none, each call is a step, in the order of time.

    Raises:
        UsageError: two of the models get one name.
    """
    if len({options.rename.get(name, name) for name in models}) < len(models):
        raise UsageError(f"--rename merges two models: {', '.join(models)}; if they are one, rename it in the log.")
    duck = tables.duck
    prefixes = ", ".join(text_literal(f"{source.path.name}{source.unit}") for source in tables.sources)
    named = "digest(question, context)" if preset.runs else "NULL"
    trace = f"coalesce(trace, question_id, call_id, {named}, [{prefixes}][file + 1] || row)"
    if preset.flat:
        _place_flat(tables, trace, options.dataset, models)
        return
    placing = 'n, file, row, model, walk, step, candidate, source, horizon, at_s, episode_id, dataset, segment, "group"'
    query = f"SELECT {placing}, hash(context) AS context, {trace} AS episode, {trace} AS asked FROM calls"
    joining = f"SELECT count(*) FROM (FROM ({query}) SELECT 1 GROUP BY episode HAVING count(DISTINCT model) > 1)"
    if len(models) > 1 and preset.steps == "time" and not duck.value(joining):
        preset = replace(preset, runs=True)
        query = f"""SELECT * REPLACE (coalesce(context::VARCHAR, episode) AS episode, coalesce("group", CASE WHEN
        max(context) OVER same <> min(context) OVER same THEN asked END) AS "group") FROM ({query})
        WINDOW same AS (PARTITION BY asked)"""
        tables.count("'no trace has two of the models, so they are joined on the request'", "calls", note=True)
    for column in ["dataset", "segment"] + ([] if preset.runs else ["context"]):
        if duck.value(f"SELECT count(DISTINCT {column}) FROM calls") > 1:
            query = _split(query, column)
    run = "CASE WHEN episode_id IS NULL THEN row_number() OVER (PARTITION BY episode, model ORDER BY n) ELSE 1 END"
    duck.run(f"CREATE TABLE parted AS {_in_runs(query, run) if preset.runs else query}")
    if preset.runs:
        tables.count(_AGAIN, "parted", "run > 1", note=True)
    position = {"step": "coalesce(step, turn)", "source": "coalesce(source, model)"}
    position["candidate"] = "candidate" if "candidate" in tables.targets else "0"
    moment, condition = "CASE WHEN count(at_s) OVER w = count(*) OVER w THEN at_s END", "true"
    if models:
        listed = f"[{', '.join(map(text_literal, models))}]"
        tables.count("'a call that names no model, where the models are the steps'", "parted", "model IS NULL")
        position = {"step": f"list_position({listed}, model)", "candidate": "0", "source": "model"}
        position["horizon"], moment, condition = str(len(models)), "n", f"list_contains({listed}, model)"
    replaced = ", ".join(f"{sql} AS {name}" for name, sql in position.items())
    duck.run(
        f"CREATE TABLE keyed AS SELECT * REPLACE ({replaced}) FROM (SELECT *, row_number() OVER (PARTITION BY episode, "
        f"walk ORDER BY moment, n) AS turn FROM (SELECT *, {moment} AS moment FROM parted WHERE {condition} WINDOW w "
        "AS (PARTITION BY episode, walk)))"
    )
    if preset.whole and models:
        lacking = f"episode IN (SELECT episode FROM keyed GROUP BY episode HAVING count(DISTINCT step) < {len(models)})"
        tables.count("'a question that not all models answered'", "keyed", lacking)
        duck.run(f"DELETE FROM keyed WHERE {lacking}")
    heads = ", ".join(f"arg_min({_TABLE_OF.get(name, 'calls')}.{name}, turn) AS {name}" for name in _QUOTED)
    duck.run(
        f"CREATE TABLE episodes AS SELECT * REPLACE (coalesce(dataset, {text_literal(options.dataset)}) AS dataset, "
        'coalesce("group", CASE WHEN question IS NULL THEN asked END) AS "group") FROM (SELECT episode, min(n) AS '
        f"first, arg_min(asked, turn) AS asked, {heads} FROM keyed JOIN calls USING (n) GROUP BY episode)"
    )
    firsts = "(SELECT n, file, row FROM keyed JOIN episodes ON first = n WHERE question IS NULL)"
    tables.count(text_literal(NO_QUESTION), firsts, note=True)
    columns = {name: f"episodes.{name}" for name in _QUOTED} | {"episode_id": "keyed.episode", "n": "place"}
    columns |= {name: f"keyed.{name}" for name in ("step", "candidate", "source", "horizon")}
    changed = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
    duck.run(
        f"CREATE VIEW placed AS SELECT calls.* REPLACE ({changed}) FROM (SELECT keyed.*, row_number() OVER "
        "(ORDER BY first, step, turn) AS place FROM keyed JOIN (SELECT episode, first FROM episodes) USING (episode)) "
        "AS keyed JOIN calls ON calls.n = keyed.n JOIN episodes ON episodes.episode = keyed.episode"
    )


_QUOTED = tuple([name_literal(name) for name in OF_EPISODE])
_TABLE_OF = {'"group"': "keyed"}
_AGAIN = "'a model answers a question again, without an episode_id: read as another run'"


def _in_runs(query: str, run: str) -> str:
    """Return a query in which each later run of an episode's calls is an episode of its own."""
    return (
        "SELECT * REPLACE (episode || CASE WHEN run > 1 THEN '#' || run ELSE '' END AS episode) FROM "
        f"(SELECT *, {run} AS run FROM ({query}))"
    )


def _split(query: str, column: str) -> str:
    """Return a query that splits an episode whose calls differ in a column into one episode per value.

    Requests of one conversation are split only if all its calls are chats; the trace is then their group.
    """
    is_chat = column == "context"
    chats = "bool_and(context IS NOT NULL) OVER (PARTITION BY episode) AND" if is_chat else f"{column} IS NOT NULL AND"
    group = ', coalesce("group", CASE WHEN several THEN episode END) AS "group"' if is_chat else ""
    return (
        f"SELECT * EXCLUDE (several, began, part) REPLACE (CASE WHEN several AND part > 1 THEN episode || '/' || part "
        f"ELSE episode END AS episode{group}) FROM (SELECT *, dense_rank() OVER (PARTITION BY episode ORDER BY began) "
        f"AS part FROM (SELECT *, {chats} max({column}) OVER (PARTITION BY episode) IS DISTINCT FROM min({column}) "
        f"OVER (PARTITION BY episode) AS several, min(n) OVER (PARTITION BY episode, {column}) AS began "
        f"FROM ({query})))"
    )


def _place_flat(tables: Tables, episode: str, dataset: str | None, models: Sequence[str]) -> None:
    """Place the calls of a flat table: a row is an episode, and the models, in order, are its steps."""
    duck, listed, size = tables.duck, "[" + ", ".join(map(text_literal, models)) + "]", len(models)
    record = f"n // {size}"
    query = f"SELECT *, {episode} AS episode, {episode} AS asked, list_position({listed}, model) AS rung FROM calls"
    spelled = f"hash({episode.replace('digest(', 'concat_ws(chr(31), ')})"  # differs wherever the digested texts do
    if duck.value(f"SELECT count(DISTINCT hash({spelled}, {record})) > count(DISTINCT {spelled}) FROM calls"):
        run = f"dense_rank() OVER (PARTITION BY episode ORDER BY {record})"
        duck.run(f"CREATE TABLE parted AS {_in_runs(query, run)} ORDER BY n")
        tables.count(_AGAIN, "parted", "run > 1", note=True)
        query = "SELECT * EXCLUDE (run) FROM parted"
    firsts = "(SELECT file, row, min(n) AS n FROM calls WHERE question IS NULL GROUP BY ALL)"
    tables.count(text_literal(NO_QUESTION), firsts, note=True)
    changed = (
        f"n - n % {size} + rung AS n, episode AS episode_id, rung AS step, 0 AS candidate, model AS source, "
        f"{size} AS horizon, coalesce(dataset, {text_literal(dataset)}) AS dataset, "
        'coalesce("group", CASE WHEN question IS NULL THEN asked END) AS "group"'
    )
    duck.run(f"CREATE VIEW placed AS SELECT * EXCLUDE (episode, asked, rung) REPLACE ({changed}) FROM ({query})")


def models_in_order(tables: Tables, preset: Preset, options: ImportOptions) -> tuple[list[str], str]:
    """Return the models of a ladder, by rising mean cost or in the given order, and the reason for that order.

    Raises:
        UsageError: the log does not show which models are cheaper.
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


# --- writing ---


def write_rows(tables: Tables, options: ImportOptions, path: Path, *, placed: bool, sort: bool = True) -> int:
    """Write the rows with cascade's columns into a Parquet file, and return their number.

    With `placed`, `calls` already has all columns; otherwise they are those of the view `placed`. `sort` sorts by `n`.
    """
    duck, source, columns = tables.duck, "calls" if placed else "placed", _given_by_hand(tables, options)
    if not placed:
        answer = "coalesce(answer, unless_empty(trim(text)))"
        silent = f"(candidate IS NULL OR (text IS NOT NULL AND {answer} IS NULL AND correct IS NULL))"
        reply = {"candidate": "candidate", "answer": answer, "correct": "correct"}
        columns |= {name: f"CASE WHEN NOT ({silent} OR {_FAULTY}) THEN {sql} END" for name, sql in reply.items()}
        columns |= {"schema_version": str(SCHEMA_VERSION)}
        reason = "a message with a fault: counted as no answer, since cascade asks the next model instead of serving it"
        if "signals" in {row[0] for row in duck.rows("DESCRIBE known")}:
            tables.count(text_literal(reason), "placed", _FAULTY, note=True)
    listed = ", ".join(
        f"({columns.get(name, name_literal(name))})::{sql_type(name)} AS {name_literal(name)}" for name in COLUMNS
    )
    query = f"SELECT n, {listed} FROM {source}"
    if duck.value("SELECT count(walk) FROM calls"):
        only = "count(candidate) OVER (PARTITION BY episode_id, walk) = 1"
        is_kept = f"walk IS NOT NULL AND candidate IS NOT NULL AND kept IS NULL AND {only}"
        query = f"SELECT * REPLACE ({is_kept} OR kept AS kept) FROM ({query})"
    return copy_rows(duck, f"SELECT * EXCLUDE (n) FROM ({query}){' ORDER BY n' if sort else ''}", path)


_FAULTY = """coalesce(CASE WHEN step < coalesce(horizon, (SELECT max(step) FROM placed WHERE horizon IS NULL))
AND contains(signals, 'message_faults') THEN number(json_extract_string(signals, '/message_faults')) > 0 END, false)"""


def _given_by_hand(tables: Tables, options: ImportOptions) -> dict[str, str]:
    """Return SQL for the columns that --cost and --rename change; note the options that change nothing."""
    columns = dict[str, str]()
    lacking = "(cost_nano_usd IS NULL OR cost_source = 'list price')"
    unpriced = dict(tables.duck.rows(f"SELECT model, count(*) FILTER ({lacking}) FROM calls GROUP BY model"))
    if options.costs:
        cost = f"CASE WHEN {lacking} THEN {_by_model(options.costs, 'model')} END"
        columns["cost_nano_usd"] = f"coalesce({cost}, cost_nano_usd)"
        columns["cost_source"] = f"CASE WHEN ({cost}) IS NOT NULL THEN 'given by hand' ELSE cost_source END"
    for model in [model for model in options.costs if not unpriced.get(model)]:
        tables.dropped.note("an unused --cost: the log has no such model, or gives the cost of its calls", model)
    for column in ("model", "source") if options.rename else ():
        columns[column] = f"coalesce({_by_model(options.rename, column)}, {column})"
    for model in options.rename.keys() - unpriced.keys():
        tables.dropped.note("an unused --rename: the log has no such model", model)
    return columns


def _by_model(values: Mapping[str, Any], column: str) -> str:
    """Return SQL for a value by model; null for other models."""
    cases = " ".join(
        f"WHEN {text_literal(model)} THEN {text_literal(value) if isinstance(value, str) else value}"
        for model, value in values.items()
    )
    return f"CASE {column} {cases} END"
