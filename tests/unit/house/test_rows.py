"""Rows become the log that the old table becomes: kept logs, other readings of them, random rows, and rows by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from record.logs import PUBLISHED, SHIPPED, Source

from cascade.calibration import samples
from cascade.conformal.arrays import renumbered
from cascade.conformal.labels import is_drawn
from cascade.episodes import ladders, tabulate, truth
from cascade.episodes.schema import BASE_ONLY, FAILED, GUIDE_ONLY, TOLD, UNJUDGED, Dropped, identity, question_id
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation import logs
from cascade.house import features, reading
from cascade.house.bridge import log_of
from cascade.house.rows import Read, joined, reads_of
from cascade.house.simple import tie_of
from cascade.matching import get_matcher, judge_rows
from cascade.review.labels import judgements
from cascade.review.pairs import compare
from cascade.review.reviews import Judgement, Reviews, Terms
from cascade.table import Log
from unit.evaluation.plain import batches, row, rows_of
from unit.review.booking import call, episode

Row = Mapping[str, Any]
ROUNDS, LADDER = (
    list(logs._rows(str(source.place), None)) for source in SHIPPED if source.name in ("golden rounds", "golden ladder")
)
LADDER, ROUNDS = (LADDER, ROUNDS) if any(each["walk"] for each in ROUNDS) else (ROUNDS, LADDER)


# --- the same as the old table ---


def output_alone(rows: Iterable[Row]) -> Iterable[Row]:
    """Yield rows of which the old table's tokens are those of the output: that is what breaks ties now."""
    return ({**each, "input_tokens": None if each["output_tokens"] is None else 0} for each in rows)


def old(rows: Iterable[Row], dropped: Dropped | None = None) -> list[EpisodeTable]:
    return tabulate.tables_from_rows(output_alone(rows), dropped)


def bridged(table: EpisodeTable) -> Log:
    """Return a table as a log. Where a model was told whether it was right, the table hides costs; these are known."""
    there = np.stack([table.has(step + 1) for step in range(table.arrays.horizon)], axis=1)
    paid = np.where(there & table.priced[:, None], table.arrays.cost, np.nan)
    return log_of(replace(table, paid=paid) if np.isnan(table.paid).all() else table)


