"""Rows become logs: one row a call goes in, a `Log` for each data set comes out, with the facts about its calls.

An episode that cannot be judged is left out and counted: an answer without truth, a missing step that others read. So
is a recorded baseline of which the rows do not say what it served. A single call that is missing was not bought, or was
refused: what it would have brought is unknown. A null is unknown: it never counts as wrong, nor a cost as 0.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cascade import table
from cascade.conformal.scope import LENGTHS, RequestKind
from cascade.episodes.episode import (
    DOUBLED,
    Caller,
    Episode,
    LoggedCall,
    Names,
    Parents,
    Row,
    answer_name,
    total_of,
)
from cascade.errors import UsageError
from cascade.logs import schema
from cascade.logs.schema import Dropped
from cascade.table import Baseline, Bools, Log, Node, Reference
from cascade.types import ACT


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
    """What certificates and notices say about the calls of a log, beside its numbers.

    Attributes:
        sources: the names of the answers' places in a step ("base", "guide"; "answer" in a ladder).
        models: the models asked in each role, sorted; calls of an unknown model are left out.
        step_models: of a ladder, the only model that answered each step, None if several did or if unknown; empty for
            other plans.
        callers: who alone was asked in each step, an agent's own calls apart; None where several were.
        parents: the steps, from 1, that each step reads; None if the log does not say.
        echoes: by model, the names in its replies, sorted; models without such names are left out.
        kinds: the kind of each request (`conformal.scope`) by its id; None if unknown.
        spelled: by the id of each request whose text is known, the hashes of its spellings.
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
    kinds: Mapping[str, RequestKind | None]
    spelled: Names
    reference: str | None = None
    truth: Truth | None = None
    unjudged: int = 0

    @property
    def cascade(self) -> str:
        """The places and models, in words; two logs with other words are of different cascades."""
        listed = [(role, " or ".join(names)) for role, names in self.models.items()]
        models = ", ".join([name if role == name else f"{role} {name}" for role, name in listed])
        steps = f"{len(self.callers)} steps of {' and '.join(self.sources)}"
        return f"{steps} ({models})" if models else steps

    @property
    def order(self) -> str:
        """The order of a ladder's models, and what its steps read, in words."""
        order = ", ".join([name or "any" for name in self.step_models])
        reads = "; ".join([", ".join(map(str, steps)) or "none" for steps in self.parents or ()])
        return (f", in the order {order}" if any(self.step_models) else "") + (f", reading {reads}" if reads else "")


class Read(NamedTuple):
    """A data set of a log: its requests, the facts about its calls, and what is left out of the whole log."""

    log: Log
    facts: Facts
    dropped: Dropped


# --- the episodes of one data set ---


def reads_of(
    rows: Iterable[Row],
    dropped: Dropped | None = None,
    truths: Mapping[str, Truth] | None = None,
    drawn: Callable[[str], bool] | None = None,
) -> list[Read]:
    """Return each data set of a log, in the order of their first rows.

    Args:
        rows: as in `logs.schema`, in any order; read once, and only their numbers are stored.
        dropped: counts every episode, and every walk of an episode, that is left out.
        truths: by data set, what "right" means in the rows without their labels.
        drawn: whether a request, by its id, was drawn for people to judge. An answer without truth is then one that
            nobody judged, and its episode stays.

    Raises:
        UsageError: no episode is left.

    >>> blank = dict.fromkeys(schema.COLUMNS, None) | {"episode_id": "a", "candidate": 0, "correct": True}
    >>> (read,) = reads_of([blank | {"step": 1, "answer": "Danube"}, blank | {"step": 2, "answer": "The Danube."}])
    >>> read.log.answer.tolist(), read.log.cost_nano_usd.tolist(), read.log.nodes[1].name
    ([[0, 0]], [[-1, -1]], 'step 2')
    """
    episodes: dict[str, dict[str, Episode]] = defaultdict(lambda: defaultdict(Episode))
    left_out, gold = Dropped() if dropped is None else dropped, False
    for row in rows:
        if row["walk"] != schema.CUT:  # that is money spent, and no part of an episode
            gold = gold or bool(row.get("gold"))
            episodes[row["dataset"] or "log"][row["episode_id"]].add(row)
    reads = []
    for dataset, of_dataset in episodes.items():
        before = left_out.rows[schema.UNJUDGED]
        usable = _usable(of_dataset, left_out, unjudged=drawn is not None)
        if usable:
            log, facts = _read(dataset, usable, left_out, drawn)
            facts = replace(facts, truth=(truths or {}).get(dataset), unjudged=left_out.rows[schema.UNJUDGED] - before)
            reads.append(Read(log, facts, left_out))
    if not reads:
        listed = ["There is no episode to judge in this log."]
        if left_out.count:
            listed += [f"{left_out.describe()}."]
            listed += [] if set(left_out.rows) == {DOUBLED} else [_JUDGED if gold else _NO_GOLD]
        raise UsageError(" ".join(listed))
    return reads


