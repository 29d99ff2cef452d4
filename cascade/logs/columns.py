"""The calls of a log as columns without texts, read from rows or from a typed file; a `Log` is built from them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cascade.conformal.scope import PLAIN, UNSAID, RequestKind, kind_of
from cascade.identity import identity, question_id
from cascade.logs import schema
from cascade.logs.duck import Duck, name_literal, text_literal
from cascade.logs.schema import chat_of, replay_of, request_of
from cascade.logs.source import pointer
from cascade.logs.values import AT_MOST, MAX_WHOLE
from cascade.matching import answer_key
from cascade.policies.features import asked_numbers
from cascade.policies.signals import purposes_of
from cascade.table import Bools, Floats, Ints
from cascade.types import ACT

Row: TypeAlias = Mapping[str, Any]
Objects: TypeAlias = np.ndarray[tuple[int], np.dtype[np.object_]]
_ABOUT = {ACT, *purposes_of("verdict", "check")}
"""The purposes of an agent's own calls, and of calls about an answer: their form is not the request's."""


class Episodes(NamedTuple):
    """The episodes, in the order of their first rows: data set, id, and the first value in an episode's rows.

    `request` is the id of the question, `own` whether the episode's id is that of the question as it is spelled, `kind`
    the form of the request; None is unknown.
    """

    dataset: Objects
    name: Objects
    group: Objects
    segment: Objects
    request: Objects
    own: Bools
    kind: Objects
    features: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Calls:
    """Columns with one number per call, in the order of the log.

    Attributes:
        episodes: the values that all calls of an episode share.
        names: the texts that the numbers in `walk`, `source`, `model`, `purpose` and `echo` stand for; −1: none.
        reads: the steps that the numbers in `parents` stand for; −1: not on record.
        refused: by call, the steps of its episode whose call a model refused.
        columns: int64 (n,), by name: `episode`, the numbers above, `step`, `horizon`, `candidate`, `cost`,
            `input_tokens`, `output_tokens`, `kept` (1, 0; each −1 where unknown), and `key`, equal for equal answers;
            −1: the text is unknown.
        flags: bool (n,), by name: `answers`; `hashed`, a hash stands for the answer; `replied`; `is_told`, a model was
            told whether it was right; `failed`, a call of the episode failed.
        right: float64 (n,), 1, 0 or NaN.
        confidence: float64 (n,); NaN: unknown.
        signals: float64 (n,) by name; NaN: not on record.
        has_gold: whether any row has an accepted answer.
    """

    episodes: Episodes
    names: tuple[str, ...]
    reads: tuple[tuple[int, ...], ...]
    refused: Mapping[int, frozenset[int]]
    columns: Mapping[str, Ints]
    flags: Mapping[str, Bools]
    right: Floats
    confidence: Floats
    signals: Mapping[str, Floats]
    has_gold: bool


COLUMNS = (
    "episode", "walk", "source", "model", "purpose", "echo", "parents", "step", "horizon", "candidate", "cost",
    "input_tokens", "output_tokens", "kept", "key",
)  # fmt: skip
FLAGS = ("answers", "hashed", "replied", "is_told", "failed")


class _Numbers(dict[Any, int]):
    """Number values from 0, in the order of their first appearance; None is −1."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = -1 if value is None else len(self) - (None in self)
        return number

    @property
    def values_in_order(self) -> tuple[Any, ...]:
        return tuple([value for value in self if value is not None])