def equal(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def by_step(log: Log) -> Any:
    """The cost of each step: the bridge has it on the last node, a log of rows on each call's own."""
    cost = [log.cost_nano_usd[:, log.steps == step] for step in np.unique(log.steps)]
    return np.stack([np.where((each < 0).any(axis=1), -1, each.sum(axis=1)) for each in cost], axis=1)


def differing(new: Log, log: Log) -> list[str]:
    """Return the columns in which a log differs from the bridge's, documented exceptions aside."""
    plain = ("name", "ids", "groups", "segments")
    found = [name for name in plain if getattr(new, name) != getattr(log, name)]
    for name in ("right", "bought", "complete", "confidence"):
        found += [] if equal(getattr(new, name), getattr(log, name)) else [name]
    found += [] if [each[:2] for each in new.nodes] == [each[:2] for each in log.nodes] else ["nodes"]
    found += [] if equal(renumbered(new.answer[:, :, None]), renumbered(log.answer[:, :, None])) else ["answer"]
    known = by_step(log) >= (0 if new.revealing else -1)
    found += [] if equal(by_step(new)[known], by_step(log)[known]) else ["cost"]
    for name in ("signals", "features"):
        ours = {key: values for key, values in getattr(new, name).items() if key != "prompt_tokens"}
        theirs = getattr(log, name)
        found += [] if ours.keys() == theirs.keys() else [name]
        found += [f"{name} {key}" for key in ours.keys() & theirs.keys() if not equal(ours[key], theirs[key])]
    masks = (("drawn", new.drawn, log.drawn), ("texts_known", new.texts_known, log.texts_known))
    every = np.ones(log.n, dtype=bool)
    found += [name for name, a, b in masks if not equal(every if a is None else a, every if b is None else b)]
    if new.reference is None or log.reference is None:
        return [*found, "reference"] if (new.reference is None) != (log.reference is None) else found
    (right, cost, last), (old_right, old_cost, old_last) = new.reference, log.reference
    alike = equal(right, old_right) and last == old_last and equal(cost[old_cost >= 0], old_cost[old_cost >= 0])
    return found if alike else [*found, "reference"]


def unlike(new: Read, table: EpisodeTable) -> list[str]:
    """Return where a data set differs from its old table: columns, baselines, facts."""
    log, facts, found = new.log, new.facts, differing(new.log, bridged(table))
    names = [name for name, walk in table.walks.items() if walk.known.any() and name != facts.reference]
    found += [] if sorted(log.baselines) == sorted(names) else ["baselines"]
    pairs: list[tuple[Any, Any]]
    for name in log.baselines.keys() & table.walks.keys():
        way, walk = log.baselines[name], table.walks[name]
        known, priced = walk.known, walk.known & (way.cost_nano_usd >= 0)
        judged = known & ~np.isnan(way.right)
        pairs = [(way.known, known), (way.covered[known], walk.covered[known]), (way.right[judged], walk.right[judged])]
        pairs += [(way.length[known], walk.length[known]), (way.size[known], walk.distinct[known])]
        pairs += [(way.cost_nano_usd[priced], walk.cost[priced]), (priced | ~table.priced | ~known, np.ones(log.n))]
        found += [f"baseline {name} {place}" for place, pair in enumerate(pairs) if not equal(*pair)]
    kinds = dict(zip(reversed(table.questions), reversed(table.kinds), strict=True))
    truths = [None if each is None else tuple(each) for each in (facts.truth, table.truth)]
    pairs = [(facts.models, dict(table.models)), (facts.step_models, table.step_models), (facts.kinds, kinds)]
    pairs += [(facts.callers, table.calls), (facts.parents, table.parents), (facts.echoes, dict(table.echoes))]
    pairs += [(facts.sources, table.sources), (facts.unjudged, table.unjudged), (truths[0], truths[1])]
    return found + [f"facts {place}" for place, (ours, theirs) in enumerate(pairs) if ours != theirs]


def counts(dropped: Dropped) -> tuple[dict[str, int], dict[str, int]]:
    return dict(dropped.rows), dict(dropped.notes)


def same(rows: Sequence[Row]) -> bool:
    """Whether rows become the same logs as before, or are refused alike."""
    ours, theirs = Dropped(), Dropped()
    try:
        tables = old(rows, theirs)
    except UsageError:
        with pytest.raises(UsageError):
            reads_of(rows, ours)
        return counts(ours) == counts(theirs)
    reads = reads_of(rows, ours)
    assert [unlike(*pair) for pair in zip(reads, tables, strict=True)] == [[]] * len(tables)
    return counts(ours) == counts(theirs)


QUICK = ("golden ladder", "golden rounds", "demo-ladder", "gsm8k")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(each, id=each.name, marks=[] if each.name in QUICK else pytest.mark.long)
        for each in (*SHIPPED, *PUBLISHED)
    ],
)
def test_a_kept_log_is_the_one_that_its_table_becomes(source: Source) -> None:
    if source.file is not None and not source.place.exists():
        pytest.skip("this log does not lie beside the project")
    given = source.name if source.file is None else str(source.place)
    rows = list(logs._rows(given, None, models=source.models))
    judged = not all(each["correct"] is None for each in rows) and not source.models
    new = reading.read(lambda: rows, Dropped(), models=source.models)
    if judged:
        tables = old(rows)
    else:
        chosen = list(truth.ladder_of_models(lambda: rows, source.models)) if source.models else rows
        labelled = all(each["correct"] is None for each in chosen)
        by_output = truth.labelled_by_reference(lambda: chosen) if labelled else None
        tables = old(chosen if by_output is None else by_output.rows(Dropped()))
        if by_output is not None:
            tables = [replace(table, truth=by_output.truths[table.dataset]) for table in tables]
    assert [unlike(*pair) for pair in zip(new.reads, tables, strict=True)] == [[]] * len(tables)


