"""Turn rows, one per call, into a `Log` for each data set, with the facts about its calls.

An episode that cannot be judged is left out and counted, for example one with an answer of unknown truth, or without a
step that others read. So is a recorded baseline if the rows do not show what it served. A missing single call was not
bought, or was refused: its result is unknown. Null means unknown: it never counts as wrong, or as a cost of 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from cascade import table
from cascade.conformal.scope import LENGTHS
from cascade.episodes.baselines import baseline_of
from cascade.episodes.steps import Bought, first_of, problems_of, reads_before, summed, usable
from cascade.errors import UsageError
from cascade.logs import schema
from cascade.logs.columns import Calls, Row, calls_of
from cascade.logs.schema import Dropped
from cascade.table import Baseline, Bools, Floats, Ints, Log, Node, Reference
from cascade.text import counted
from cascade.types import ACT, BASE_ONLY, GUIDE_ONLY, LAST_ONLY

Names: TypeAlias = Mapping[str, tuple[str, ...]]
Parents: TypeAlias = tuple[tuple[int, ...], ...]


class Caller(NamedTuple):
    """A model that is asked in a step, in a role ("base", "guide", a rung), and the purpose of the call if known."""

    step: int
    role: str
    model: str
    purpose: str | None = None


class Truth(NamedTuple):
    """What "right" means without a log's labels: equal to the reference's output, or judged to be no loss.

    Attributes:
        reference: the model, as the log calls it, or "the guide".
        comparator: the matcher that says when two outputs are the same, as `matching.get_matcher` takes it.
        kind: the promise for which people judged the outputs that differ; None if there are no judgements.
        rate: the share of the requests that was drawn for people to judge.
        cautions: notes on a comparator that was chosen by default, a sentence or two each.
    """

    reference: str
    comparator: str
    kind: str | None = None
    rate: float = 1.0
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a log's calls, besides its numbers, that certificates and notices state.

    Attributes:
        sources: the names of the answers' places in a step ("base", "guide"; "answer" in a ladder).
        models: the models asked in each role, sorted; calls of an unknown model are left out.
        step_models: for a ladder, the only model that answered each step, None if several did or if unknown; empty for
            other plans.
        callers: the only caller in each step, not counting an agent's own calls; None if there were several.
        parents: the steps, from 1, that each step reads; None if the log does not say.
        echoes: by model, the names in its replies, sorted; models without such names are left out.
        reference: the recorded walk that is the reference; None if the log has none.
        truth: what "right" means; None if labels say it.
        unjudged: how many episodes are left out because an answer has no judgement.
    """

    sources: tuple[str, ...]
    models: Names
    step_models: tuple[str | None, ...]
    callers: tuple[Caller | None, ...]
    parents: Parents | None
    echoes: Names
    reference: str | None = None
    truth: Truth | None = None
    unjudged: int = 0

    @property
    def cascade(self) -> str:
        """The places and models, in words; logs with different words are of different cascades."""
        listed = [(role, " or ".join(names)) for role, names in self.models.items()]
        models = ", ".join([name if role == name else f"{role} {name}" for role, name in listed])
        steps = f"{counted(len(self.callers), 'step')} of {' and '.join(self.sources)}"
        return f"{steps} ({models})" if models else steps

    @property
    def order(self) -> str:
        """The order of a ladder's models, and what its steps read, in words."""
        order = ", ".join([name or "any" for name in self.step_models])
        reads = "; ".join([", ".join(map(str, steps)) or "none" for steps in self.parents or ()])
        return (f", in the order {order}" if any(self.step_models) else "") + (f", reading {reads}" if reads else "")


class Dataset(NamedTuple):
    """A data set of a log: its requests, the facts about its calls, and what is left out of the whole log."""

    log: Log
    facts: Facts
    dropped: Dropped


# --- the episodes of one data set ---


