"""Read the logs of other tools: turn their records into cascade's rows by a preset, a mapping, or as a flat table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.logs import chats
from cascade.logs.calls import by_effort, drop_copies, make_calls, models_in_order, place_calls, read_raw, write_rows
from cascade.logs.columns import Calls, calls_in
from cascade.logs.duck import Duck, name_literal, opened, text_literal
from cascade.logs.lines import first_bytes
from cascade.logs.presets import ALSO, OWN, SIGNALS, ImportOptions, Mapped, Preset, kind_of, mapping, preset, presets
from cascade.logs.schema import COLUMNS, Dropped
from cascade.logs.source import WHOLE_RECORD, Source, as_json, sources, unnested
from cascade.logs.sql import Tables, dicts, matching, native_rows, spooled, sql_type
from cascade.logs.table import Layout, layout, missing, second_header
from cascade.money import PriceTable

Tell = Callable[[Sequence[str]], None]
_LOOKED_AT = 200
_ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".eval", ".gz")


@dataclass(frozen=True, slots=True)
class Imported:
    """The rows of a log, in duckdb."""

    duck: Duck
    kind: str
    query: str
    dropped: Dropped

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, each with every column."""
        return dicts(self.duck, self.query, self.dropped)

    def columns(self) -> Calls:
        """Return the calls as columns, without texts."""
        return calls_in(self.duck, self.query)

    def counts(self) -> dict[str, Any]:
        """Count episodes and rows, in total and by data set, unjudged answers, and rows without a cost or a request."""
        self.duck.run(f"CREATE VIEW log AS {self.query}")
        by_set = self.duck.rows(
            "SELECT coalesce(dataset, 'log'), count(DISTINCT hash(episode_id)), count(*) FROM log "
            "GROUP BY 1 ORDER BY min(n)"
        )
        unjudged, unpriced, unsent, incomplete = self.duck.rows(
            "SELECT count(*) FILTER (candidate IS NOT NULL AND correct IS NULL), "
            "count(*) FILTER (cost_nano_usd IS NULL), "
            "count(*) FILTER (NOT coalesce(json_exists(signals, '/replay/finish_reason'), false) "
            "AND json_exists(TRY_CAST(context AS JSON), '/messages') IS NOT true), "
            "(SELECT count(*) FROM (SELECT 1 FROM log WHERE walk IS NULL GROUP BY dataset, episode_id "
            "HAVING count(DISTINCT step) < max(horizon) OR max(horizon) = 1)) FROM log"
        )[0]
        return {
            "episodes": sum(episodes for _, episodes, _ in by_set),
            "rows": sum(count for *_, count in by_set),
            "datasets": {name: {"episodes": episodes, "rows": count} for name, episodes, count in by_set},
            "episodes_not_of_all_models": incomplete,
            "unjudged_answers": unjudged,
            "rows_without_cost": unpriced,
            "rows_without_request": unsent,
        }


@contextmanager
def imported(
    paths: Sequence[Path | str],
    options: ImportOptions | None = None,
    dropped: Dropped | None = None,
    *,
    tell: Tell | None = None,
    output: Path | None = None,
    rows: Iterable[Mapping[str, Any]] | None = None,
    where: Mapping[str, str] | None = None,
) -> Iterator[Imported]:
    """Read one log from a file, a folder, or several files, which are joined on the question.

    Args:
        paths: the files. If no field names the model, each file has one model's calls, named by what differs in paths.
        options: how to read the log.
        dropped: counts what is left out, and why.
        tell: called with lines that explain how the columns of a table are read.
        output: a Parquet file that will be written.
        rows: cascade's own rows, instead of those in files.
        where: reads the log instead of importing it: only the rows with these values; cascade's own rows are unchanged.

    Raises:
        UsageError: the log is of no known kind, or something is missing; one message lists all problems.
        MissingExtraError: duckdb is not installed.
    """
    typed, counted = options or ImportOptions(), Dropped() if dropped is None else dropped
    options = replace(typed, dataset=typed.dataset or Path(paths[0]).name.split(".")[0])
    files = [] if rows is not None else [file.absolute() for path in paths for file in _files(Path(path))]
    with opened([*files, *([] if output is None else [output.absolute()])], options.memory) as duck:
        _define(duck)
        tables = Tables(duck, sources(duck, files, counted), counted) if rows is None else spooled(duck, rows, counted)
        kind = _recognised(tables, options) if rows is None else OWN
        if kind == OWN and where is not None:
            yield Imported(duck, kind, native_rows(tables, where), counted)
            return
        if kind == OWN:
            _refuse_options(typed)
            duck.run(f"CREATE VIEW calls AS {native_rows(tables)}")
            write: Callable[[Path], int] = partial(write_rows, tables, options, placed=True)
        else:
            write = _import(tables, _with_request(duck, preset(kind), options.request), options, tell)
        written = (output or duck.folder / "log.parquet").absolute()
        if not write(written):
            raise UsageError(f"Nothing in {paths[0]} can be imported. {counted.describe()}".strip())
        query = f"SELECT file_row_number AS n, * FROM read_parquet({text_literal(written)}, file_row_number = true)"
        yield Imported(duck, kind, f"SELECT * FROM ({query}) WHERE {matching(where or {})} ORDER BY n", counted)


