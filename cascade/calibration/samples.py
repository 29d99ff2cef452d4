"""Select the questions of a log that a certificate may be made from: one table, each question once."""

from __future__ import annotations

import hashlib
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cascade.conformal.arrays import Bools, Floats, Ints, StepArrays, renumbered
from cascade.conformal.split import one_of_each
from cascade.episodes.table import LISTED, EpisodeTable, Walk
from cascade.errors import UsageError
from cascade.guarantees.certificate import canonical, of_segment
from cascade.guarantees.questions import Labels
from cascade.policies.artifact import PolicyArtifact

_CHUNK = 1 << 14
"""Questions hashed at once; the memory in MB is about their number of steps."""


def joined(tables: Sequence[EpisodeTable]) -> EpisodeTable:
    """Return the questions of several data sets of one cascade as one table."""
    if not tables:
        raise UsageError("There is no episode in this log.")
    first = tables[0]
    if len(tables) == 1:
        return first
    parents, answering = {table.parents for table in tables}, _at_each_step(tables)
    reordered = any(len(names) > 1 for names in answering)
    if len({_cascade(table) for table in tables}) > 1 or reordered or len(parents) > 1:
        listed = "; ".join(f"{table.dataset}: {_cascade(table)}{_in_order(table)}" for table in tables)
        advice = "Choose data sets of one with --where dataset=NAME"
        raise UsageError(
            f"The log holds data sets of different cascades, but a certificate covers one. {advice}: {listed}"
        )
    if len({table.truth for table in tables}) > 1:
        raise UsageError("The data sets are compared with different references: choose one with --where dataset=NAME.")
    signals = sorted({name for table in tables for name in table.signals})
    walks = sorted({name for table in tables for name in table.walks})
    asked = sorted({name for table in tables for name in table.asked})
    rows: dict[str, Any] = {
        name: tuple([one for table in tables for one in getattr(table, name)]) for name in LISTED[1:]
    }
    stacked: dict[str, Any] = dict(zip(_STACKED, _stacked(_STACKED, tables), strict=True))
    return EpisodeTable(
        dataset=", ".join(table.dataset for table in tables),
        ids=tuple([f"{table.dataset}/{name}" for table in tables for name in table.ids]),
        sources=first.sources,
        arrays=_joined([table.arrays for table in tables]),
        signals={name: _filled(tables, [table.signals.get(name) for table in tables], np.nan) for name in signals},
        walks={name: Walk(*_stacked(Walk.__slots__, [_walk(table, name) for table in tables])) for name in walks},
        cost_known=all(table.cost_known for table in tables),
        models=first.models,
        asked={name: _filled(tables, [table.asked.get(name) for table in tables], np.nan, 1) for name in asked},
        step_models=tuple([next(iter(names), None) for names in answering]),
        calls=first.calls if all(table.calls == first.calls for table in tables) else (),
        echoes=_echoes(tables),
        truth=first.truth,
        parents=first.parents,
        labels=_labels(tables),
        uncached=_filled(tables, [table.uncached for table in tables], np.nan),
        unjudged=sum(table.unjudged for table in tables),
        bought=_filled(tables, [table.bought for table in tables], True),
        **rows,
        **stacked,
    )


_STACKED = ("confidence", "tokens", "paid", "texts_known", "drawn_from", "priced")


def _filled(tables: Sequence[EpisodeTable], held: Sequence[Any], fill: float, dims: int = 2) -> Any:
    """Return a column of all data sets, by question or by step; `fill` if a data set lacks it; None if all lack it."""
    if all(one is None for one in held):
        return None
    shapes = [table.arrays.cost.shape[:dims] for table in tables]
    return np.concatenate([np.full(at, fill) if one is None else one for at, one in zip(shapes, held, strict=True)])


def _joined(parts: Sequence[StepArrays]) -> StepArrays:
    answer, correct, cost, steps, complete = _stacked(("answer", "correct", "cost", "steps", "complete"), parts)
    return StepArrays(answer, correct, cost, steps, complete)


def _labels(tables: Sequence[EpisodeTable]) -> Labels | None:
    """Return the questions with judgements by people; None if no data set has any."""
    held = [table.labels for table in tables if table.labels is not None]
    return Labels(*_stacked(Labels._fields, held)) if len(held) == len(tables) else None