def test_rounds_are_read_as_a_ladder_and_call_by_call() -> None:
    pairs = ((reading.as_ladder, ladders.as_ladder), (reading.as_offers, ladders.as_offers))
    for ours, theirs in pairs:
        assert list(ours(ROUNDS)) == list(theirs(ROUNDS))
        assert same(list(ours(ROUNDS)))
    (offers,) = reads_of(reading.as_offers(ROUNDS))
    assert [(node.name, node.reads) for node in offers.log.nodes] == [("base", ()), ("judge", (0,)), ("guide", ())]


@pytest.mark.parametrize("models", [("small", "large"), ("middle", "large"), ("middle",), ("large", "small")])
def test_some_models_of_a_ladder_are_a_ladder(models: tuple[str, ...]) -> None:
    ours = list(reading.ladder_of_models(lambda: LADDER, models))
    assert ours == list(truth.ladder_of_models(lambda: LADDER, models))
    assert same(ours)


@pytest.mark.parametrize("rows", [ROUNDS, LADDER], ids=["rounds", "ladder"])
def test_the_references_output_is_the_truth_where_it_is_asked_for(rows: list[Row]) -> None:
    new = reading.read(lambda: rows, Dropped(), reference="guide")
    labelled = truth.labelled_by_reference(lambda: rows)
    tables = [replace(table, truth=labelled.truths[table.dataset]) for table in old(labelled.rows(Dropped()))]
    assert [unlike(*pair) for pair in zip(new.reads, tables, strict=True)] == [[]]
    assert new.compared().reads == new.reads
    assert new.reads[0].facts.truth == reading.read(lambda: rows, Dropped()).compared().reads[0].facts.truth


def test_a_matcher_judges_by_the_accepted_answers() -> None:
    rows = [{**each, "gold": ["answer 1"], "correct": None} for each in LADDER]
    new = reading.read(lambda: rows, Dropped(), matcher="exact")
    (table,) = old(judge_rows(rows, get_matcher("exact"), overwrite=True))
    assert unlike(new.reads[0], table) == []
    unasked = reading.read(lambda: rows, Dropped())
    assert (unasked.unlabelled, unasked.unjudged, new.unlabelled) == (True, True, False)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_people_judge_the_outputs_that_differ(rate: float) -> None:
    rows = [each for k in range(60) for each in episode(k, call(k + 500 * (k % 3 == 0)), call(k))]
    rows += [
        {**each, "walk": "another", "step": 1, "kept": True} for each in rows if each["step"] == 1 and not each["walk"]
    ]
    compared = compare(lambda: rows)
    verdicts = [
        Judgement(*pair.id, "output", "equal", bool(place % 3), True, "ann", "")
        for place, pair in enumerate(compared.pairs)
        if place % 2
    ]
    reviews = Reviews(Terms("regret", compared.comparator, rate, "key"), tuple(verdicts))
    (new,) = reading.reviewed(compared.labelled, judgements(compared, [reviews], "regret"), Dropped())
    assert np.isnan(new.log.right[new.log.answers]).sum() == len(compared.pairs) - len(verdicts) > 0
    assert new.log.drawn is not None
    assert new.log.drawn.tolist() == [is_drawn("key", name, rate) for name in new.log.ids]
    assert new.facts.truth is not None
    assert (new.facts.truth.kind, new.facts.truth.rate) == ("regret", rate)


def test_random_questions_are_the_same() -> None:
    for questions, horizon, width in batches(seed=1, per_shape=2):
        assert same(rows_of(questions, horizon, width))