def _refuse_options(options: ImportOptions) -> None:
    """Raise UsageError for options that do not apply to cascade's own rows, which already have their places."""
    refused = {"--map": options.columns, "--models": options.models, "--dataset": options.dataset}
    wrong = [name for name, value in (refused | {"--request": options.request is not None}).items() if value]
    if wrong:
        raise UsageError(
            f"The log has cascade's own rows: it takes no {', '.join(wrong)}. See --where, --rename, --cost."
        )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        first_bytes(path, 1)  # a missing file is named as it was given
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(_ENDINGS))
    if not files:
        raise UsageError(f"The folder {path} has no log ({', '.join(_ENDINGS)}).")
    return files


def _define(duck: Duck) -> None:
    prices = PriceTable.bundled()

    def price(model: str | None, *counts: str | None) -> int | None:
        listed = prices.price(model or "")
        return None if listed is None else listed.cost_nano_usd(chats.usage_of(counts))

    duck.define("chat", chats.chat_columns, 13)
    duck.define("message_in", chats.message_in, 1)

    def golds(gold: str | None, tools: str | None, kind: str | None) -> str | None:
        answers = chats.gold_in(gold, tools=bool(chats.loaded(tools)), kind=kind)
        return json.dumps(answers, ensure_ascii=False) if answers else None

    duck.define("chat_gold", golds, 3)
    duck.define("price", price, 7, "BIGINT")


def _recognised(tables: Tables, options: ImportOptions) -> str:
    """Return the kind of the log, and replace the sources by those of the records inside its files."""
    duck = tables.duck
    files = [
        unnested(duck, source, ("data",)) if source.is_json and {"data"} <= {*source.names} <= _OF_PAGE else source
        for source in tables.sources
    ]
    names = {name for source in files for name in source.names}
    kind = options.kind or next((kind for source in files if (kind := kind_of(source.names)) is not None), "table")
    if not names:
        kind = OWN  # nothing but damage, or nothing at all
    form = preset("table" if kind == OWN else kind)
    if form.prepare:
        from cascade.logs import spans  # most logs have none

        duck.define(form.prepare, getattr(spans, form.prepare), 2)
    if form.prepare or [WHOLE_RECORD] in form.let.values():
        files = [source if source.is_json else as_json(source) for source in files]
    if form.known_by and options.kind is None:
        files = [source if form.knows(source.names) else _left_out(tables, source, kind) for source in files]
    for chain in form.each:
        files = [unnested(duck, source, chain) if chain[0] in source.names else source for source in files]
    tables.sources = files
    return kind


def _left_out(tables: Tables, source: Source, kind: str) -> Source:
    """Return a file without its records, which are of another kind, and count them."""
    if source.names and (count := tables.duck.value(f"SELECT count(*) FROM ({source.relation})")):
        tables.dropped.drop(f"in a file of another kind than {kind} (--from {kind} reads it)", source.path.name, count)
    return source._replace(relation=f"SELECT * FROM ({source.relation}) WHERE false", names=())


_OF_PAGE = frozenset({"data", "meta", "object", "has_more", "total", "page", "page_size", "total_pages", "next_cursor"})
"""The fields of a page of results from the API of Langfuse, LiteLLM, OpenAI or Phoenix."""