def calls_of(rows: Iterable[Row]) -> Calls:
    """Return the calls of rows (`logs.schema`), which may be in any order and are read once."""
    episodes, names, reads, keys = _Numbers(), _Numbers(), _Numbers(), _Numbers()
    heads, calls, flags, floats = list[list[Any]](), list[tuple[int, ...]](), list[tuple[bool, ...]](), list[Any]()
    signals: dict[str, dict[int, float]] = {}
    refused: dict[int, frozenset[int]] = {}
    gold = False
    for row in rows:
        if row["walk"] == schema.CUT:  # its cost was spent, but it is no part of an episode
            continue
        gold = gold or bool(row.get("gold"))
        episode = row["dataset"] or "log", row["episode_id"]
        number = episodes[episode]
        if number == len(heads):
            heads.append([*episode, *[None] * 6])
        replay, answer, model = replay_of(row), row["answer"], row["model"] or None
        _note_head(heads[number], row)
        parents, echo, at = row.get("parents"), replay.get(schema.ECHOED), len(calls)
        texts = row["walk"], row["source"] or row["model"] or "", model, replay.get("purpose")
        calls.append(
            (
                number,
                *[names[text] for text in texts],
                names[echo if model and isinstance(echo, str) else None],
                reads[None if parents is None else tuple(parents)],
                *[-1 if row[name] is None or row[name] > limit else int(row[name]) for name, limit in _COUNTS.items()],
                -1 if row["kept"] is None else int(row["kept"]),
                keys[None if answer is None else answer_key(answer, chat_of(row))],
            )
        )
        if failed := bool(replay.get(schema.FAILED)):
            refused[at] = schema.refused_steps(row)
        hashed = answer is not None and schema.is_hashed(answer)
        flags.append((schema.answers(row), hashed, schema.replied(row), schema.is_told(row), failed))
        floats.append([math.nan if row[name] is None else row[name] for name in ("correct", "confidence")])
        for name, value in (row["signals"] or {}).items():
            if isinstance(value, int | float):
                signals.setdefault(name, {})[at] = float(value)
    numbers = np.array(calls, dtype=np.int64).reshape(len(calls), len(COLUMNS)).T
    truths = np.array(flags, dtype=np.bool_).reshape(len(calls), len(FLAGS)).T
    right, confidence = np.array(floats, dtype=np.float64).reshape(len(calls), 2).T
    spread = {name: np.full(len(calls), np.nan) for name in signals}
    for name, of_calls in signals.items():
        spread[name][list(of_calls)] = list(of_calls.values())
    columns = np.array(heads, dtype=object).reshape(-1, 8).T
    requests = [(*request, at) for at, request in enumerate(columns[7]) if request is not None]
    return Calls(
        Episodes._make([*columns[:5], columns[5].astype(np.bool_), columns[6], _features(len(heads), [requests])]),
        names.values_in_order,
        reads.values_in_order,
        refused,
        dict(zip(COLUMNS, numbers, strict=True)),
        dict(zip(FLAGS, truths, strict=True)),
        right,
        confidence,
        spread,
        gold,
    )


def _features(size: int, pieces: Iterable[Sequence[tuple[Any, ...]]]) -> dict[str, Floats]:
    """Return the features of requests by name; each request is given as text, context, chat and episode."""
    features: dict[str, Floats] = defaultdict(lambda: np.full(size, np.nan))
    for piece in filter(None, pieces):
        texts, contexts, chats, rows, *_ = zip(*piece, strict=True)
        at = np.array(rows, dtype=np.int64)
        requests = [request_of(chat) if chat else None for chat in chats]
        for name, values in asked_numbers(texts, contexts, requests).items():
            features[name][at] = values
    return {name: _compact(values) for name, values in features.items()}


_COUNTS = dict.fromkeys(("step", "horizon", "candidate", "cost_nano_usd", "input_tokens", "output_tokens"), MAX_WHOLE)
_COUNTS |= {name: limit for name, limit in AT_MOST.items() if name in _COUNTS}
"""The counts of a row, each with its maximum."""


def _note_head(head: list[Any], row: Row) -> None:
    """Fill in the episode's missing values from a row; each value is that of the first row that has one."""
    _, _, group, segment, request, _, kind, _ = head
    text, context = row["question"], row["context"]
    head[2], head[3] = group or row["group"], segment or row["segment"]
    if text is not None and request is None:
        head[4], head[5] = identity(text, context), question_id(text, context) == head[1]
        head[7] = None if schema.is_hashed(text) else (text, context, replay_of(row).get(schema.CHAT) and context)
    if text is not None and kind is None:
        head[6] = kind_asked(row)


def kind_asked(row: Row) -> RequestKind | None:
    """Return the kind of the request that a row answers; None if the log has no texts, or the row answers no request.

    A row that cascade did not log, such as one imported from a bare question, does not show what the model saw, unless
    its context is a chat request; its reply may be missing.
    """
    replay = replay_of(row)
    if replay.get("purpose") in _ABOUT:
        return None
    if "finish_reason" in replay and not replay.get(schema.CHAT):
        return PLAIN
    chat = request_of(row["context"] or "")
    return kind_of(chat) if chat is not None else None if replay.get(schema.CHAT) else UNSAID


# --- from a typed table ---