def datasets_of(
    rows: Iterable[Row] | Calls,
    dropped: Dropped | None = None,
    truths: Mapping[str, Truth] | None = None,
    drawn: Callable[[str], bool] | None = None,
) -> list[Dataset]:
    """Return the data sets of a log, in the order of their first rows.

    Args:
        rows: rows as in `logs.schema`, in any order, read once and stored only as numbers; or a log's columns.
        dropped: counts every episode, and every walk of an episode, that is left out.
        truths: by data set, what "right" means in the rows without their labels.
        drawn: whether a request, by its id, was drawn for people to judge. An answer of unknown truth is then one
            that nobody judged, and its episode is kept.

    Raises:
        UsageError: no episode is left.

    >>> blank = dict.fromkeys(schema.COLUMNS, None) | {"episode_id": "a", "candidate": 0, "correct": True}
    >>> (data,) = datasets_of([blank | {"step": 1, "answer": "Danube"}, blank | {"step": 2, "answer": "The Danube."}])
    >>> data.log.answer.tolist(), data.log.cost_nano_usd.tolist(), data.log.nodes[1].name
    ([[0, 0]], [[-1, -1]], 'step 2')
    """
    calls, left_out = rows if isinstance(rows, Calls) else calls_of(rows), Dropped() if dropped is None else dropped
    bought, datasets = Bought.of(calls), list[Dataset]()
    problems = problems_of(calls, bought, unjudged=drawn is not None)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(calls.episodes.dataset))}
    sets = np.array([numbers[name] for name in calls.episodes.dataset])
    for name, number in numbers.items():
        before = left_out.rows[schema.UNJUDGED]
        chosen = np.flatnonzero(sets == number)
        chosen = usable(calls, bought, chosen, problems, left_out)
        if chosen.size:
            log, facts = _CallTable(name, calls, bought, chosen).read(left_out, drawn)
            facts = replace(facts, truth=(truths or {}).get(name), unjudged=left_out.rows[schema.UNJUDGED] - before)
            datasets.append(Dataset(log, facts, left_out))
    if not datasets:
        listed = ["There is no episode to judge in this log."]
        if left_out.count:
            listed += [f"{left_out.describe()}."]
            listed += [_JUDGED if calls.has_gold else _NO_GOLD] if schema.UNJUDGED in left_out.rows else []
        raise UsageError(" ".join(listed))
    return datasets


_JUDGED = "To judge them by the accepted answers in the log (column gold), add --matcher exact."
_NO_GOLD = "Add the accepted answers (column gold) for --matcher exact, or say which are right (column correct)."