def _import(tables: Tables, chosen: Preset, options: ImportOptions, tell: Tell | None) -> Callable[[Path], int]:
    """Read the calls of a foreign log, and return the function that writes their rows into a file."""
    mapped = mapping(options.columns)
    names = list(dict.fromkeys(name for source in tables.sources for name in source.names))
    if (flat := _flat(names, mapped, chosen)) is not None:
        return _import_flat(tables, chosen, flat, mapped, options, tell)
    if mapped.of_model:
        raise UsageError(
            f"{', '.join(mapped.of_model)}: a table with columns for each model has two models or more, each with an "
            "answer: add --map NAME.answer=FIELD for the other"
        )
    if chosen.rows is not None:
        read_raw(tables, {**chosen.columns, **{name: [path] for name, path in mapped.columns.items()}}, chosen)
        columns = ", ".join(f"NULL::{sql_type(name)} AS {name_literal(name)}" for name in COLUMNS)
        blank = f"SELECT 0::BIGINT AS n, 0 AS file, 0::BIGINT AS row, {columns}"
        tables.duck.run(f"CREATE TABLE calls AS SELECT * FROM ({blank}) WHERE false UNION ALL BY NAME ({chosen.rows})")
        return partial(write_rows, tables, options, placed=True)
    paths: dict[str, Sequence[str]] = {**chosen.columns}
    if chosen.name == "table":
        fields = [*names, *(path for path in _paths_inside(tables) if "." in path)]
        targets, answer = {*COLUMNS, *ALSO, "question_id"} - {"schema_version"}, mapped.columns.get("answer", "answer")
        paths = {name: [name] for name in names if name in targets or name.startswith(SIGNALS)}
        spelled = {name: [*listed, *(f"{answer}.{path}" for path in listed)] for name, listed in chosen.columns.items()}
        paths |= {name: has for name in spelled if (has := [path for path in spelled[name] if path in fields])}
    paths |= {name: [path, *([f"scores.{path}"] if chosen.prepare else [])] for name, path in mapped.columns.items()}
    if chosen.name == "table":
        chosen = _of_table(tables, chosen, paths, fields)
        read = [path for each in (*paths.values(), *chosen.let.values()) for path in each]
        used = {*read, *(path.split(".")[0] for path in read)}
        ignored = [name for name in names if name not in used]
        unread = [f"not read: {', '.join(ignored)} (--map COLUMN=FIELD)"] if ignored else []
        if tell is not None:
            tell([f"read: {', '.join(f'{path[0]} as {name}' for name, path in paths.items())}", *unread])
        for line in unread if tell is None else ():
            tables.dropped.note(line, str(tables.sources[0].path))
    else:  # a field that the user maps is read unchanged
        chosen = replace(chosen, sql={name: sql for name, sql in chosen.sql.items() if name not in mapped.columns})
    models = _import_calls(tables, chosen, paths, options, mapped)
    if tell is not None and models:
        tell([f"the steps are {' > '.join(models)}, {models_in_order(tables, chosen, options)[1]}; {_CHANGE}"])
    return partial(write_rows, tables, options, placed=False)


_CHANGE = "--models A,B changes that"


def _with_request(duck: Duck, chosen: Preset, body: Mapping[str, Any] | None) -> Preset:
    """Return the preset for a table whose questions were sent in chat requests with this body (None: unknown)."""
    if body is None:
        return chosen
    if chosen.name != "table":
        raise UsageError(f"--request is only for tables: a log of the kind {chosen.name} records what was sent.")
    chats.check_template(body)
    duck.define("sent", lambda question: chats.request_with(body, question), 1)
    return replace(chosen, sql={"question": "sent(question)"}, chats=True)


