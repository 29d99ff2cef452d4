"""Convert rows to tables: one `EpisodeTable` for each data set of a log.

An episode that cannot be judged is left out and counted: an answer without truth, a missing step that others read. So
is a walk of an episode if the log does not say what was served. A single call that is missing was not bought, or was
refused: what it would have brought is unknown. A null is unknown: it never counts as wrong, nor a cost as 0.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Parents, StepArrays, chain
from cascade.conformal.scope import Kind
from cascade.episodes import asked
from cascade.episodes.asked import Asker, by_role, by_step, is_ladder
from cascade.episodes.schema import (
    BASE_ONLY,
    CUT,
    ECHOED,
    GUIDE_ONLY,
    LAST_ONLY,
    UNJUDGED,
    Dropped,
    answers,
    chat_of,
    has_failed,
    identity,
    is_hashed,
    is_told,
    question_id,
    refused_steps,
    replay_of,
    replied,
    uncached_nano_usd,
)
from cascade.episodes.table import EpisodeTable, Walk
from cascade.errors import UsageError
from cascade.matching.same import answer_key


class _Made(NamedTuple):
    """One candidate as a row records it. `key` distinguishes different answers; `text` is the answer as compared."""

    key: str
    source: str
    correct: bool | None
    confidence: float
    text: str | None


@dataclass(slots=True)
class _Stage:
    """One step in the making. `unplaced` has the answers whose `candidate` is null."""

    made: dict[int, _Made] = field(default_factory=dict)
    unplaced: list[_Made] = field(default_factory=list)
    costs: list[tuple[str, int | None]] = field(default_factory=list)
    uncached: list[int | None] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    signals: dict[str, float] = field(default_factory=dict)
    replied: set[str] = field(default_factory=set)
    parents: tuple[int, ...] | None = None


@dataclass(slots=True)
class _Kept:
    """The result of one walk of one episode: its kept answers by step and candidate, the cost of each call, the steps.

    `given` has all answers of the walk: if it kept none, the engine serves the best of them.
    """

    answers: dict[tuple[int, int], _Made] = field(default_factory=dict)
    costs: list[int | None] = field(default_factory=list)
    length: int = 0
    given: dict[tuple[int, int], _Made] = field(default_factory=dict)


@dataclass(slots=True)
class _Logged:
    """The rows of one walk of one episode in the making.

    `given` has each answer and whether it was kept, by step and candidate: several calls may have made one. The
    candidate is -1 if the log does not give it. `replied`: a reply is recorded.
    """

    given: dict[tuple[int, int], tuple[_Made, bool | None]] = field(default_factory=dict)
    costs: list[int | None] = field(default_factory=list)
    length: int = 0
    replied: bool = False
    ambiguous: bool = False


@dataclass(slots=True)
class _Draft:
    """One episode in the making. `askers` has the models asked, `echoes` the names in their replies.

    `told` is `schema.is_told`, `failed` is `schema.has_failed`, `refused` is `schema.refused_steps`; `cached` says that
    a prompt was read from a cache, `doubled` that the question's own hash is the episode's id, as where the log gives
    none, and two rows answer in one place.
    The first row with a group decides it, and likewise for the question.
    """

    group: str | None = None
    segment: str | None = None
    question: str | None = None
    spelled: str | None = None
    asked: Mapping[str, float] = field(default_factory=dict)
    kind: Kind | None = None
    told: bool = False
    failed: bool = False
    refused: frozenset[int] = frozenset()
    cached: bool = False
    doubled: bool = False
    echoes: set[tuple[str, str]] = field(default_factory=set)
    horizon: int | None = None
    stages: dict[int, _Stage] = field(default_factory=lambda: defaultdict(_Stage))
    walks: dict[str, _Logged] = field(default_factory=lambda: defaultdict(_Logged))
    askers: set[Asker] = field(default_factory=set)


def tables_from_rows(rows: Iterable[Mapping[str, Any]], dropped: Dropped | None = None) -> list[EpisodeTable]:
    """Return one table for each data set, in the order of their first rows.

    Args:
        rows: as in `episodes.schema`, in any order; read once, and only their numbers are kept.
        dropped: counts every episode, and every walk of an episode, that is left out.

    Raises:
        UsageError: no episode is left.
    """
    drafts: dict[str, dict[str, _Draft]] = defaultdict(lambda: defaultdict(_Draft))
    left_out, gold = dropped if dropped is not None else Dropped(), False
    for row in (one for one in rows if one["walk"] != CUT):  # that is money spent, and no part of an episode
        gold = gold or bool(row.get("gold"))
        _take(row, drafts[row["dataset"] or "log"])
    tables = []
    for dataset, episodes in drafts.items():
        before = left_out.rows[UNJUDGED]
        whole = {name: draft for name, draft in episodes.items() if _is_whole(name, draft, left_out)}
        unjudged = left_out.rows[UNJUDGED] - before
        whole = _with_the_same_parents(whole, left_out)
        if whole:
            tables.append(replace(_table(dataset, whole, left_out), unjudged=unjudged))
    if not tables:
        said = ["There is no episode to judge in this log."]
        if left_out.count:
            said += [f"{left_out.describe()}."]
            said += [] if set(left_out.rows) == {_DOUBLED} else [_JUDGED if gold else _NO_GOLD]
        raise UsageError(" ".join(said))
    return tables


def _with_the_same_parents(episodes: Mapping[str, _Draft], dropped: Dropped) -> dict[str, _Draft]:
    """Return the episodes whose steps have the same parents as in the first episode with them; count the others."""
    known: dict[int, tuple[int, ...]] = {}
    kept = {}
    for name, draft in episodes.items():
        found = {number: _parents(number, stage) for number, stage in draft.stages.items()}
        if any(known.get(number, parents) != parents for number, parents in found.items()):
            dropped.drop("an episode with a step that depends on other steps than in other episodes", name)
        else:
            known |= found
            kept[name] = draft
    return kept


def _parents(number: int, stage: _Stage) -> tuple[int, ...]:
    """Return the numbers of the steps that a step depends on; by default the step before."""
    return stage.parents if stage.parents is not None else (number - 1,) if number > 1 else ()


_JUDGED = "A matcher judges them by the accepted answers that are logged (column gold): --matcher exact."
_NO_GOLD = "Add the accepted answers (column gold), by which --matcher exact judges, or say which are right (correct)."


def _take(row: Mapping[str, Any], episodes: dict[str, _Draft]) -> None:
    draft = episodes[row["episode_id"]]
    draft.group, draft.segment = draft.group or row["group"], draft.segment or row["segment"]
    if draft.question is None and row["question"] is not None:
        text, context = row["question"], row["context"]
        draft.question, draft.spelled = identity(text, context), question_id(text, context)
        draft.asked = asked.numbers_asked(row)
    if draft.kind is None and row["question"] is not None:
        draft.kind = asked.kind_asked(row)
    made = _made(row)
    if row["walk"] is not None:
        _take_walk(row, made, draft.walks[row["walk"]])
    elif row["step"] is not None and row["step"] >= 1:
        _take_step(row, made, draft)


def _take_walk(row: Mapping[str, Any], made: _Made | None, walk: _Logged) -> None:
    walk.costs.append(row["cost_nano_usd"])
    walk.length = max(walk.length, row["step"] or 1)
    walk.replied |= replied(row)
    if made is None:
        return
    place = row["step"] or 1, _UNPLACED if row["candidate"] is None else row["candidate"]
    walk.ambiguous |= row["candidate"] is None and bool(walk.given)
    first, kept = walk.given.get(place, (made, None))
    walk.given[place] = first, row["kept"] if kept is None else kept


_UNPLACED = -1
"""The candidate of an answer whose index the log does not give."""


def _take_step(row: Mapping[str, Any], made: _Made | None, draft: _Draft) -> None:
    if row["horizon"] is not None:
        draft.horizon = max(draft.horizon or 1, row["horizon"])
    stage = draft.stages[row["step"]]
    source = _source(row)
    if stage.parents is None and row.get("parents") is not None:
        stage.parents = tuple(row["parents"])
    if row["model"]:
        draft.askers.add(Asker(row["step"], source, row["model"], replay_of(row).get("purpose")))
    draft.told |= is_told(row)
    draft.failed |= has_failed(row)
    draft.refused |= refused_steps(row)
    echoed = replay_of(row).get(ECHOED)
    if row["model"] and isinstance(echoed, str):
        draft.echoes.add((row["model"], echoed))
    stage.costs.append((source, row["cost_nano_usd"]))
    stage.uncached.append(uncached_nano_usd(row))
    draft.cached |= bool(row["cached_input_tokens"])
    stage.tokens.append(_sum([row["input_tokens"], row["output_tokens"]]))
    if replied(row):
        stage.replied.add(source)
    if made is not None and row["candidate"] is None:
        stage.unplaced.append(made)
    elif made is not None:
        draft.doubled |= row["candidate"] in stage.made and row["episode_id"] == draft.spelled
        stage.made.setdefault(row["candidate"], made)
    for signal, value in (row["signals"] or {}).items():
        if isinstance(value, int | float):
            stage.signals.setdefault(signal, float(value))


def _source(row: Mapping[str, Any]) -> str:
    """Return the source of a row's answer: its role, else its model, as in a ladder; "" if neither is recorded."""
    return row["source"] or row["model"] or ""