class _CallTable:
    """The usable episodes of one data set as rows, their steps' places as columns."""

    def __init__(self, name: str, calls: Calls, bought: Bought, usable: Ints) -> None:
        self.name, self.calls, self.bought, self.usable = name, calls, bought, usable
        self.n, heads = usable.size, calls.episodes
        row_of = np.full(len(heads.name), -1)
        row_of[usable] = np.arange(self.n)
        self.row_of, episode = row_of, calls.columns["episode"]
        self.names = heads.name[usable].tolist()
        self.ids = tuple([request or name for request, name in zip(heads.request[usable], self.names, strict=True)])
        self.distinct = len({*self.ids}) == self.n
        self.every = bought.every[row_of[episode[bought.every]] >= 0]
        self.is_told = bool(calls.flags["is_told"][self.every].any())
        self.steps = np.flatnonzero(row_of[bought.episode] >= 0)
        mine = row_of[bought.episode[bought.answers_in]] >= 0
        self.answer, self.answers_in = bought.answer[mine], bought.answers_in[mine]
        self.source, self.step = calls.columns["source"][self.answer], bought.step[self.answers_in]
        self.width, self.own, self.place = self._placed(bought.place[mine])
        self.row = row_of[bought.episode[self.answers_in]]
        logged = np.full(self.n, -1)
        np.maximum.at(logged, row_of[episode[self.every]], calls.columns["horizon"][self.every])
        self.horizon = int(max(logged.max(), bought.step[self.steps].max(), 1))
        self.horizons = np.where(logged > 0, logged, self.horizon)

    def _placed(self, place: Ints) -> tuple[int, Ints, Ints]:
        """Return how many places a step has, the place of each source, and that of each answer.

        Each source has the same place in every step, even where the base gave no answer and the guide's came first.
        If sources share a place, as a ladder's models do, or one source fills several, no source has a place of its
        own, and the answers keep theirs.
        """
        width, own = int(place.max(initial=0)) + 1, np.full(len(self.calls.names) + 1, -1)
        np.maximum.at(own, self.source, place)
        pairs = self.answers_in * (len(own) + 1) + self.source
        if not (_all_differ(pairs) and _all_differ(own[own >= 0])):
            return width, np.full_like(own, -1), place
        return width, own, own[self.source]

    def read(self, dropped: Dropped, drawn: Callable[[str], bool] | None) -> tuple[Log, Facts]:
        heads, kinds = self.calls.episodes, self.calls.episodes.kind[self.usable].tolist()
        if not self.distinct:  # equal requests have the kind of the first
            kinds = map(dict(zip(reversed(self.ids), reversed(kinds), strict=True)).__getitem__, self.ids)
        comparable, facts = self._comparable(), self._facts()
        every = self.n == len(heads.name)  # then they are all usable, in the same order
        features = {name: values if every else values[self.usable] for name, values in heads.features.items()}
        log = Log(
            name=self.name,
            nodes=_nodes(facts),
            ids=self.ids,
            groups=tuple([group or name for group, name in zip(heads.group[self.usable], self.ids, strict=True)]),
            **self._columns(comparable=bool(comparable.any())),
            features={name: values for name, values in features.items() if not np.isnan(values).all()},
            segments=tuple(heads.segment[self.usable].tolist()),
            kinds=tuple(kinds),
            drawn=None if drawn is None else np.array([drawn(name) for name in self.ids], dtype=np.bool_),
            texts_known=comparable,
            hidden=frozenset({table.COST} if self.is_told else ()),
        )
        baselines, chosen, reference = self._baselines(log, dropped)
        return replace(log, baselines=baselines, reference=reference), replace(facts, reference=chosen)

    def _comparable(self) -> Bools:
        """Return whether each episode's answers can be compared by their numbers, bool (n,).

        They can if none is a hash and half of the data set's right answers and half of its wrong ones have a text; an
        answer without a text then differs from all others. With fewer texts, all right answers count as equal, which
        reveals the truth; so do texts of only the wrong or only the right answers, and so do equal answers if a model
        was told whether it was right (`schema.is_told`) and then kept its answer.
        """
        hashed, right = self.calls.flags["hashed"][self.answer], self.calls.right[self.answer] == 1
        has_text = (self.calls.columns["key"][self.answer] >= 0) & ~hashed
        if self.is_told or any(2 * has_text[side].sum() < side.sum() for side in (right, ~right)):
            return np.zeros(self.n, dtype=np.bool_)
        return np.asarray(np.bincount(self.row[hashed], minlength=self.n) == 0)

    def _facts(self) -> Facts:
        """Return the facts about a data set's calls, except its reference."""
        column, names = self.calls.columns, self.calls.names
        every = self.every[column["model"][self.every] >= 0]
        listed = ("step", "source", "model", "purpose")
        numbers = _once(*[column[name][every] for name in listed])
        callers = {
            Caller(step, names[source], names[model], None if purpose < 0 else names[purpose])
            for step, source, model, purpose in numbers
        }
        alone = _sets((caller.step, caller) for caller in callers if caller.purpose != ACT)
        answering = _sets((at, names[source]) for at, source in _once(self.place, self.source))
        sources = tuple([_only(answering[at]) or "answer" for at in range(self.width)])
        if sources == ("answer",):  # a ladder: each model is its own role, even if the log calls it "base" or "guide"
            callers = {caller._replace(role=caller.model) for caller in callers}
        models = _sets((caller.step, caller.model) for caller in callers)
        ladder, steps = all(caller.role == caller.model for caller in callers), range(1, self.horizon + 1)
        echoed = every[column["echo"][every] >= 0]
        echoes = _once(column["model"][echoed], column["echo"][echoed])
        return Facts(
            sources=sources,
            models=_names((caller.role, caller.model) for caller in callers),
            step_models=tuple([_only(models[step]) for step in steps]) if ladder else (),
            callers=tuple([_only(alone[step]) for step in steps]),
            parents=self._parents(),
            echoes=_names((names[model], names[echo]) for model, echo in echoes),
        )

    def _parents(self) -> Parents | None:
        """Return the steps that each step reads; None if the log does not say so for any."""
        numbers = self.bought.parents[self.steps]
        if not (numbers >= 0).any():
            return None
        pairs = _once(self.bought.step[self.steps], numbers)
        reads = {step: reads_before(self.calls, step, number) for step, number in pairs}
        return tuple([reads.get(step, (step - 1,) if step > 1 else ()) for step in range(1, self.horizon + 1)])

    def _columns(self, *, comparable: bool) -> dict[str, Any]:
        """Return the columns of the nodes.

        A call's cost is booked on the node whose answer it is for, else on the last of its step, which has the signals.
        """
        calls, column, width = self.calls, self.calls.columns, self.width
        shape = self.n, self.horizon * width
        row_of_step, step = self.row_of[self.bought.episode], self.bought.step
        node = (self.step - 1) * width + self.place
        answer = self._numbered(shape, node, comparable=comparable)  # before the other columns take memory
        right, confidence = np.full(shape, np.nan), np.full(shape, np.nan)
        right[self.row, node] = calls.right[self.answer]
        confidence[self.row, node] = calls.confidence[self.answer]
        bought = np.zeros((self.n, self.horizon), dtype=np.bool_)
        bought[row_of_step[self.steps], step[self.steps] - 1] = True
        mine = np.flatnonzero(row_of_step[self.bought.step_of] >= 0)
        paid, of_step = self.bought.calls[mine], self.bought.step_of[mine]
        row, last = row_of_step[of_step], step[of_step] * width - 1
        own, at = self.own[column["source"][paid]], column["candidate"][paid]
        at = np.where(own >= 0, own, np.where(at < 0, np.where(calls.flags["answers"][paid], 0, width - 1), at))
        at += (step[of_step] - 1) * width
        cost = summed(column["cost"][paid], row * shape[1] + at, shape[0] * shape[1]).reshape(shape)
        signals = dict[str, Floats]()
        for name, values in sorted(calls.signals.items()):
            recorded = np.flatnonzero(~np.isnan(values[paid]))[::-1]  # the first of a step counts
            if recorded.size:
                signals[name] = np.full(shape, np.nan)
                signals[name][row[recorded], last[recorded]] = values[paid[recorded]]
        for name, counts in LENGTHS.items():
            # The length of a run until a model is right shows whether it was.
            tokens = summed(column[counts][paid], of_step, step.size)[self.steps]
            if name not in signals and not self.is_told and (tokens >= 0).any():
                signals[name] = np.full(shape, np.nan)
                ends = row_of_step[self.steps], step[self.steps] * width - 1
                signals[name][ends] = np.where(tokens >= 0, tokens, np.nan)
        return {
            "answer": answer,
            "right": right,
            "cost_nano_usd": cost,
            "bought": np.repeat(bought, width, axis=1),
            "complete": (np.arange(1, self.horizon + 1) * bought).max(axis=1) >= self.horizons,
            "confidence": confidence,
            "signals": signals,
        }

    def _numbered(self, shape: tuple[int, int], node: Ints, *, comparable: bool) -> Ints:
        """Return a number for each answer, equal for equal answers of a request, in the order of the nodes.

        An answer without a text differs from all others; if answers cannot be compared, all right ones are equal.
        """
        key = self.calls.columns["key"][self.answer]
        alike = (self.calls.right[self.answer] == 1) & (not comparable)
        every = int(key.max(initial=-1)) + 2  # one number that no text has, and above it one for each node
        codes, answer = np.full(shape, -1), np.full(shape, -1)
        codes[self.row, node] = np.where(key >= 0, key, np.where(alike, every - 1, every + node))
        used = np.zeros(self.n, dtype=np.int64)
        for at in range(shape[1]):
            same = (codes[:, :at] == codes[:, at : at + 1]) & (codes[:, :at] >= 0)
            before = same.any(axis=1)
            earlier = answer[np.arange(self.n), same.argmax(axis=1)] if at else used
            new = ~before & (codes[:, at] >= 0)
            answer[:, at] = np.where(before, earlier, np.where(new, used, -1))
            used += new
        return answer

    # --- recorded baselines, and the reference among them ---

    def _baselines(self, log: Log, dropped: Dropped) -> tuple[dict[str, Baseline], str | None, Reference | None]:
        """Return the baselines, and the reference with its name: the guide's own walk, else a ladder's last model.

        Two baselines follow from the steps: asking only the first model, and only a ladder's last.
        """
        ways = self._walks(log, dropped)
        first = np.full(self.horizon + 1, -1)  # the source in the first place of each step, if it is the only one
        for step, source in _once(self.step[self.place == 0], self.source[self.place == 0]):
            first[step] = source if first[step] == -1 else -2
        if BASE_ONLY not in ways:
            ways[BASE_ONLY] = self._by_itself(np.ones(self.n, dtype=np.int64), first)
        single = self.horizon > 1 and _all_differ(self.answers_in)
        if GUIDE_ONLY not in ways and single:
            ways[LAST_ONLY] = self._by_itself(self.horizons, first)
        baselines = {name: way for name, (way, _) in ways.items() if way.known.any()}
        chosen = next((name for name in _REFERENCES if name in baselines), None)
        if chosen is None:
            return baselines, None, None
        way, leaves = baselines.pop(chosen), ways[chosen][1]
        assert log.texts_known is not None  # noqa: S101 - it is a log of rows
        right = np.where(way.known & (log.texts_known | (leaves <= 2)), way.right, np.nan)
        is_last = chosen == LAST_ONLY or _ends_in(log, way)
        return baselines, chosen, Reference(right, np.where(way.known, way.cost_nano_usd, -1), is_last)

    def _by_itself(self, step: Ints, first: Ints) -> tuple[Baseline, Ints]:
        """Return the result of asking only the first place's model of one step per episode, and the answers it keeps.

        Only its own calls count as cost. Where they are not recorded, it is unknown. A reply without answer keeps none.
        """
        calls, row_of_step = self.calls, self.row_of[self.bought.episode]
        answer, there = np.full(self.n, -1), np.zeros(self.n, dtype=np.bool_)
        gives = (self.place == 0) & (self.step == step[self.row])
        answer[self.row[gives]] = self.answer[gives]
        mine = self.steps[self.bought.step[self.steps] == step[row_of_step[self.steps]]]
        there[row_of_step[mine]] = True
        source = np.where(answer >= 0, calls.columns["source"][answer], first[np.minimum(step, self.horizon)])
        row = row_of_step[self.bought.step_of]
        in_step = (row >= 0) & (self.bought.step[self.bought.step_of] == step[row])
        in_step &= calls.columns["source"][self.bought.calls] == source[row]
        own, row = self.bought.calls[in_step], row[in_step]
        replied = np.bincount(row[calls.flags["replied"][own]], minlength=self.n) > 0
        known = there & (source >= 0) & ((answer >= 0) | replied)
        size, truth = (answer >= 0).astype(np.int64), np.where(answer >= 0, calls.right[answer], 0.0)
        cost = np.where(known, summed(calls.columns["cost"][own], row, self.n), -1)
        size, truth = np.where(known, size, 0), np.where(known, truth, np.nan)
        return Baseline(known, known & (truth == 1), truth, cost, known.astype(np.int64), size), size

    def _walks(self, log: Log, dropped: Dropped) -> dict[str, tuple[Baseline, Ints]]:
        """Return the recorded walks by name, with the number of answers that each keeps per episode."""
        walk, row, unjudged = (
            self.calls.columns["walk"],
            self.row_of[self.calls.columns["episode"]],
            log.drawn is not None,
        )
        walks: dict[str, tuple[Baseline, Ints]] = {}
        for name, number in sorted((self.calls.names[number], number) for (number,) in _once(walk[walk >= 0])):
            at = np.flatnonzero((row >= 0) & (walk == number))
            if at.size:
                walks[name] = baseline_of(name, self.calls, at, row[at], self.names, unjudged, dropped)
        return walks