_JUDGED = "A matcher judges them by the accepted answers that are logged (column gold): --matcher exact."
_NO_GOLD = "Add the accepted answers (column gold), by which --matcher exact judges, or say which are right (correct)."


def _usable(episodes: Mapping[str, Episode], dropped: Dropped, *, unjudged: bool) -> dict[str, Episode]:
    """Return the episodes that can be judged and whose steps read the same as in the first of them; count the rest."""
    reads_by_step: dict[int, tuple[int, ...]] = {}
    usable = dict[str, Episode]()
    for name, episode in episodes.items():
        reason = episode.problem(name, unjudged=unjudged)
        reads = {step: episode.reads(step) for step in episode.steps}
        if reason is None and any(reads_by_step.get(step, steps) != steps for step, steps in reads.items()):
            reason = "an episode with a step that depends on other steps than in other episodes"
        if reason is None:
            reads_by_step |= reads
            usable[name] = episode
        else:
            dropped.drop(reason, name)
    return usable


def _read(
    dataset: str, episodes: Mapping[str, Episode], dropped: Dropped, drawn: Callable[[str], bool] | None
) -> tuple[Log, Facts]:
    listed = list(episodes.values())
    ids = tuple([episode.request or name for name, episode in episodes.items()])
    width, own = _placed(listed)
    steps = range(1, 1 + max(max(episode.horizon or 1, *episode.steps) for episode in listed))
    comparable = _comparable(listed)
    facts = _facts(listed, ids, width, steps)
    names = dict.fromkeys(name for episode in listed for name in episode.features)
    log = Log(
        name=dataset,
        nodes=_nodes(facts),
        ids=ids,
        groups=tuple([episode.group or name for name, episode in episodes.items()]),
        **_columns(listed, len(steps), width, own, comparable=bool(comparable.any())),
        features={name: np.array([episode.features.get(name, math.nan) for episode in listed]) for name in names},
        segments=tuple([episode.segment for episode in listed]),
        drawn=None if drawn is None else np.array([drawn(name) for name in ids], dtype=np.bool_),
        texts_known=comparable,
        revealing=any(episode.told for episode in listed),
    )
    baselines, chosen, reference = _baselines(episodes, log, dropped)
    return replace(log, baselines=baselines, reference=reference), replace(facts, reference=chosen)


def _facts(listed: Sequence[Episode], ids: Sequence[str], width: int, steps: Sequence[int]) -> Facts:
    """Return what a data set says about its calls and its requests, but for its reference."""
    callers = {caller for episode in listed for caller in episode.callers}
    alone = _sets((caller.step, caller) for caller in callers if caller.purpose != ACT)
    answering = _sets((at, call.source) for _, at, call in _answering(listed))
    sources = tuple([_only(answering[at]) or "answer" for at in range(width)])
    if sources == ("answer",):  # a ladder: each model is its own role, even if the log calls it "base" or "guide"
        callers = {caller._replace(role=caller.model) for caller in callers}
    models = _sets((caller.step, caller.model) for caller in callers)
    ladder = all(caller.role == caller.model for caller in callers)
    return Facts(
        sources=sources,
        models=_names((caller.role, caller.model) for caller in callers),
        step_models=tuple([_only(models[step]) for step in steps]) if ladder else (),
        callers=tuple([_only(alone[step]) for step in steps]),
        parents=_parents(listed, steps),
        echoes=_names(pair for episode in listed for pair in episode.echoes),
        kinds={name: episode.kind for name, episode in reversed([*zip(ids, listed, strict=True)])},
        spelled=_names((name, episode.spelled) for name, episode in zip(ids, listed, strict=True) if episode.spelled),
    )