def _made(row: Mapping[str, Any]) -> _Made | None:
    if not answers(row):
        return None
    answer, correct = row["answer"], row["correct"]
    text = None if answer is None else answer_key(answer, chat_of(row))
    # A source without texts: all right answers count as one, each wrong answer as a different one.
    key = _RIGHT if text is None and correct else _own(row["step"], row["candidate"] or 0) if text is None else text
    confidence = math.nan if row["confidence"] is None else row["confidence"]
    return _Made(key, _source(row), correct, confidence, None if answer is None or is_hashed(answer) else text)


_RIGHT = "\x00right"
"""The key of a right answer if there are no texts."""


def _own(step: int | None, candidate: int) -> str:
    """Return a key that makes an answer different from every other."""
    return f"\x00{step}.{candidate}"


def _is_whole(name: str, draft: _Draft, dropped: Dropped) -> bool:
    """Return whether an episode can be judged; if not, count the reason."""
    why = "an episode in which the call of a model failed" if not _may_lack(draft) else None
    why = why or (_DOUBLED if draft.doubled else _misplaced(draft) or _unjudged(draft))
    if why is not None:
        dropped.drop(why, name)
    return why is None


_DOUBLED = "a question that is answered twice in one step: give each run its own episode_id"


def _misplaced(draft: _Draft) -> str | None:
    """Return the problem with the numbers of an episode's steps or their parents, in words; None without one."""
    numbers = sorted(draft.stages)
    if not numbers:
        return "an episode without a step"
    if numbers[-1] > len(numbers) and not _may_leave_out(draft):
        return "an episode with a step missing in the middle"
    if any(parent >= number for number in numbers for parent in _parents(number, draft.stages[number])):
        return "an episode with a step that depends on itself or on a later step"
    return None