def _all_differ(values: Ints) -> bool:
    """Return whether no value occurs twice. `np.unique` takes 20 times as long for a million values."""
    return bool(np.diff(np.sort(values)).all())


def _once(*columns: Ints) -> list[list[int]]:
    """Return the distinct rows of the columns, sorted."""
    first, _ = first_of(*columns)
    rows: list[list[int]] = np.stack([column[first] for column in columns], axis=1).tolist()
    return rows


_K = TypeVar("_K")
_V = TypeVar("_V")


def _sets(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, set[_V]]:
    """Return the set of second values for each first value."""
    values: dict[_K, set[_V]] = defaultdict(set)
    for first, second in pairs:
        values[first].add(second)
    return values


def _names(pairs: Iterable[tuple[str, str]]) -> Names:
    """Return the distinct second names for each first name, both sorted."""
    return {first: tuple(sorted(names)) for first, names in sorted(_sets(pairs).items())}


def _only(values: Collection[_V]) -> _V | None:
    """Return the only value; None if there are several, or none."""
    return next(iter(values)) if len(values) == 1 else None


def _nodes(facts: Facts) -> tuple[Node, ...]:
    """Return the nodes: the places of each step. What a step reads is known only if steps are single calls."""
    nodes = []
    for step, caller in enumerate(facts.callers):
        if len(facts.sources) > 1:
            nodes += [
                Node(f"round {step + 1} {name}", step, _only(facts.models.get(name, ()))) for name in facts.sources
            ]
            continue
        reads = None if facts.parents is None else tuple([parent - 1 for parent in facts.parents[step]])
        model = facts.step_models[step] if facts.step_models else None if caller is None else caller.model
        name = f"step {step + 1}" if caller is None else caller.role
        nodes.append(Node(name, step, model, () if reads is None and facts.step_models else reads))
    if len({node.name for node in nodes}) < len(nodes):
        nodes = [node._replace(name=f"{node.name} {number + 1}") for number, node in enumerate(nodes)]
    return tuple(nodes)