def spoiled(rng: np.random.Generator) -> list[Row]:
    """Return rows in which anything may be null, twice there, missing, or said by the wrong model."""
    horizon, places = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    chance: Callable[[float], bool] = lambda share: bool(rng.random() < share)  # noqa: E731 - a coin
    tells, parents, ladder = chance(0.15), chance(0.3), chance(0.4)
    rows = list[Row]()
    for number in range(8):
        failed = [[int(rng.integers(1, 4)), "base", "ModelRefusedError" if chance(0.5) else "Timeout"]]
        head: dict[str, Any] = {"group": "g" if chance(0.2) else None, "segment": "s" if chance(0.2) else None}
        head |= {"question": f"Which {number // 2}?" if chance(0.8) else None, "horizon": horizon}
        walks = [None] * 4 + [name for name in (GUIDE_ONLY, "z", BASE_ONLY) if chance(0.4)]
        for walk in walks[: 1 + int(rng.integers(len(walks)))][-4:]:
            for step in range(1, 1 + (horizon if chance(0.8) else int(rng.integers(1, horizon + 1)))):
                for place in range(places):
                    source = f"m{step}" if ladder else ("base", "guide")[place]
                    replay: dict[str, Any] = {"finish_reason": "stop"} if chance(0.7) else {}
                    replay |= {FAILED: failed} if chance(0.01) else {}
                    replay |= {TOLD: True} if tells and chance(0.3) else {}
                    replay |= {"echoed": "x"} if chance(0.1) else {}
                    nothing = chance(0.08)
                    columns: dict[str, Any] = {
                        "source": source if chance(0.95) else None,
                        "model": source if ladder else ("tiny", "huge")[place] if chance(0.9) else None,
                        "answer": None if nothing else f"answer {rng.integers(3)}",
                        "correct": None if nothing or chance(0.01) else chance(0.5),
                        "confidence": float(rng.random()) if chance(0.7) else None,
                        "kept": None if chance(0.3) else chance(0.6),
                        "text": "a text" if chance(0.8) else None,
                        "cost_nano_usd": int(rng.integers(100)) if chance(0.97) else None,
                        "output_tokens": int(rng.integers(9)) if chance(0.9) else None,
                        "signals": {"p_yes": float(rng.random()) if chance(0.8) else None, "replay": replay},
                        "parents": [] if parents and step == 1 else [step - 1] if parents and chance(0.95) else None,
                        "walk": walk,
                    }
                    candidate = None if nothing or chance(0.05) else place if chance(0.97) else 0
                    rows += [row(f"q{number}", step, candidate, **head, **columns)] * (0 if chance(0.03) else 1)
    return [rows[place] for place in rng.permutation(len(rows))] if chance(0.5) else rows


def test_spoiled_rows_are_left_out_alike() -> None:
    rng = np.random.default_rng(3)
    left = 0
    for rows in filter(None, (spoiled(rng) for _ in range(150))):
        assert same(rows)
        left += len(old(rows)[0].ids)
    assert left > 300


def test_spoiled_rows_are_compared_with_the_reference_alike() -> None:
    rng = np.random.default_rng(4)
    compared = 0
    for rows in filter(None, (spoiled(rng) for _ in range(60))):
        audited = [{**each, "split": truth.AUDIT if each["episode_id"] < "q4" else None} for each in rows]
        for given in (rows, audited):
            ours, theirs = Dropped(), Dropped()
            try:
                wanted = truth.labelled_by_reference(lambda given=given: given)  # type: ignore[misc]
            except UsageError:
                with pytest.raises(UsageError):
                    reading.labelled_by_reference(lambda given=given: given)  # type: ignore[misc]
                continue
            labelled = reading.labelled_by_reference(lambda given=given: given)  # type: ignore[misc]
            assert list(labelled.rows(ours)) == list(wanted.rows(theirs))
            assert counts(ours) == counts(theirs)
            assert {*map(tuple, labelled.truths.values())} == {*map(tuple, wanted.truths.values())}
            compared += 1
    assert compared > 30