def _may_lack(draft: _Draft) -> bool:
    """Return whether no call failed, or only those of steps that may be left out; these are taken out: unknown."""
    if not draft.failed:
        return True
    answered = {number for number, stage in draft.stages.items() if stage.made or stage.unplaced}
    if not draft.refused or draft.refused & answered:  # another model stood in
        return False
    for number in draft.refused & draft.stages.keys():  # an agent's earlier calls
        del draft.stages[number]
    return bool(draft.stages) and _may_leave_out(draft)


def _may_leave_out(draft: _Draft) -> bool:
    """Return whether a policy may have left steps out: steps are single calls, each with its parents recorded."""
    stages, unsaid = draft.stages.values(), () if is_ladder(draft.askers) else None
    single = all(len(stage.made) + len(stage.unplaced) <= 1 for stage in stages)
    reads = [unsaid if stage.parents is None else stage.parents for stage in stages]
    return single and all(parents is not None and {*parents} <= draft.stages.keys() for parents in reads)


def _unjudged(draft: _Draft) -> str | None:
    """Return why an episode cannot be judged; None if it can. The only answer of a step needs no `candidate`."""
    for stage in draft.stages.values():
        if len(stage.unplaced) > 1 or (stage.unplaced and stage.made):
            return "an episode with a step of several answers, one of them with a null candidate"
        stage.made.update(enumerate(stage.unplaced))
        stage.unplaced = []
        if not stage.made and not stage.replied:
            return "an episode with a step without a recorded answer or reply"
        if any(made.correct is None for made in stage.made.values()):
            return UNJUDGED
    return None