def _cascade(table: EpisodeTable) -> str:
    """Return a description of a data set's cascade: its steps, sources and models."""
    held = [(role, " or ".join(names)) for role, names in table.models.items()]
    models = ", ".join(name if role == name else f"{role} {name}" for role, name in held)
    return f"{table.arrays.horizon} steps of {' and '.join(table.sources)}" + (f" ({models})" if models else "")


def _in_order(table: EpisodeTable) -> str:
    """Return phrases for the order of a ladder's models and the dependencies of its steps."""
    said = f", in the order {', '.join(name or 'any' for name in table.step_models)}" if any(table.step_models) else ""
    needs = "; ".join(", ".join(map(str, parents)) or "none" for parents in table.parents or ())
    return said + (f", with the parents {needs}" if needs else "")


def _echoes(tables: Sequence[EpisodeTable]) -> dict[str, tuple[str, ...]]:
    """Return the names in the replies of each model, over all data sets."""
    found: dict[str, set[str]] = {}
    for table in tables:
        for model, names in table.echoes.items():
            found.setdefault(model, set()).update(names)
    return {model: tuple(sorted(found[model])) for model in sorted(found)}


def _at_each_step(tables: Sequence[EpisodeTable]) -> list[set[str]]:
    """Return the models that answered each step of a ladder, in any data set."""
    known = [table.step_models for table in tables if table.step_models]
    return [{name for name in names if name is not None} for names in zip(*known, strict=False)]


def _stacked(names: Sequence[str], parts: Sequence[Any]) -> Iterator[NDArray[Any]]:
    return (np.concatenate([getattr(part, name) for part in parts]) for name in names)


def _walk(table: EpisodeTable, name: str) -> Walk:
    no, zero = np.zeros(table.n, dtype=np.bool_), np.zeros(table.n, dtype=np.int64)
    return table.walks.get(name, Walk(no, no, no, zero, zero, zero, zero))


def once(table: EpisodeTable, *, separate: bool = False) -> Ints:
    """Return one row for each question, int64, ascending; with `separate` one for each question of each segment.

    A question that occurs several times in a log is one piece of evidence about fresh questions, not several. A hash of
    the episodes' ids, which does not depend on any outcome, selects the episode that counts.
    """
    chosen: dict[tuple[str, str | None], tuple[str, int]] = {}
    for row, (question, segment, name) in enumerate(zip(table.questions, table.segments, table.ids, strict=True)):
        key, turn = (question, segment if separate else None), (_hash(name), row)
        chosen[key] = min(chosen.get(key, turn), turn)
    return np.array(sorted(row for _, row in chosen.values()), dtype=np.int64)


def unseen(table: EpisodeTable, held: PolicyArtifact) -> EpisodeTable:
    """Return the questions of a table that did not make a policy."""
    return table.take(~among(table, frozenset(held.seen.training)))


def one_a_group(table: EpisodeTable, *, separate: bool = False, seed: int = 0) -> EpisodeTable:
    """Return the rows that `rows_a_group` draws; `drawn_from` has the number of questions that each was drawn from."""
    keys = _groups(table, separate=separate)
    many = Counter[tuple[str, str | None]]()
    for key, held in zip(keys, table.drawn_from.tolist(), strict=True):
        many[key] += held
    rows = rows_a_group(table, separate=separate, seed=seed)
    sizes = np.array([many[keys[row]] for row in rows.tolist()], dtype=np.int64)
    return replace(table.take(rows), drawn_from=sizes)


def rows_a_group(table: EpisodeTable, *, separate: bool = False, seed: int = 0) -> Ints:
    """Return one question of each group, drawn at random; with `separate` one of each group in each segment.

    Certificates are made from these rows, because questions of a group are not independent. A keyed hash of the
    questions decides the draw; it does not depend on any outcome or on the order of the rows. `table` has one row for
    each question (`once`), and its groups share no question (`tied`).
    """
    return one_of_each(_groups(table, separate=separate), labels=table.questions, seed=seed)