def _columns(
    episodes: Sequence[Episode], horizon: int, width: int, own: Mapping[str, int], *, comparable: bool
) -> dict[str, Any]:
    """Return the columns of the nodes.

    A call's cost lies on the node whose answer it is for, else on the last of its step, where the signals are.
    """
    shape = len(episodes), horizon * width
    answer, right, confidence = np.full(shape, -1, dtype=np.int64), np.full(shape, np.nan), np.full(shape, np.nan)
    cost, bought = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    names = sorted({name for episode in episodes for step in episode.steps for name in episode.signals[step]})
    signals = {name: np.full(shape, np.nan) for name in names}
    lengths = {name: np.full(shape, np.nan) for name in LENGTHS if name not in names}
    steps = np.array([max(episode.steps) for episode in episodes], dtype=np.int64)
    # The length of a run until a model is right shows whether it was.
    revealing = any(episode.told for episode in episodes)
    for row, episode in enumerate(episodes):
        numbers: dict[Hashable, int] = {}
        for step in sorted(episode.steps):
            first, last = (step - 1) * width, step * width - 1
            bought[row, first : last + 1] = True
            for at, call in sorted(episode.answers[step].items()):
                key = answer_name(call, comparable=comparable)
                answer[row, first + at] = numbers.setdefault(key, len(numbers))
                right[row, first + at] = math.nan if call.right is None else call.right
                confidence[row, first + at] = call.confidence
            for call in episode.steps[step]:
                unplaced = 0 if call.answers else width - 1
                node = first + own.get(call.source, unplaced if call.candidate is None else call.candidate)
                unknown = call.cost is None or cost[row, node] < 0
                cost[row, node] = -1 if unknown else cost[row, node] + (call.cost or 0)
            for name, values in lengths.items():
                tokens = total_of([getattr(call, LENGTHS[name]) for call in episode.steps[step]])
                values[row, last] = math.nan if revealing or tokens is None else tokens
            for name, value in episode.signals[step].items():
                signals[name][row, last] = value
    signals |= {name: values for name, values in lengths.items() if not np.isnan(values).all()}
    # Without a horizon in the log, its longest request decides.
    complete = steps >= np.array([episode.horizon or horizon for episode in episodes])
    return {
        "answer": answer,
        "right": right,
        "cost_nano_usd": cost,
        "bought": bought,
        "complete": complete,
        "confidence": confidence,
        "signals": signals,
    }


def _placed(episodes: Sequence[Episode]) -> tuple[int, dict[str, int]]:
    """Give each source the same place in every step, and return how many places there are and the place of each source.

    So it is also where the base gave no answer and the guide's came first. Nothing is changed, and no source has a
    place, if sources share one, as a ladder's models do, or if one source fills several.
    """
    own: dict[str, int] = {}
    width, single = 1, True
    for episode in episodes:
        for placed in episode.answers.values():
            single &= len({call.source for call in placed.values()}) == len(placed)
    for _, at, call in _answering(episodes):
        width, own[call.source] = max(width, at + 1), max(at, own.get(call.source, 0))
    if not single or len(set(own.values())) < len(own):
        return width, {}
    for episode in episodes:
        episode.answers = {
            step: {own[call.source]: call for call in episode.answers[step].values()} for step in episode.steps
        }
    return width, own


def _answering(episodes: Iterable[Episode]) -> Iterator[tuple[int, int, LoggedCall]]:
    """Yield each answer with its step and place."""
    for episode in episodes:
        for step in episode.steps:
            for at, call in episode.answers[step].items():
                yield step, at, call


def _comparable(episodes: Sequence[Episode]) -> Bools:
    """Return whether each episode's answers can be compared by their numbers, bool (n,).

    They can in a data set in which half of the right answers and half of the wrong ones have a text; an answer without
    a text differs from all others there. With few texts all right answers count as one, which reveals the truth; so do
    texts of only the wrong or only the right answers; and so do equal answers if a model was told whether it was right
    (`schema.is_told`), and then stayed with its answer.
    """
    texts = Counter[bool]()
    for _, _, call in _answering(episodes):
        texts[bool(call.right)] += 1 if call.key is not None and not call.hashed else -1
    if any(episode.told for episode in episodes) or min(texts[True], texts[False]) < 0:
        return np.zeros(len(episodes), dtype=np.bool_)
    texts_known = [not any(call.hashed for *_, call in _answering([episode])) for episode in episodes]
    return np.array(texts_known, dtype=np.bool_)


_K = TypeVar("_K")
_V = TypeVar("_V")


def _sets(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, set[_V]]:
    """Return the second values by the first."""
    values: dict[_K, set[_V]] = defaultdict(set)
    for first, second in pairs:
        values[first].add(second)
    return values


def _names(pairs: Iterable[tuple[str, str]]) -> Names:
    """Return the second names by the first, both sorted, each once."""
    return {first: tuple(sorted(names)) for first, names in sorted(_sets(pairs).items())}


def _only(values: Collection[_V]) -> _V | None:
    """Return the only value; None if there are several, or none."""
    return next(iter(values)) if len(values) == 1 else None