def _table(dataset: str, episodes: Mapping[str, _Draft], dropped: Dropped) -> EpisodeTable:
    drafts = list(episodes.values())
    texts_known = _tell_apart(drafts)
    _take_own_places(drafts)
    n, horizon = len(drafts), max(max(draft.horizon or 1, *draft.stages) for draft in drafts)
    places = 1 + max((index for d in drafts for stage in d.stages.values() for index in stage.made), default=0)
    answer = np.full((n, horizon, places), -1, dtype=np.int64)
    correct = np.zeros((n, horizon, places), dtype=np.bool_)
    confidence = np.full((n, horizon, places), np.nan)
    cost = np.zeros((n, horizon), dtype=np.int64)
    priced = np.ones(n, dtype=np.bool_)
    for i, draft in enumerate(drafts):
        keys: dict[str, int] = {}
        for number, stage in draft.stages.items():
            total = _sum([paid for _, paid in stage.costs])
            priced[i] &= total is not None
            cost[i, number - 1] = total or 0
            for index, made in stage.made.items():
                place = (i, number - 1, index)
                answer[place] = keys.setdefault(made.key, len(keys))
                correct[place], confidence[place] = made.correct, made.confidence
    steps = np.array([max(draft.stages) for draft in drafts], dtype=np.int64)
    # Without a horizon in the log, its longest question decides.
    complete = steps >= np.array([draft.horizon or horizon for draft in drafts])
    walks, walks_priced = _walks(episodes, horizon, dropped)
    priced &= walks_priced
    askers, sources = {asker for draft in drafts for asker in draft.askers}, _sources(drafts, places)
    if sources == ("answer",):  # a ladder: each model is its own role, even if the log calls it "base" or "guide"
        askers = {asker._replace(role=asker.model) for asker in askers}
    return EpisodeTable(
        dataset,
        tuple(episodes),
        tuple([draft.group or episode for episode, draft in episodes.items()]),
        sources,
        StepArrays(answer, correct, cost, steps, complete),
        confidence,
        _signals(drafts, horizon),
        walks,
        bool(priced.all()),
        tuple([draft.question or episode for episode, draft in episodes.items()]),
        by_role(askers),
        asked=asked.as_columns([draft.asked for draft in drafts]),
        tokens=_by_step(drafts, horizon, lambda stage: _sum(stage.tokens)),
        paid=_by_step(drafts, horizon, lambda stage: _sum([paid for _, paid in stage.costs])),
        uncached=_uncached(drafts, horizon),
        texts_known=texts_known,
        step_models=by_step(askers, horizon),
        calls=asked.alone((asker for draft in drafts for asker in draft.askers), horizon),
        segments=tuple([draft.segment for draft in drafts]),
        spelled=tuple([draft.spelled or episode for episode, draft in episodes.items()]),
        echoes=asked.grouped(pair for draft in drafts for pair in draft.echoes),
        priced=priced,
        parents=_of_each_step(drafts, horizon),
        bought=_bought(drafts, horizon),
        kinds=tuple([draft.kind for draft in drafts]),
    )


def _bought(drafts: Sequence[_Draft], horizon: int) -> Bools | None:
    """Return the recorded steps, bool (n, T); None if no episode lacks one before its last."""
    if all(max(draft.stages) == len(draft.stages) for draft in drafts):
        return None
    return np.array([[step in draft.stages for step in range(1, horizon + 1)] for draft in drafts], dtype=np.bool_)


def _of_each_step(drafts: Sequence[_Draft], horizon: int) -> Parents | None:
    """Return the parents of each of T steps; None where the log does not say any."""
    if all(stage.parents is None for draft in drafts for stage in draft.stages.values()):
        return None
    found = {number: _parents(number, stage) for draft in drafts for number, stage in draft.stages.items()}
    line = chain(horizon)
    return tuple([found.get(number, line[number - 1]) for number in range(1, horizon + 1)])