def _groups(table: EpisodeTable, *, separate: bool) -> list[tuple[str, str | None]]:
    """Return the unit of each row: its group, or its group within its segment."""
    return [(group, segment if separate else None) for group, segment in zip(table.groups, table.segments, strict=True)]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def places(names: Sequence[str | None], table: EpisodeTable) -> Ints:
    """Return the number of the promise that applies to each question, int64 (n,), if each promise is for a segment.

    The promise of the question's segment applies, else the promise named None, which is for all segments. If there is
    neither, the number is −1: no promise applies.
    """
    numbers = {name: number for number, name in enumerate(names)}
    found = {segment: of_segment(numbers, segment) for segment in set(table.segments)}
    place = {segment: -1 if number is None else number for segment, number in found.items()}
    return np.array([place[segment] for segment in table.segments], dtype=np.int64)


def among(table: EpisodeTable, questions: frozenset[str] | set[str]) -> Bools:
    """Return whether each row's question is among the given ones, bool (n,). They may be hashed (`house.directory`)."""
    there = (one in questions or _hash(one)[:16] in questions for one in table.questions)
    return np.fromiter(there if questions else (False for _ in table.questions), np.bool_, count=table.n)


def absent(table: EpisodeTable, questions: Iterable[str]) -> set[str]:
    """Return the given questions that no row of the table has."""
    return set(questions) - set(table.questions)


def selected(table: EpisodeTable, share: float, seed: int) -> Bools:
    """Return the rows for ordering a path, bool (n,): all rows of a share of the groups, drawn by the seed.

    Groups that share a question are drawn together, so that no question is on both sides. The result does not depend
    on the order of the rows.
    """
    if not 0 < share < 1:
        raise UsageError(f"The share of questions for ordering the path must lie between 0 and 1, not {share:g}.")
    held = clusters(table)
    names = drawn(held, seed)
    if len(names) < 2:
        raise UsageError(
            "All questions belong to one group, so none is left to calibrate on after ordering the thresholds."
        )
    chosen = set(names[: min(len(names) - 1, max(1, round(share * len(names))))])
    return np.fromiter((name in chosen for name in held), dtype=np.bool_, count=table.n)


def drawn(names: Iterable[str], seed: int) -> list[str]:
    """Return the distinct names in the random order of a seed: by a hash, independent of their given order."""
    return sorted(set(names), key=lambda name: _hash(f"{seed}|{name}"))


def tied(table: EpisodeTable) -> EpisodeTable:
    """Return the same rows, with groups that share a question merged.

    Call it on a whole log, before `once` leaves out rows: such a row may connect two groups.
    """
    return replace(table, groups=tuple(clusters(table)))


def clusters(table: EpisodeTable) -> list[str]:
    """Return for each row the name of its cluster: the first, in order, of the names of its groups.

    Groups that share a question, directly or through other groups, are one cluster. No split may divide a cluster.
    """
    parent: dict[str, str] = {group: group for group in table.groups}

    def root(group: str) -> str:
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    first: dict[str, str] = {}
    for question, group in zip(table.questions, table.groups, strict=True):
        one, other = sorted((root(first.setdefault(question, group)), root(group)))
        parent[other] = one
    return [root(group) for group in table.groups]


def data_sha256(table: EpisodeTable, *, separate: bool = False) -> str:
    """Return a hash of everything that a calibration reads from a table; it does not depend on the order of the rows.

    It covers questions, with `separate` their segments, answers and which of them are right, costs, steps, tokens,
    confidences, signals, numbers computed from the questions' texts, and the results of the walks. Steps, candidates
    and signals that no row has are left out, so that a log's other rows change nothing.
    """
    horizon = int(table.arrays.steps.max(initial=1))
    places = int(np.flatnonzero(table.arrays.present.any(axis=(0, 1))).max(initial=0)) + 1
    columns = dict(_columns(table, horizon, places))
    rows: list[bytes] = []
    for start in range(0, table.n, _CHUNK):
        some = slice(start, start + _CHUNK)
        block = np.concatenate([_bytes(column[some]) for column in columns.values()], axis=1)
        named = zip(table.questions[some], table.segments[some], strict=True)
        names = [canonical([question, segment if separate else None]) for question, segment in named]
        rows += [hashlib.sha256(name + row.tobytes()).digest() for name, row in zip(names, block, strict=True)]
    needs = [] if table.parents is None else [list(table.parents[:horizon])]
    head = canonical([horizon, places, list(columns), table.cost_known, *needs])
    return hashlib.sha256(head + b"".join(sorted(rows))).hexdigest()