def test_data_sets_of_one_cascade_are_joined() -> None:
    rows = [
        *LADDER,
        *({**each, "dataset": "other", "signals": each["signals"] | {"late": 1.0}} for each in LADDER[:60]),
    ]
    whole, tables = joined(reads_of(rows)), samples.joined(old(rows))
    assert [name for name in differing(whole.log, bridged(tables)) if "ids" not in name] == []
    assert whole.facts.models == dict(tables.models)
    assert whole.log.baselines[BASE_ONLY].known.sum() == tables.walks[BASE_ONLY].known.sum()
    other = [row("a", dataset="x", kept=True, walk=GUIDE_ONLY), *(row("a", step, dataset="x") for step in (1, 2))]
    last = [row("b", step, dataset="y") for step in (1, 2)]
    mixed = joined(reads_of([*other, *last]))
    assert mixed.log.reference is not None
    assert (mixed.facts.reference, mixed.log.reference.cost_nano_usd.tolist()) == (GUIDE_ONLY, [10, -1])
    with pytest.raises(UsageError, match="different cascades"):
        joined([*reads_of(LADDER), *reads_of(ROUNDS)])
    with pytest.raises(UsageError, match="no episode"):
        joined([])


# --- by hand ---


class Case(NamedTuple):
    """Rows, and the columns of the first request that they become; None: the episode is left out, for `why`."""

    rows: list[Row]
    columns: dict[str, list[Any]]


NAN = float("nan")
QUESTION: Row = {"question": "Which?"}
CASES = {
    "a null answer is no answer": Case(
        [row(), row(step=2, candidate=None)],
        {"answer": [0, -1], "right": [1, NAN], "cost_nano_usd": [10, 10], "bought": [True, True]},
    ),
    "a null cost is unknown": Case([row(cost_nano_usd=None), row(step=2)], {"cost_nano_usd": [-1, 10]}),
    "a cost is that of the call's own node": Case(
        [row(), row(candidate=1, source="guide", cost_nano_usd=100), row(candidate=None, cost_nano_usd=3)],
        {"cost_nano_usd": [13, 100], "answer": [0, 0]},
    ),
    "a call of neither candidate lies on the last node": Case(
        [row(), row(candidate=1, source="guide"), row(candidate=None, source="judge", cost_nano_usd=5)],
        {"cost_nano_usd": [10, 15]},
    ),
    "an unknown confidence and signal": Case(
        [row(signals={"p_yes": None}, confidence=None), row(step=2, signals={"p_yes": 0.5}, confidence=0.25)],
        {"confidence": [NAN, 0.25], "p_yes": [NAN, 0.5]},
    ),
    "answers are equal as the engine compares them": Case(
        [row(answer="The Danube."), row(step=2, answer="Rhine", correct=False), row(step=3, answer="danube")],
        {"answer": [0, 1, 0], "right": [1, 0, 1]},
    ),
    "without texts all right answers are one": Case(
        [row(step=step, answer=None, correct=right) for step, right in ((1, True), (2, False), (3, True), (4, False))],
        {"answer": [0, 1, 0, 2], "right": [1, 0, 1, 0]},
    ),
    "a request whose record ends early": Case([row(horizon=3)], {"bought": [True, False, False], "complete": [False]}),
    "a call that may have been left out": Case(
        [row(parents=[]), row(step=3, parents=[])],
        {"bought": [True, False, True], "answer": [0, -1, 0], "cost_nano_usd": [10, 0, 10]},
    ),
    "the reply's length is that of the output": Case(
        [row(input_tokens=50, output_tokens=7), row(step=2, input_tokens=60, output_tokens=None)],
        {"reply_tokens": [7, NAN], "prompt_tokens": [50, 60]},
    ),
    "a call that was cut off is no step": Case([row(), row(walk="cut off", candidate=None)], {"cost_nano_usd": [10]}),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_rows_become_columns(case: Case) -> None:
    (read,) = reads_of(case.rows)
    for name, values in case.columns.items():
        column = read.log.signals[name] if name in read.log.signals else getattr(read.log, name)
        assert equal(np.asarray(column[0]).ravel(), np.array(values)), name
    assert same(case.rows)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([row(correct=None)], UNJUDGED),
        ([row(step=2)], "an episode with a step missing in the middle"),
        ([row(walk=GUIDE_ONLY, kept=True)], "an episode without a step"),
        (
            [row(signals={"replay": {FAILED: [[1, "base", "Timeout"]]}})],
            "an episode in which the call of a model failed",
        ),
        ([row(candidate=None, text=None)], "an episode with a step without a recorded answer or reply"),
        ([row(step=1, parents=[1])], "an episode with a step that depends on itself or on a later step"),
    ],
)
def test_what_cannot_be_judged_is_left_out_and_counted(rows: list[Row], why: str) -> None:
    dropped = Dropped()
    (read,) = reads_of([*rows, row("other")], dropped)
    assert (read.log.n, dict(read.dropped.rows), read.facts.unjudged) == (1, {why: 1}, int(why == UNJUDGED))
    with pytest.raises(UsageError):
        reads_of(rows)