def _parents(episodes: Sequence[Episode], steps: Iterable[int]) -> Parents | None:
    """Return the steps that each step reads; None where the log does not say any."""
    if not any(episode.parents.keys() & episode.steps.keys() for episode in episodes):
        return None
    reads = {step: episode.reads(step) for episode in episodes for step in episode.steps}
    return tuple([reads.get(step, (step - 1,) if step > 1 else ()) for step in steps])


def _nodes(facts: Facts) -> tuple[Node, ...]:
    """Return the nodes: the places of each step. What a step reads is known where steps are single calls."""
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


def joined(reads: Sequence[Read]) -> Read:
    """Return several data sets of one cascade as one.

    Raises:
        UsageError: there is none, or they are of different cascades, or are compared with different references.
    """
    if not reads:
        raise UsageError("There is no episode in this log.")
    first, facts = reads[0], [read.facts for read in reads]
    if len(reads) == 1:
        return first
    ladders = [dataset.step_models for dataset in facts if dataset.step_models]
    models = [{name for name in names if name is not None} for names in zip(*ladders, strict=False)]
    if len({(dataset.cascade, dataset.parents) for dataset in facts}) > 1 or any(len(names) > 1 for names in models):
        listed = "; ".join([f"{read.log.name}: {read.facts.cascade}{read.facts.order}" for read in reads])
        advice = "Choose data sets of one with --where dataset=NAME"
        raise UsageError(
            f"The log holds data sets of different cascades, but a certificate covers one. {advice}: {listed}"
        )
    if len({dataset.truth for dataset in facts}) > 1:
        raise UsageError("The data sets are compared with different references: choose one with --where dataset=NAME.")
    together = replace(
        first.facts,
        step_models=tuple([_only(names) for names in models]),
        callers=tuple([_only({*step}) for step in zip(*[dataset.callers for dataset in facts], strict=True)]),
        echoes=_names((model, name) for dataset in facts for model, names in dataset.echoes.items() for name in names),
        kinds={request: kind for dataset in reversed(facts) for request, kind in dataset.kinds.items()},
        spelled=_names((name, text) for dataset in facts for name, texts in dataset.spelled.items() for text in texts),
        reference=next((name for name in _REFERENCES if name in {dataset.reference for dataset in facts}), None),
        unjudged=sum(dataset.unjudged for dataset in facts),
    )
    # Of data sets with different references the guide's own counts: where it was not asked, it is unknown.
    logs = [
        read.log if read.facts.reference == together.reference else replace(read.log, reference=None) for read in reads
    ]
    log = table.joined(logs, ", ".join([log.name for log in logs]))
    return Read(replace(log, nodes=_nodes(together)), together, first.dropped)


# --- recorded baselines, and the reference among them ---


_REFERENCES = (schema.GUIDE_ONLY, schema.LAST_ONLY)
"""The walks that can be the reference; the first of them is used."""


class _WalkResult(NamedTuple):
    """What a baseline did on an episode: the fields of `Baseline`, and how many answers it kept."""

    covered: bool
    right: float
    cost: int
    length: int
    size: int
    leaves: int


def _baselines(
    episodes: Mapping[str, Episode], log: Log, dropped: Dropped
) -> tuple[dict[str, Baseline], str | None, Reference | None]:
    """Return the baselines, and the reference with its name: the guide's own walk, else a ladder's last model.

    Two of them follow from the steps: the first model alone, a ladder's last alone.
    """
    every, horizon = list(episodes.values()), int(log.steps[-1]) + 1
    outcomes_of = {
        name: [_walked(name, episode, key, log.drawn is not None, dropped) for key, episode in episodes.items()]
        for name in sorted({name for episode in every for name in episode.walks})
    }
    sources = _sets((step, call.source) for step, at, call in _answering(every) if at == 0)
    first = {step: _only(names) for step, names in sources.items()}
    outcomes_of.setdefault(schema.BASE_ONLY, [_by_itself(episode, 1, first) for episode in every])
    single = horizon > 1 and all(len(episode.answers[step]) <= 1 for episode in every for step in episode.steps)
    if schema.GUIDE_ONLY not in outcomes_of and single:
        outcomes_of[schema.LAST_ONLY] = [_by_itself(episode, episode.horizon or horizon, first) for episode in every]
    baselines = {name: _baseline(outcomes) for name, outcomes in outcomes_of.items() if any(outcomes)}
    chosen = next((name for name in _REFERENCES if name in baselines), None)
    if chosen is None:
        return baselines, None, None
    way = baselines.pop(chosen)
    leaves = np.array([0 if outcome is None else outcome.leaves for outcome in outcomes_of[chosen]])
    assert log.texts_known is not None  # noqa: S101 - it is a log of rows
    right = np.where(way.known & (log.texts_known | (leaves <= 2)), way.right, np.nan)
    is_last = chosen == schema.LAST_ONLY or _ends_in(log, way)
    return baselines, chosen, Reference(right, np.where(way.known, way.cost_nano_usd, -1), is_last)