def _columns(table: EpisodeTable, horizon: int, places: int) -> Iterator[tuple[str, NDArray[Any]]]:
    arrays = table.arrays
    yield "answer", renumbered(arrays.answer[:, :horizon, :places])
    yield "correct", arrays.correct[:, :horizon, :places]
    yield "cost", arrays.cost[:, :horizon]
    yield "steps", arrays.steps
    yield "complete", arrays.complete
    yield "confidence", table.confidence[:, :horizon, :places]
    for name, values in _shown(table):
        if not np.isnan(values).all():
            yield name, values[:, :horizon] if values.ndim > 1 else values
    if table.texts_known.any():
        yield "texts known", table.texts_known
    for name, walk in sorted(table.walks.items()):
        if walk.known.any():
            yield f"walk {name}", np.stack([walk.known, walk.right & walk.known], axis=1)
    if table.labels is not None:
        yield "drawn", table.labels.drawn


def _shown(table: EpisodeTable) -> Iterator[tuple[str, Floats]]:
    """Yield a policy's inputs other than answers and confidences, NaN if unknown."""
    yield from ((f"signal {name}", values) for name, values in sorted(table.signals.items()))
    yield from ((f"asked {name}", values) for name, values in sorted(table.asked.items()))
    yield "tokens", table.tokens
    if not table.cost_known:  # otherwise it repeats the cost
        yield "paid", table.paid