def test_two_answers_under_the_questions_own_id_are_two_runs_in_one() -> None:
    name = question_id("Which?", None)
    dropped = Dropped()
    reads_of([row(name, **QUESTION), row(name, **QUESTION), row("other")], dropped)
    assert dropped.count == 1
    (read,) = reads_of([row(**QUESTION), row(**QUESTION)])  # an id of its own: two calls that made one answer
    assert read.log.cost_nano_usd.tolist() == [[20]]


def test_repeated_questions_have_one_id_and_all_their_spellings() -> None:
    (read,) = reads_of([row("a", question="Which?"), row("b", question="which"), row("c", question="Who?"), row("d")])
    same_id = identity("Which?", None)
    assert read.log.ids == (same_id, same_id, identity("Who?", None), "d")
    assert {name: len(texts) for name, texts in read.facts.spelled.items()} == {same_id: 2, read.log.ids[2]: 1}


def test_a_run_that_ends_when_a_model_is_told_shows_no_length_and_no_cost_to_a_policy() -> None:
    replay = {"replay": {TOLD: True}}
    (read,) = reads_of([row("a", output_tokens=5, signals=replay), row("b", output_tokens=6)])
    assert read.log.revealing
    assert "reply_tokens" not in read.log.signals
    assert tie_of(read.log) is None
    assert np.isnan(features.read(read.log, (0,), ("cost",))).all()
    assert read.log.cost_nano_usd.tolist() == [[10], [10]]


def test_a_baseline_knows_its_own_cost() -> None:
    rows = [row("a"), row("b"), row("a", walk="z", kept=True, cost_nano_usd=None), row("a", walk=GUIDE_ONLY, kept=True)]
    (read,) = reads_of(rows)
    way, reference = read.log.baselines["z"], read.log.reference
    assert reference is not None
    assert (way.known.tolist(), way.cost_nano_usd.tolist()) == ([True, False], [-1, -1])
    assert (reference.cost_nano_usd.tolist(), read.facts.reference) == ([10, -1], GUIDE_ONLY)
    assert read.log.take(np.array([1])).baselines["z"].known.tolist() == [False]
    assert read.log.priced.tolist() == [True, False]


def test_costs_are_compared_with_prices() -> None:
    from cascade.money import PriceTable

    price = PriceTable.bundled().price("gpt-4o-mini")
    rows = [
        row(model="gpt-4o-mini", input_tokens=1000, output_tokens=1000, cost_nano_usd=cost) for cost in (1, 750_000)
    ]
    found = reading.mispriced(rows, {"gpt-4o-mini": price})
    assert [(each.model, each.calls, each.logged_nano_usd) for each in found] == [("gpt-4o-mini", 1, 1)]