def _ends_in(log: Log, way: Baseline) -> bool:
    """Whether the last of several single calls is the guide itself: as dear, and right on the same requests."""
    if log.width < 2 or log.width > int(log.steps[-1]) + 1:
        return False
    rows = way.known & log.bought[:, -1]
    right = (log.right[:, -1] == 1) == (way.right == 1)
    equal = right & (np.maximum(log.cost_nano_usd[:, -1], 0) == np.maximum(way.cost_nano_usd, 0))
    return bool(rows.any() and equal[rows].all())


def _walked(name: str, episode: Episode, episode_name: str, unjudged: bool, dropped: Dropped) -> _WalkResult | None:
    """Return the result of a logged walk; None if there is none or its result is unknown, which is then counted."""
    calls = episode.walks.get(name)
    if calls is None:
        return None
    answers: dict[tuple[int, int | None], tuple[LoggedCall, bool | None]] = {}
    ambiguous = False
    for call in calls:
        if call.answers:
            ambiguous |= call.candidate is None and bool(answers)
            first, keeps = answers.get((call.step, call.candidate), (call, None))
            answers[call.step, call.candidate] = first, call.kept if keeps is None else keeps
    every = [call for call, _ in answers.values()]
    served = [call for call, keeps in answers.values() if keeps is not False]
    # The only answer of a walk was served, even if `kept` is null. If there are several answers, each needs a `kept`.
    several, keeps_of = ambiguous or len(answers) > 1, [keeps for _, keeps in answers.values()]
    reasons = {
        "neither an answer nor a reply is recorded": not answers and not any(call.replied for call in calls),
        "it has several answers, one of them with a null candidate": several and any(at is None for _, at in answers),
        "it has several answers, and kept is null for one of them": several and (None in keeps_of),
        "it is unknown whether its answer is right": not unjudged and any(call.right is None for call in served),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        dropped.note(f"a walk {name!r} is left out of its episode: {reason}", episode_name)
        return None
    return _outcome(served, every, [call.cost for call in calls], max(call.step for call in calls))


def _by_itself(episode: Episode, step: int, first: Mapping[int, str | None]) -> _WalkResult | None:
    """Return the result of the model in the first place of one step, asked alone and paid for its own calls only.

    None if that is not recorded. A model whose reply has no answer keeps nothing.
    """
    if step not in episode.steps:
        return None
    call = episode.answers[step].get(0)
    source = first.get(step) if call is None else call.source
    own = [logged for logged in episode.steps[step] if logged.source == source]
    if source is None or (call is None and not any(logged.replied for logged in own)):
        return None
    answers = [] if call is None else [call]
    return _outcome(answers, answers, [logged.cost for logged in own], 1)


def _outcome(
    served: Sequence[LoggedCall], every: Sequence[LoggedCall], costs: Iterable[int | None], length: int
) -> _WalkResult:
    total, right = total_of(costs), _served_right(served or every)
    size = len({answer_name(call, comparable=False) for call in served})
    covered = any(call.right is True for call in served)
    return _WalkResult(covered, right, -1 if total is None else total, length, size, len(served))


def _served_right(calls: Sequence[LoggedCall]) -> float:
    """Return whether the answer that would be served is right: the surest, then the most frequent, then the latest."""
    groups: dict[Hashable, list[LoggedCall]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: (call.step, -1 if call.candidate is None else call.candidate)):
        groups[answer_name(call, comparable=False)].append(call)

    def sure(call: LoggedCall) -> float:
        return -1.0 if math.isnan(call.confidence) else call.confidence

    def worth(group: list[LoggedCall]) -> tuple[float, int, int]:
        return max(map(sure, group)), len(group), max(call.step for call in group)

    best = max(groups.values(), key=worth, default=None)
    right = False if best is None else max(best, key=sure).right
    return math.nan if right is None else float(right)


def _baseline(outcomes: Sequence[_WalkResult | None]) -> Baseline:
    nothing = _WalkResult(False, math.nan, -1, 0, 0, 0)
    covered, right, cost, length, size, _ = zip(*[outcome or nothing for outcome in outcomes], strict=True)
    sums = (np.array(column, dtype=np.int64) for column in (cost, length, size))
    recorded = np.array([outcome is not None for outcome in outcomes], dtype=np.bool_)
    return Baseline(recorded, np.array(covered, dtype=np.bool_), np.array(right, dtype=np.float64), *sums)