def _tell_apart(drafts: Sequence[_Draft]) -> Bools:
    """Return whether each question's answers can be compared by their numbers in the table, bool (n,).

    They can in a data set in which half of the right candidates and half of the wrong ones have a text; an answer
    without a text differs from all others there. With few texts all right answers count as one, which reveals the
    truth; so do texts of only the wrong or only the right answers; and so do equal answers if a model was told whether
    it was right (`schema.is_told`), and then kept its answer.
    """
    made = [one for draft in drafts for stage in draft.stages.values() for one in stage.made.values()]
    if any(draft.told for draft in drafts) or not all(_mostly_texts(made, right) for right in (True, False)):
        return np.zeros(len(drafts), dtype=np.bool_)
    known = np.ones(len(drafts), dtype=np.bool_)
    for row, draft in enumerate(drafts):
        for number, stage in draft.stages.items():
            for index, one in stage.made.items():
                if one.key == _RIGHT:
                    stage.made[index] = one._replace(key=_own(number, index))
                known[row] &= one.text is not None or one.key.startswith("\x00")  # else it is a hash
    return known


def _mostly_texts(made: Sequence[_Made], right: bool) -> bool:
    """Whether half of the right candidates, or of the wrong ones, have a text."""
    held = [one.text is not None for one in made if bool(one.correct) == right]
    return 2 * sum(held) >= len(held)


def _by_step(drafts: Sequence[_Draft], horizon: int, of: Callable[[_Stage], int | None]) -> Floats:
    """Return a number of each step, float64 (n, T); NaN if it is unknown, or if it would reveal the truth.

    The length of a run that goes on until a model is told that it was right reveals whether it was.
    """
    found = np.full((len(drafts), horizon), np.nan)
    if any(draft.told for draft in drafts):
        return found
    for row, draft in enumerate(drafts):
        for number, stage in draft.stages.items():
            value = of(stage)
            found[row, number - 1] = math.nan if value is None else value
    return found


def _take_own_places(drafts: Iterable[_Draft]) -> None:
    """Give each source the same place in every step, also if the base gave no answer and the guide's came first.

    Places are not changed if sources share one, as a ladder's models do, or if one source fills several.
    """
    stages = [stage for draft in drafts for stage in draft.stages.values()]
    place: dict[str, int] = {}
    for stage in stages:
        for index, made in stage.made.items():
            place[made.source] = max(index, place.get(made.source, 0))
    one_each = all(len({made.source for made in stage.made.values()}) == len(stage.made) for stage in stages)
    if one_each and len(set(place.values())) == len(place):
        for stage in stages:
            stage.made = {place[made.source]: made for made in stage.made.values()}


def _uncached(drafts: Sequence[_Draft], horizon: int) -> Floats | None:
    if not any(draft.cached for draft in drafts):
        return None
    return _by_step(drafts, horizon, lambda stage: _sum(stage.uncached))


def _sum(costs: Iterable[int | None]) -> int | None:
    held = list(costs)
    known = [cost for cost in held if cost is not None]
    return sum(known) if len(known) == len(held) else None


def _sources(drafts: Iterable[_Draft], places: int) -> tuple[str, ...]:
    """Return the names of the candidates' places: their source, or "answer" if it varies or is unknown."""
    seen: list[Counter[str]] = [Counter() for _ in range(places)]
    for draft in drafts:
        for stage in draft.stages.values():
            for index, made in stage.made.items():
                seen[index][made.source] += 1
    return tuple([(next(iter(names)) if len(names) == 1 else "") or "answer" for names in seen])


def _signals(drafts: list[_Draft], horizon: int) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    names = sorted({name for draft in drafts for stage in draft.stages.values() for name in stage.signals})
    found = {name: np.full((len(drafts), horizon), np.nan) for name in names}
    for i, draft in enumerate(drafts):
        for number, stage in draft.stages.items():
            for name, value in stage.signals.items():
                found[name][i, number - 1] = value
    return found


def _walks(episodes: Mapping[str, _Draft], horizon: int, dropped: Dropped) -> tuple[dict[str, Walk], Bools]:
    """Return the named walks, and the episodes for which all their costs are known, bool (n,).

    Two of them follow from the steps: the first model alone, a ladder's last alone.
    """
    drafts = list(episodes.values())
    kept = {
        name: [_logged(name, draft, episode, dropped) for episode, draft in episodes.items()]
        for name in sorted({name for draft in drafts for name in draft.walks})
    }
    makers = _first_makers(drafts)
    kept.setdefault(BASE_ONLY, [_alone(draft, 1, makers) for draft in drafts])
    single = horizon > 1 and all(len(stage.made) <= 1 for draft in drafts for stage in draft.stages.values())
    if GUIDE_ONLY not in kept and single:
        kept[LAST_ONLY] = [_alone(draft, draft.horizon or horizon, makers) for draft in drafts]
    each = zip(*kept.values(), strict=True)
    priced = [all(_sum(one.costs) is not None for one in walks if one is not None) for walks in each]
    return {name: _walk(walk) for name, walk in kept.items()}, np.array(priced, dtype=np.bool_)