def _import_calls(
    tables: Tables, chosen: Preset, paths: Mapping[str, Sequence[str]], options: ImportOptions, mapped: Mapped
) -> list[str]:
    """Create and place the calls, and return the models if they are the steps."""
    read_raw(tables, {**paths, **chosen.let}, chosen)
    _check_mapping(tables, mapped.columns, chosen.prepare)
    texts = "SELECT * FROM raw WHERE status IS NULL"
    if (chosen.files or len(tables.sources) > 1) and "model" not in tables.targets:
        if len(tables.sources) < 2:
            raise UsageError(
                f"{tables.sources[0].path} has the answers of one model: give the file of each model, the cheapest "
                "model's first, as in small/samples_arc.jsonl large/samples_arc.jsonl."
            )
        texts = "SELECT *, file_model AS model FROM raw WHERE status IS NULL"
        tables.targets.append("model")
    texts = by_effort(tables, texts)
    if options.models:
        logged = [name for (name,) in tables.duck.rows(f"SELECT DISTINCT model FROM ({texts}) WHERE model IS NOT NULL")]
        _check_models(options.models, logged)
        texts = f"SELECT * FROM ({texts}) WHERE model IN ({', '.join(map(text_literal, options.models))})"
    make_calls(tables, texts, chosen, {name: next(iter(path), name) for name, path in paths.items()})
    drop_copies(tables)
    steps = models_in_order(tables, chosen, options)[0] if chosen.steps == "models" or options.models else []
    place_calls(tables, chosen, options, steps)
    return steps


def _check_models(models: Sequence[str], logged: Sequence[str]) -> None:
    if problems := [f"{name}{did_you_mean(name, logged)}" for name in models if name not in logged]:
        raise UsageError(f"The log has no answer of {'; '.join(problems)} (it has {', '.join(logged) or 'no model'})")
    if len(set(models)) < len(models):
        raise UsageError(f"--models names a model twice: {', '.join(models)}.")


def _check_mapping(tables: Tables, columns: Mapping[str, str], prepare: str | None = None) -> None:
    """Raise UsageError for mapped fields that no record has; it suggests fields with similar names."""
    names = list(dict.fromkeys(name for source in tables.sources for name in source.names))
    absent = [
        path
        for column, path in columns.items()
        if path not in names and not tables.duck.value(f"SELECT count({name_literal(column)}) FROM raw")
    ]
    if absent:
        fields = [*names, *_paths_inside(tables, prepare)]
        problems = [f"the log has no field {path}{did_you_mean(path, fields)}" for path in absent]
        raise UsageError(f"{tables.sources[0].path} cannot be read with this mapping: {'; '.join(problems)}.")


def _paths_inside(tables: Tables, prepare: str | None = None) -> list[str]:
    """Return the paths of values inside the first records' objects."""
    line = "line" if prepare is None else f"{prepare}(line, around)"
    queries = (f"SELECT {line} FROM ({source.relation})" for source in tables.sources if source.is_json)
    pages = ((row for page in tables.duck.pieces(query) for row in page) for query in queries)  # LIMIT gives tiny ones
    texts = (text for rows in pages for (text,) in islice(rows, _LOOKED_AT))
    return list(dict.fromkeys(path for text in texts for path in _leaves(chats.loaded(text))))


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, Mapping) and len(path) < 200:
        for name, inside in value.items():
            yield from _leaves(inside, f"{path}.{name}" if path else str(name))
    elif path:
        yield path


# --- tables ---


def _of_table(tables: Tables, chosen: Preset, paths: dict[str, Sequence[str]], fields: Sequence[str]) -> Preset:
    """Return the preset for a table with a row per call; raise UsageError with a line to paste if it lacks columns."""
    several = len(tables.sources) > 1
    lacking = missing(fields, {name: path[0] for name, path in paths.items()} | ({"model": ""} if several else {}))
    if lacking:
        raise UsageError(
            f"{tables.sources[0].path} is of no known kind ({', '.join(presets())}). As a table of calls it lacks "
            f"columns: add {' '.join(lacking)}, or as a table with columns for each model: --map question=FIELD --map "
            f"SMALL.answer=FIELD --map LARGE.answer=FIELD. Its fields (line 1 of a table): {', '.join(fields[:60])}. "
            "Of questions alone, cascade collect makes a log"
        )
    if "episode_id" in paths:
        paths["trace"] = paths.pop("episode_id")
    each_file = several and "model" not in paths  # the id of a question then joins the files; the steps are the models
    if each_file:
        _check_joined(tables, paths)
    timed = {"step", "walk", "candidate"} if each_file else {"step", "walk", "candidate", "trace"}
    steps = "models" if (several or "model" in paths) and not paths.keys() & timed else "time"
    asks = [name for name in _ASKS if name in paths]
    drop = {
        _BLANK: f"coalesce({', '.join(asks)}) IS NULL",
        **second_header([*asks, *_ANSWERS & paths.keys()]),
        **({"a failed call": _FAILED} if "answer" in paths else {}),
    }
    chosen = replace(chosen, steps=steps, runs=each_file or "trace" not in paths, files=several, drop=drop)
    return _with_cache(chosen, paths)