def calls_in(duck: Duck, query: str) -> Calls:
    """Return the calls of a query that selects every column of `logs.schema`, and `n`, the number of the row.

    Python functions, such as the one for a chat request's form, are called only for the texts that need them.
    """
    duck.define("answer_key", lambda answer, context: answer_key(answer, context and request_of(context)), 2)
    duck.define("kind", lambda text: json.dumps(kind_of(chat)) if (chat := request_of(text)) else None, 1)
    duck.run(_KEY)
    duck.run(f"CREATE OR REPLACE TEMP VIEW log AS SELECT * FROM ({query}) WHERE walk IS DISTINCT FROM '{schema.CUT}'")
    names = [name for (name,) in duck.rows("SELECT DISTINCT unnest(json_keys(signals)) FROM log ORDER BY 1")]
    replay = _replay("replay" in names)
    episodes = _episodes_in(duck, replay)
    texts = {"walk": "walk", "source": "coalesce(nullif(source, ''), model, '')", "model": "nullif(model, '')"}
    texts |= {"purpose": replay["purpose"], "echo": f"CASE WHEN model <> '' THEN {replay['echo']} END"}
    listed = (
        f"SELECT unnest([{', '.join(texts)}]) AS name FROM "
        f"(SELECT DISTINCT {', '.join(f'{sql} AS {name}' for name, sql in texts.items())} FROM log)"
    )
    called, reads = _enum(duck, "called", listed), _enum(duck, "reads", "SELECT parents AS name FROM log")
    numbers = {name: f"enum_code(({sql})::called)" for name, sql in texts.items()}
    numbers |= {"parents": "enum_code(parents::reads)", "cost": "cost_nano_usd", "kept": "kept::BIGINT"}
    numbers["key"] = f"CASE WHEN answer IS NOT NULL THEN (hash(key_of(answer, {replay['chat']})) >> 1)::BIGINT END"
    flags = {
        "answers": "NOT (candidate IS NULL AND answer IS NULL AND correct IS NULL)",
        "hashed": "regexp_full_match(answer, 'sha256:[0-9a-f]{64}')",
        "replied": f"text IS NOT NULL OR {replay['finished']}",
        "is_told": f"coalesce(cost_source = '{schema.CARRIED_OVER}', false) OR {replay['told']}",
        "failed": replay["failed"],
    }
    measured = [name for name in names if name != "replay"]
    floats = {"right": "correct::DOUBLE", "confidence": "confidence"}
    floats |= {f"signal {at}": f"signal(signals, {text_literal(pointer([name]))})" for at, name in enumerate(measured)}
    kinds = {name: "BIGINT" if name in _LARGE else "INTEGER" for name in COLUMNS}
    columns = [f"coalesce({numbers.get(name, name)}, -1)::{kind} AS {name}" for name, kind in kinds.items()]
    columns += [f"coalesce({sql}, false) AS {name}" for name, sql in flags.items()]
    columns += [f"coalesce({sql}, 'nan')::DOUBLE AS {name_literal(name)}" for name, sql in floats.items()]
    arrays = duck.run(
        f"SELECT {', '.join(columns)} FROM log JOIN heads ON "
        "coalesce(nullif(dataset, ''), 'log') = heads.of_set AND episode_id = heads.name ORDER BY n"
    ).fetchnumpy()
    failing = duck.rows(f"SELECT signals FROM log WHERE {flags['failed']} ORDER BY n") if arrays["failed"].any() else []
    values, keys = np.unique(arrays["key"], return_inverse=True)
    arrays["key"] = keys - (values[:1] == -1).sum()
    return Calls(
        episodes,
        called,
        tuple([tuple(json.loads(text)) for text in reads]),
        {
            int(at): schema.refused_steps({"signals": json.loads(signals)})
            for at, (signals,) in zip(np.flatnonzero(arrays["failed"]), failing, strict=True)
        },
        {name: _compact(arrays.pop(name).astype(np.int64)) for name in COLUMNS},
        {name: np.asarray(arrays[name]) for name in FLAGS},
        np.asarray(arrays["right"]),
        _compact(arrays["confidence"]),
        {name: np.asarray(arrays[f"signal {at}"]) for at, name in enumerate(measured)},
        bool(duck.value("SELECT count(*) FROM log WHERE gold <> '[]'")),
    )


def _compact(values: Floats | Ints) -> Any:
    """Return numbers; if they are all equal, or all NaN, they take no memory."""
    bits = values.view(np.int64)
    return np.broadcast_to(values[0], values.shape) if bits.size and (bits == bits[0]).all() else values


# `answer_key` in SQL for answers of letters, digits and blanks; other answers are passed to Python.
_KEY = r"""
CREATE MACRO key_of(a, c) AS CASE WHEN c IS NULL AND regexp_full_match(a, '[0-9A-Za-z ]*')
  THEN CASE WHEN NOT regexp_matches(a, '\b(?i:a|an|the)\b|^ | ( |$)') THEN lower(a) ELSE coalesce(nullif(trim(
  regexp_replace(regexp_replace(lower(a), '\b(?:a|an|the)\b', ' ', 'g'), ' +', ' ', 'g')), ''), trim(a)) END
  WHEN a IS NOT NULL THEN answer_key_of([a, c]) END;
"""