def _bytes(column: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a column as bytes, one row per question: little-endian, with a single NaN and a single zero."""
    plain = column + 0.0 if column.dtype.kind == "f" else column
    if plain.dtype.kind == "f":
        plain = np.where(np.isnan(plain), np.nan, plain)
    fixed = np.ascontiguousarray(plain.reshape(len(plain), -1), dtype=plain.dtype.newbyteorder("<"))
    return fixed.view(np.uint8)


# --- Folds for cross-fitting: the model that scores a question has seen neither the question nor its group ---

FOLDS = 5
"""The number of folds wherever a policy, or a part of it, is fitted without the questions that judge it."""


def folds(table: EpisodeTable, k: int, seed: int) -> Ints:
    """Return the fold of each row, int64 (n,), in 0..k − 1.

    Groups that share a question form a cluster (`samples.clusters`), and each cluster is in one fold. The largest
    clusters are assigned first, each to the fold with the fewest rows so far, so that the sizes of folds differ by at
    most the size of the largest cluster. A hash of seed and name orders clusters of one size; the order of the rows and
    the names of other groups do not matter. If there are fewer than k clusters, there are as many folds as clusters.
    """
    if k < 2:
        raise UsageError(f"Cross-fitting takes at least 2 folds, not {k}.")
    named = clusters(table)
    rows = Counter(named)
    if len(rows) < 2:
        raise UsageError("All questions belong to one group, so they cannot be divided for cross-fitting.")
    order = sorted(rows, key=lambda name: (-rows[name], _hash(f"fold|{seed}|{name}")))
    filled = [0] * min(k, len(rows))
    fold: dict[str, int] = {}
    for name in order:
        fold[name] = filled.index(min(filled))
        filled[fold[name]] += rows[name]
    return np.fromiter((fold[name] for name in named), dtype=np.int64, count=table.n)


# --- the doubt about a step: the signal of a log that measures it, and the conversion ---


@dataclass(frozen=True, slots=True)
class Doubt:
    """A signal, and how to convert it to doubt: higher means more doubt, +inf means unknown."""

    signal: str
    name: str
    convert: Callable[[Floats], Floats]

    @property
    def sign(self) -> float:
        """1 if a higher signal means more doubt about the answer, −1 if it means less.

        For a verdict, the signal is P(the answer is right). A verdict that is confident that the answer is wrong has no
        doubt in `read`, but this sign does not account for that.
        """
        less, more = self.convert(np.array([0.6, 0.9])).tolist()
        return 1.0 if more > less else -1.0

    def read(self, table: EpisodeTable) -> Floats:
        """Return the doubt at each step, float64 (n, T)."""
        values = table.signals.get(self.signal)
        if values is None:
            return np.full(table.arrays.cost.shape, np.inf)
        doubt = self.convert(values)
        return np.where(np.isnan(doubt), np.inf, doubt)

    def chosen(self, table: EpisodeTable) -> Ints:
        """Return the candidate that a step's verdict favours, int64 (n, T), −1 if there is none.

        After a "no" it is the last candidate, the guide's; after a "yes", or without a verdict, the first. In a step
        with one candidate it is that candidate.
        """
        present = table.arrays.present
        first = np.where(present.any(axis=2), present.argmax(axis=2), -1)
        last = np.where(present.any(axis=2), present.shape[2] - 1 - present[:, :, ::-1].argmax(axis=2), -1)
        p_yes = table.signals.get("p_yes")
        says_no = np.zeros(first.shape, dtype=np.bool_) if p_yes is None else p_yes < 0.5
        return np.asarray(np.where(says_no, last, first), dtype=np.int64)


def _judged(p_yes: Floats) -> Floats:
    """Return −ln max(p, 1 − p), exactly as `policies.threshold.uncertainty`; numpy's logarithm may differ in a bit."""
    sure = np.maximum(p_yes, 1.0 - p_yes)
    return -np.fromiter(map(math.log, sure.ravel().tolist()), np.float64, count=sure.size).reshape(sure.shape)


def _complement(values: Floats) -> Floats:
    return 1.0 - values


KNOWN = (
    Doubt("p_yes", "verdict", _judged),
    Doubt("reply_mean_logprob", "log-prob", operator.neg),
    Doubt("self_check", "self-check", _complement),
    Doubt("answer_min_logprob", "answer log-prob", operator.neg),
    Doubt("gate", "gate", _complement),
    Doubt("judge_share", "judge's votes", _complement),
    Doubt("answer_share", "share of this answer", _complement),
)
"""The known kinds, in the order of preference. If both models have the signal, the base's own is "base_…"."""


def doubt_of(table: EpisodeTable) -> Doubt | None:
    """Return the first known kind of doubt whose signal a log has; None if it has none."""
    there = _there(table)
    for doubt in KNOWN:
        for signal in (doubt.signal, f"base_{doubt.signal}"):
            if signal in there:
                return replace(doubt, signal=signal)
    others = [name for name in there if name.endswith(("uncertainty", "entropy"))]
    return Doubt(others[0], others[0].replace("_", " "), np.asarray) if others else None


def only_unknown(table: EpisodeTable) -> bool:
    """Whether numbers of the first step vary (tools offered, calls made), but none is known to measure doubt."""
    first = [values[:, 0] for values in table.signals.values()]
    known = [values[~np.isnan(values)] for values in first]
    return doubt_of(table) is None and any(values.size and values.min() < values.max() for values in known)


def why_no_doubt(table: EpisodeTable) -> str | None:
    """Return why `doubt_of` finds no doubt in a log, with the log's signals named; None if it finds one."""
    if doubt_of(table) is not None:
        return None
    there = _there(table)
    if not there:
        return "the log has no signals"
    known = ", ".join(doubt.signal for doubt in KNOWN)
    listed = f"the signal {there[0]} is" if len(there) == 1 else f"the signals {', '.join(there)} are"
    return (
        f"{listed} of no known kind, so it is unknown whether a higher value means more doubt. Known are {known}, and "
        "any name that ends with uncertainty or entropy, whose higher values mean more doubt"
    )


def _there(table: EpisodeTable) -> list[str]:
    """Return the signals with a value in the log, sorted."""
    return [name for name, values in sorted(table.signals.items()) if not np.isnan(values).all()]


PER_RUNG = "one threshold per rung"
"""The name of the candidate and of the baseline."""


def rung_doubt(table: EpisodeTable) -> Doubt | None:
    """Return the doubt on which a ladder of three steps or more sets its thresholds; None if the log has none."""
    arrays = table.arrays
    return doubt_of(table) if table.n and arrays.horizon > 2 and arrays.answer.shape[2] == 1 else None