def joined(datasets: Sequence[Dataset]) -> Dataset:
    """Return several data sets of one cascade as one.

    Raises:
        UsageError: there is none, or they are of different cascades, or are compared with different references.
    """
    if not datasets:
        raise UsageError("There is no episode in this log.")
    first, facts = datasets[0], [data.facts for data in datasets]
    if len(datasets) == 1:
        return first
    ladders = [fact.step_models for fact in facts if fact.step_models]
    models = [{name for name in names if name is not None} for names in zip(*ladders, strict=False)]
    if len({(fact.cascade, fact.parents) for fact in facts}) > 1 or any(len(names) > 1 for names in models):
        listed = "; ".join([f"{data.log.name}: {data.facts.cascade}{data.facts.order}" for data in datasets])
        advice = "Choose data sets of one with --where dataset=NAME"
        raise UsageError(
            f"The log holds data sets of different cascades, but a certificate covers one. {advice}: {listed}"
        )
    if len({fact.truth for fact in facts}) > 1:
        raise UsageError("The data sets are compared with different references: choose one with --where dataset=NAME.")
    together = replace(
        first.facts,
        step_models=tuple([_only(names) for names in models]),
        callers=tuple([_only({*step}) for step in zip(*[fact.callers for fact in facts], strict=True)]),
        echoes=_names((model, name) for fact in facts for model, names in fact.echoes.items() for name in names),
        reference=next((name for name in _REFERENCES if name in {fact.reference for fact in facts}), None),
        unjudged=sum(fact.unjudged for fact in facts),
    )
    # If the references differ, the guide's own counts; it is unknown for data sets in which it was not asked.
    logs = [
        data.log if data.facts.reference == together.reference else replace(data.log, reference=None)
        for data in datasets
    ]
    log = table.joined(logs, ", ".join([log.name for log in logs]))
    return Dataset(replace(log, nodes=_nodes(together)), together, first.dropped)


_REFERENCES = (GUIDE_ONLY, LAST_ONLY)
"""The walks that can be the reference; the first of them is used."""


def _ends_in(log: Log, way: Baseline) -> bool:
    """Return whether the last of several single calls is the guide: as expensive, and right on the same requests."""
    if log.width < 2 or log.width > int(log.steps[-1]) + 1:
        return False
    rows = way.known & log.bought[:, -1]
    right = (log.right[:, -1] == 1) == (way.right == 1)
    equal = right & (np.maximum(log.cost_nano_usd[:, -1], 0) == np.maximum(way.cost_nano_usd, 0))
    return bool(rows.any() and equal[rows].all())