_LARGE = frozenset({"cost", "input_tokens", "output_tokens", "key"})


def _replay(logged: bool) -> dict[str, str]:
    """Return SQL for the values under "replay" in a row's signals; `logged` is whether any row has them."""
    if not logged:
        nothing = dict.fromkeys(("purpose", "echo", "chat"), "NULL::VARCHAR")
        return nothing | dict.fromkeys(("finished", "told", "failed"), "false")
    fields = {name: f"json_extract(signals, '/replay/{name}')" for name in (schema.TOLD, schema.FAILED, schema.CHAT)}
    is_true = {name: f"coalesce({sql}::VARCHAR NOT IN {_FALSE}, false)" for name, sql in fields.items()}
    return {
        "purpose": "json_extract_string(signals, '/replay/purpose')",
        "echo": f"CASE WHEN json_type(signals, '/replay/{schema.ECHOED}') = 'VARCHAR' "
        f"THEN json_extract_string(signals, '/replay/{schema.ECHOED}') END",
        "chat": f"CASE WHEN {is_true[schema.CHAT]} THEN nullif(context, '') END",
        "finished": "json_exists(signals, '/replay/finish_reason')",
        "told": is_true[schema.TOLD],
        "failed": is_true[schema.FAILED],
    }


_FALSE = """('false', 'null', '0', '0.0', '""', '[]', '{}')"""
"""The JSON values that are false in Python."""


def _enum(duck: Duck, name: str, query: str) -> tuple[str, ...]:
    """Create an enum type `name` of the texts in the column `name` of a query, and return the texts."""
    duck.run(
        f"DROP TYPE IF EXISTS {name}; CREATE TYPE {name} AS ENUM (SELECT DISTINCT name FROM ({query}) "
        "WHERE name IS NOT NULL ORDER BY name)"
    )
    return tuple([text for (text,) in duck.rows(f"SELECT unnest(enum_range(NULL::{name}))")])


def _episodes_in(duck: Duck, replay: Mapping[str, str]) -> Episodes:
    kind = (
        f"CASE WHEN {replay['purpose']} IN ({', '.join(map(text_literal, sorted(_ABOUT)))}) THEN NULL "
        f"WHEN {replay['chat']} IS NOT NULL THEN kind_of([{replay['chat']}]) "
        f"WHEN {replay['finished']} THEN {text_literal(json.dumps(PLAIN))} "
        "ELSE coalesce(CASE WHEN context IS NOT NULL THEN kind_of([context]) END, "
        f"{text_literal(json.dumps(UNSAID))}) END"
    )
    duck.run(
        "CREATE OR REPLACE TEMP TABLE heads AS SELECT row_number() OVER (ORDER BY first) - 1 AS episode, * FROM "
        "(SELECT coalesce(nullif(dataset, ''), 'log') AS of_set, episode_id AS name, min(n) AS first, "
        "min(n) FILTER (question IS NOT NULL) AS asked, "
        'arg_min("group", n) FILTER ("group" <> \'\') AS in_group, '
        "arg_min(segment, n) FILTER (segment <> '') AS part, "
        f"arg_min({kind}, n) FILTER (question IS NOT NULL) AS kind FROM log GROUP BY ALL)"
    )
    # a value that many episodes share is one object
    shared: dict[str, Sequence[Any]] = {
        name: _enum(duck, name, f"SELECT {name} AS name FROM heads") for name in ("of_set", "in_group", "part", "kind")
    }
    codes = ", ".join(f"coalesce(enum_code({name}::{name}), -1)::INTEGER AS {name}" for name in shared)
    heads = duck.run(f"SELECT name, {codes} FROM heads ORDER BY episode").fetchnumpy()
    request, own = np.full(heads["name"].size, None), np.zeros(heads["name"].size, dtype=np.bool_)
    query = (
        "SELECT CASE WHEN NOT regexp_full_match(question, 'sha256:[0-9a-f]{64}') THEN question END, context, "
        f"{replay['chat']}, episode, request_id(question, context), digest(question, context) = name "
        "FROM heads JOIN log ON n = asked"
    )

    def pieces() -> Iterator[Sequence[tuple[Any, ...]]]:
        for rows in duck.pieces(query):
            *_, at, ids, same = zip(*rows, strict=True)
            request[[*at]], own[[*at]] = ids, same
            yield [row for row in rows if row[0] is not None]

    features = _features(request.size, pieces())
    shared["kind"] = [*map(json.loads, shared["kind"])]
    dataset, group, segment, forms = [
        np.array([*values, None], dtype=object)[heads[name]] for name, values in shared.items()
    ]
    return Episodes(dataset, heads["name"], group, segment, request, own, forms, features)