def _with_cache(chosen: Preset, paths: Mapping[str, Sequence[str]]) -> Preset:
    """Return the preset that counts the input tokens of a table whose tokens of a cache have Anthropic's names.

    Anthropic counts these beside the input, and some loggers within it. More of them than input show the former for all
    calls of a model; a total shows either. Otherwise the input is unknown, except in an object of Anthropic's own form.
    """
    start = paths.get("input_tokens", ("?",))[0].removesuffix("input_tokens")
    cached = {f"{start}cache_read_input_tokens", f"{start}cache_creation_input_tokens"}.intersection
    beside = [name for name in ("cached_input_tokens", "written_input_tokens") if cached(paths.get(name, ()))]
    own, cache = "whole(input_tokens)", " + ".join(f"coalesce(whole({name}), 0)" for name in beside)
    exceeds = f"max({cache} > {own}) OVER (PARTITION BY {'model' if 'model' in paths else 'file'})"
    total = f"{own} + {cache}" if start else "NULL"
    total = "whole(total) - whole(output_tokens)" if {"total", "output_tokens"} <= paths.keys() else total
    sql = f"with_cache({own}, {cache}, {exceeds}, {total})"
    notes = {_UNCLEAR: f"{own} IS NOT NULL AND {sql} IS NULL"}
    return replace(chosen, sql={**chosen.sql, "input_tokens": sql}, notes=notes) if beside else chosen


_UNCLEAR = "calls whose input_tokens may include those of the cache or not (a column total_tokens shows it)"
_FAILED = """json_extract_string(as_object(answer), '/error/message') IS NOT NULL AND
(len(json_keys(as_object(answer))) < 4 OR json_extract_string(as_object(answer), '/object') = 'response')
OR answer IS NULL AND lower(failure) NOT IN ('false', '0', 'none', 'null', 'nan', 'na', '{}', '[]')"""
"""SQL for a vendor's error, with at most its type and the request's id, or a failed response; and for a row's error."""