def _logged(name: str, draft: _Draft, episode: str, dropped: Dropped) -> _Kept | None:
    """Return the result of a logged walk of one episode; None if there is no such walk or its result is unknown.

    An unknown result is counted in `dropped`.
    """
    walk = draft.walks.get(name)
    if walk is None:
        return None
    why = _unknown_walk(walk)
    if why is not None:
        dropped.note(f"a walk {name!r} is left out of its episode: {why}", episode)
        return None
    served = {place: made for place, (made, kept) in walk.given.items() if kept is not False}
    return _Kept(served, walk.costs, walk.length, {place: made for place, (made, _) in walk.given.items()})


def _unknown_walk(walk: _Logged) -> str | None:
    """Return why a walk's kept answers, or their correctness, are unknown; None if both are recorded.

    The only answer of a walk was served, even if `kept` is null. If there are several answers, each needs a `kept`.
    """
    if not walk.given:
        return None if walk.replied else "neither an answer nor a reply is recorded"
    if walk.ambiguous or len(walk.given) > 1:
        if any(candidate == _UNPLACED for _, candidate in walk.given):
            return "it has several answers, one of them with a null candidate"
        if any(kept is None for _, kept in walk.given.values()):
            return "it has several answers, and kept is null for one of them"
    if any(made.correct is None for made, kept in walk.given.values() if kept is not False):
        return "it is unknown whether its answer is right"
    return None


def _first_makers(drafts: Iterable[_Draft]) -> dict[int, str]:
    """Return the model in the first place of each step, if it is always the same."""
    found: dict[int, set[str]] = defaultdict(set)
    for draft in drafts:
        for number, stage in draft.stages.items():
            if 0 in stage.made:
                found[number].add(stage.made[0].source)
    return {number: next(iter(names)) for number, names in found.items() if len(names) == 1}


def _alone(draft: _Draft, step: int, makers: Mapping[int, str]) -> _Kept | None:
    """Return the result of the model in the first place of one step, asked alone and paid for its own calls only.

    None if that is not recorded. A model whose reply has no answer kept nothing.
    """
    stage = draft.stages.get(step)
    if stage is None:
        return None
    made = stage.made.get(0)
    source = makers.get(step) if made is None else made.source
    if source is None or (made is None and source not in stage.replied):
        return None
    costs = [cost for paid, cost in stage.costs if paid == source]
    return _Kept({} if made is None else {(1, 0): made}, costs, 1)


def _walk(kept: list[_Kept | None]) -> Walk:
    there = [one or _Kept() for one in kept]
    return Walk(
        known=np.array([one is not None for one in kept]),
        covered=np.array([any(made.correct for made in one.answers.values()) for one in there]),
        right=np.array([_served_is_right(one.answers or one.given) for one in there]),
        cost=np.array([_sum(one.costs) or 0 for one in there], dtype=np.int64),
        length=np.array([one.length for one in there], dtype=np.int64),
        leaves=np.array([len(one.answers) for one in there], dtype=np.int64),
        distinct=np.array([len({made.key for made in one.answers.values()}) for one in there], dtype=np.int64),
    )


def _served_is_right(answers: Mapping[tuple[int, int], _Made]) -> bool:
    """Whether the answer that `engine.rank` would serve is right: most confident, then most often kept, then latest."""
    groups: dict[str, list[tuple[int, _Made]]] = defaultdict(list)
    for (step, _), made in sorted(answers.items(), key=lambda one: one[0]):
        groups[made.key].append((step, made))

    def worth(group: list[tuple[int, _Made]]) -> tuple[float, int, int]:
        known = [made.confidence for _, made in group if not math.isnan(made.confidence)]
        return max(known, default=-1.0), len(group), max(step for step, _ in group)

    def sure(one: tuple[int, _Made]) -> float:
        return -1.0 if math.isnan(one[1].confidence) else one[1].confidence

    best = max(groups.values(), key=worth, default=None)
    return best is not None and max(best, key=sure)[1].correct is True