def _check_joined(tables: Tables, paths: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError if a model's file has no field by which its rows can be joined with those of the others."""
    joining = [path for name in _ASKS for path in paths.get(name, ())]
    for source in tables.sources:
        if not any({path, path.split(".")[0]} & {*source.names} for path in joining):
            raise UsageError(
                f"{source.path} has no {' nor '.join(joining)}, by which the files of the models are joined: add --map "
                f"question_id=FIELD with a field that all files have. Its fields: {', '.join(source.names[:60])}"
            )


def _flat(names: Sequence[str], mapped: Mapped, chosen: Preset) -> Layout | None:
    """Return the layout of a flat table; None for another kind of log."""
    if not chosen.models:
        return layout(names, mapped) if chosen.name == "table" else None
    # a format whose columns are a model's name and an ending, such as `NAME|total_cost`
    mark = max(chosen.models.values(), key=len)
    models = {
        model: {column: f"{model}{end}" for column, end in chosen.models.items() if f"{model}{end}" in names}
        for model in (name.removesuffix(mark) for name in names if name.endswith(mark))
    }
    return Layout({column: path for column, (path,) in chosen.columns.items() if path in names}, models, {})


_OF_MODELS = dict.fromkeys(("answer", "model", "correct", "cost_usd"), "")
_ASKS, _ANSWERS = ("question", "trace", "question_id"), {"answer", "text", "correct"}
_SUMS = "a row without an answer or a truth"  # such as those below a table
_BLANK = "a row without a question or its id, as of a sum or below a merged cell: write the question in each row"


def _import_flat(
    tables: Tables, chosen: Preset, flat: Layout, mapped: Mapped, options: ImportOptions, tell: Tell | None
) -> Callable[[Path], int]:
    path, models = tables.sources[0].path, list(flat.models)
    truths = [] if chosen.models else [columns["correct"] for columns in flat.models.values() if "correct" in columns]
    if not flat.question.keys() & {"question", "episode_id"}:
        raise UsageError(
            f"{path} is read as a table with columns for the models {', '.join(models)}, and no column has the "
            f"question: add {' '.join(missing(list(flat.ignored), _OF_MODELS))}"
        )
    fields = {f"{at} {name}": [field] for at, model in enumerate(models) for name, field in flat.models[model].items()}
    answers = [name for name in fields if name.endswith((" answer", " correct"))]
    sums = {_SUMS: f"coalesce({', '.join(map(name_literal, answers))}) IS NULL"}
    table = replace(preset("table"), drop=sums | second_header([*flat.question, *answers]))
    chosen = replace(table, steps="models", runs=True, flat=True, sql=chosen.sql, chats=chosen.chats, free=None)
    read_raw(tables, {column: [name] for column, name in flat.question.items()} | fields, chosen)
    by_hand = {column: field for column, field in mapped.columns.items() if column in flat.question}
    for model, columns in mapped.of_model.items():
        by_hand |= {f"{models.index(model)} {name}": field for name, field in columns.items() if model in models}
    _check_mapping(tables, by_hand)
    for name, line in flat.ignored.items():
        if tell is None or "did you mean" in line:
            tables.dropped.note(f"the column {name} is not read{line}", str(path))
    _check_models(options.models, models)
    listed = [model for model in models if model in (options.models or models)]
    make_calls(tables, _calls_of_flat(tables, flat, listed), chosen, {"correct": ", ".join(truths)} if truths else {})
    by_step, reason = models_in_order(tables, chosen, options)
    _drop_unasked(tables, by_step)
    if tell is not None and by_step:
        ordered = replace(flat, models={model: flat.models[model] for model in by_step})
        tell([*ordered.describe(), f"the steps are {' > '.join(by_step)}, {reason}; {_CHANGE}"])
    place_calls(tables, chosen, options, by_step)
    return partial(write_rows, tables, options, placed=False, sort=by_step != listed)


def _calls_of_flat(tables: Tables, flat: Layout, models: Sequence[str]) -> str:
    """Return a query with one row of texts per row and model; those of row n are numbered from n * len(models)."""
    question = {("trace" if column == "episode_id" else column): column for column in flat.question}
    shared = ", ".join(f"{name_literal(column)} AS {name_literal(name)}" for name, column in question.items())
    columns = sorted({name for model in models for name in flat.models[model]})
    calls = []
    for at, model in enumerate(models):
        index, own = list(flat.models).index(model), flat.models[model]
        values = {column: name_literal(f"{index} {column}") if column in own else "NULL::VARCHAR" for column in columns}
        fields = {"n": f"n * {len(models)} + {at}", "model": text_literal(model), **values}
        calls.append(", ".join(f"{text_literal(name)}: {sql}" for name, sql in fields.items()))
    tables.targets = [*question, "model", *columns]
    unnested = f"unnest([{', '.join(f'{{{fields}}}' for fields in calls)}], recursive := true)"
    return f"SELECT file, row, {shared}, {unnested} FROM raw WHERE status IS NULL"


def _drop_unasked(tables: Tables, by_step: Sequence[str]) -> None:
    """Drop the calls of models that were not asked: no values, and none from a later model of the row."""
    duck, rung = tables.duck, f"list_position([{', '.join(map(text_literal, by_step))}], model)"
    silent = "answer IS NULL AND correct IS NULL AND cost_nano_usd IS NULL"
    duck.run(
        f"CREATE TABLE reached AS SELECT file, row, max({rung}) AS last FROM calls WHERE NOT ({silent}) GROUP BY ALL"
    )
    later = f"EXISTS (FROM reached WHERE reached.file = calls.file AND reached.row = calls.row AND last > {rung})"
    absent, unasked = "model || ' has no answer, truth or cost", f"{silent} AND NOT {later}"
    tables.count(f"{absent}, so it was not asked'", "calls", unasked, note=True)
    duck.run(f"DELETE FROM known WHERE n IN (SELECT n FROM calls WHERE {unasked})")
    tables.count(f"{absent}, though a later model has: its answer is unknown'", "calls", silent, note=True)
