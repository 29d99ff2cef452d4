"""Read a log, unchanged or with some of its models as a ladder, and decide which of its answers are right.

That follows from labels, from a matcher that compares answers with the accepted ones, or from the reference's output:
an answer is then right if a comparator calls it equal. The reference is the guide asked outright, if the log has that
walk, or else a ladder's last model. People may judge the outputs that differ. A `Log` is used alike in all cases.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cascade.chat import ChatRequest
from cascade.checks import did_you_mean
from cascade.episodes.rows import Dataset, Truth, datasets_of
from cascade.errors import UsageError
from cascade.logs.columns import Calls, Row
from cascade.logs.schema import FAILED, TIER, Dropped, answers, chat_of, replay_of, usage_in
from cascade.matching import Matcher, agreement, default_of, get_matcher, judge_rows
from cascade.money import Price
from cascade.table import AGREEMENT
from cascade.types import GUIDE_ONLY

Rows: TypeAlias = Callable[[], Iterable[Row]]
"""Reads the rows of a log from the start."""
GUIDE = "guide"
"""The name of a log's default reference."""
AUDIT = "audit"
"""The `split` of a trace whose question was drawn for an audit, so that every step was run."""
UNAUDITED = "a question that was not drawn for an audit: whether its steps were run depended on its answers"


class Reading(NamedTuple):
    """A log after reading.

    Attributes:
        datasets: one for each data set.
        rows: reads its rows again.
        matcher: the matcher that judged the answers, if one was named.
        unlabelled: the log does not say which answers are right, so the reference's output does by default.
        unjudged: the log is unlabelled but has accepted answers, and no matcher was named to judge by them.
        command: its name and the options that choose and judge its rows, as on a command line.
        file: the file that it was read from; None for a store or a shipped log.
    """

    datasets: tuple[Dataset, ...]
    rows: Rows
    matcher: str | None = None
    unlabelled: bool = False
    unjudged: bool = False
    command: str = "LOG"
    file: Path | None = None

    def __repr__(self) -> str:
        """Return a small table for each data set."""
        return "\n\n".join(repr(data.log) for data in self.datasets)

    def compared(self, comparator: str | None = None) -> Reading:
        """Return the same log with the reference's output as the truth, by default under the log's own comparator.

        Raises:
            UsageError: it has no reference, or the comparator does not exist.
        """
        chosen = comparator or self.matcher
        truths = [data.facts.truth for data in self.datasets]
        if all(truth is not None and chosen in {None, truth.comparator} for truth in truths):
            return self
        return _compared(self.rows, chosen, Dropped())._replace(command=self.command, file=self.file)


def read(
    rows: Rows,
    dropped: Dropped,
    *,
    matcher: str | None = None,
    reference: str | None = None,
    models: Sequence[str] = (),
    columns: Callable[[], Calls | Iterable[Row]] | None = None,
) -> Reading:
    """Read a log. If it does not say which answers are right, the reference's output is the truth.

    Args:
        rows: its rows.
        dropped: counts everything that is left out.
        matcher: judges every answer again by its gold answers, or by the reference's output (`matching.get_matcher`).
        reference: its output is the truth, whatever the labels say: "guide", or a ladder's model, which then becomes
            the last one.
        models: only these models of a ladder's log, in this order; the last is the reference.
        columns: reads its calls as columns, which is enough if nothing is to be judged.

    Raises:
        UsageError: a model or the matcher does not exist, or no episode is left.
    """
    if reference not in {None, GUIDE}:
        if models and models[-1] != reference:
            raise UsageError(
                f"--reference is {reference}, and --models ends with {models[-1]}: name the reference last."
            )
        models = models or (str(reference),)

    chosen = ladder_of_models(rows, models) if models else rows
    if reference is not None:
        return _compared(chosen, matcher, dropped)
    try:
        judged: Calls | Iterable[Row] = columns() if columns and matcher is None and not models else chosen()
        if matcher is not None:
            judged = judge_rows(chosen(), get_matcher(matcher), overwrite=True)
        return Reading(tuple(datasets_of(judged, dropped)), chosen, matcher)
    except UsageError:
        if (reading := _unlabelled(chosen, matcher, dropped)) is None:
            raise
        return reading


def _unlabelled(rows: Rows, matcher: str | None, dropped: Dropped) -> Reading | None:
    """Read a log with the reference's output as the truth; None if it has labels, or no reference."""
    compared, has_gold = Dropped(), False
    for row in rows():
        has_gold = has_gold or bool(row["gold"])
        if row["correct"] is not None or (has_gold and matcher is not None):
            return None
    try:
        reading = _compared(rows, matcher, compared)
    except UsageError:
        return None
    dropped.rows, dropped.first = compared.rows, compared.first
    return reading._replace(unlabelled=True, unjudged=has_gold)


def _compared(rows: Rows, comparator: str | None, dropped: Dropped) -> Reading:
    labelled = labelled_by_reference(rows, comparator)
    return Reading(tuple(datasets_of(labelled.rows(dropped), dropped, labelled.truths)), rows, comparator)


class Mispriced(NamedTuple):
    """The calls of a model whose logged costs differ from the configured prices, and both costs of the first."""

    calls: int
    logged_nano_usd: int
    priced_nano_usd: int

    def __str__(self) -> str:
        costs = f"{self.logged_nano_usd / 1e9:.6g} USD and costs {self.priced_nano_usd / 1e9:.6g} USD"
        return f"{self.calls:,} calls; the first is logged with {costs} at the configured price"


def mispriced(rows: Iterable[Row], prices: Mapping[str, Price | None]) -> tuple[int, dict[str, Mispriced]]:
    """Return how many calls were compared, and by model those whose logged costs differ from the prices.

    Rows without tokens or costs are skipped, and so are models without a price. Imported logs have rounded costs: two
    costs within 1 %, or one nano-dollar, count as equal.
    """
    compared, differing = 0, dict[str, Mispriced]()
    for row in rows:
        price, logged = prices.get(row["model"] or ""), row["cost_nano_usd"]
        if price is None or logged is None:
            continue
        rate = price.at_tier(replay_of(row).get(TIER))
        priced = None if rate is None else rate.cost_nano_usd(usage_in(row, hour=0))
        compared += priced is not None
        if priced is not None and abs(priced - logged) > max(1, logged // 100):
            before = differing.get(row["model"], Mispriced(0, logged, priced))
            differing[row["model"]] = before._replace(calls=before.calls + 1)
    return compared, differing


def price_problem(differing: Mapping[str, Mispriced]) -> str:
    """Return the message to a user about a log that was costed at other prices."""
    listed = "; ".join(f"{name}: {calls}" for name, calls in differing.items())
    return f"the log was costed at other prices than the configuration: {listed}"


# --- which models ---


def ladder_of_models(rows: Rows, models: Sequence[str]) -> Rows:
    """Return a ladder's log as that of a ladder of only these models, in this order; read their answers.

    The last name is the reference; if only one is named, the models before it in the log stay, too.
    """
    order = _rungs(rows())
    ladder = [*order[: order.index(models[0])], models[0]] if len(models) == 1 and models[0] in order else list(models)
    unknown = [name for name in ladder if name not in order]
    twice = [name for name, times in Counter(ladder).items() if times > 1]
    if unknown:
        raise UsageError(f"The log has no model {unknown[0]}{did_you_mean(unknown[0], order)}.")
    if twice:
        raise UsageError(f"Name each model once; {', '.join(twice)} is named several times.")
    if len(ladder) < 2:
        raise UsageError(
            f"{ladder[0]} is the first model of the log, so nothing can be saved: name cheaper models before it."
        )
    step_of = {name: number for number, name in enumerate(ladder, 1)}
    texts: dict[str, dict[int, str]] = defaultdict(dict)
    for row in rows():
        if row["walk"] is None and row["model"] in step_of and row["answer"] is not None:
            texts[row["episode_id"]][step_of[row["model"]]] = row["answer"]

    def placed(row: Row) -> Row:
        step, signals = step_of[row["model"]], dict(row["signals"] or {})
        if row["answer"] is not None:
            earlier = [text for at, text in sorted(texts[row["episode_id"]].items()) if at < step]
            signals[AGREEMENT] = agreement(row["answer"], earlier, chat_of(row))
        place = {"step": step, "horizon": len(ladder), "source": row["model"], "kept": None}
        return {**row, **place, "signals": signals}

    return lambda: (placed(row) for row in rows() if row["walk"] is None and row["model"] in step_of)


def _rungs(rows: Iterable[Row]) -> list[str]:
    """Return the models of a ladder's log, sorted by the step that each answers."""
    steps_of: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        if row["walk"] is None and row["model"] is not None and row["step"] is not None and answers(row):
            steps_of[row["model"]].add(row["step"])
    several = sorted(name for name, steps in steps_of.items() if len(steps) > 1)
    if several:
        raise UsageError(
            f"{', '.join(several)} answers in several steps of this log, so its models cannot be a ladder in another "
            "order. Name the reference with --reference guide."
        )
    return sorted(steps_of, key=lambda name: (min(steps_of[name]), name))


# --- the reference's outputs as the truth ---


@dataclass(slots=True)
class _ReferenceOutputs:
    """The reference's outputs in one data set: by episode, the guide's, and the last answer with its step."""

    outright: dict[str, str] = field(default_factory=dict)
    last: dict[str, tuple[int, str]] = field(default_factory=dict)
    horizon: int = 1
    guides: set[str] = field(default_factory=set)
    sources: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    audited: set[str] = field(default_factory=set)
    episodes: set[str] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """Add one row."""
        name, step = row["episode_id"], row["step"] or 1
        self.episodes.add(name)
        if row["split"] == AUDIT:
            self.audited.add(name)
        if row["walk"] == GUIDE_ONLY:
            self.guides.update([row["model"]] if row["model"] else ())
            if row["answer"] is not None and row["kept"] is not False:
                self.outright[name] = row["answer"]
        elif row["walk"] is None and row["step"] is not None:
            self.horizon = max(self.horizon, row["horizon"] or 1, step)
            if row["answer"] is not None:
                if all(at != step for at, *_ in replay_of(row).get(FAILED) or ()):  # else a fallback answered
                    self.sources[step].add(row["model"] or row["source"] or "")
                if step >= self.last.get(name, (0, ""))[0]:
                    self.last[name] = step, row["answer"]

    def output(self, episode: str) -> str | None:
        """Return the reference's output; None if it failed or was not asked."""
        if self.outright:
            return self.outright.get(episode)
        step, text = self.last.get(episode, (0, ""))
        return text if step == self.horizon else None

    def gives(self, row: Row) -> bool:
        """Return whether a row is the reference's own."""
        if self.outright:
            return bool(row["walk"] == GUIDE_ONLY)
        return bool(row["walk"] is None and row["step"] == self.horizon)

    def name(self, dataset: str) -> str:
        """Return the reference's name."""
        names = self.guides if self.outright else self.sources[self.horizon]
        if not self.outright and (self.horizon < 2 or len(names) != 1):
            raise UsageError(
                f"{dataset} has no reference: neither the guide asked outright (the walk {GUIDE_ONLY!r}, which cascade "
                "collect records) nor a ladder that ends in one model. Name its models: --models CHEAP,DEAR."
            )
        return next(iter(names)) if len(names) == 1 else "the guide"


@dataclass(frozen=True, slots=True)
class Relabelled:
    """A log whose truth is the reference's output.

    Attributes:
        truths: by data set, the reference and the comparator.
        rows: yields the rows, with the reference's output as `gold`, and as `correct` whether the answer equals it.
    """

    truths: Mapping[str, Truth]
    rows: Callable[[Dropped], Iterator[dict[str, Any]]]


def labelled_by_reference(rows: Rows, comparator: str | None = None) -> Relabelled:
    """Return a log in which the reference's output replaces the accepted answers and judges every answer.

    An answer counts as different if the comparator cannot decide. The reference's own answer equals itself. If the
    reference failed, or was not asked, every other answer counts as different. If a log has audits, and questions for
    which not every step was run, only the audits stay. `comparator` is a name for `matching.get_matcher`; by default
    the one that all requests choose, or each request's own.

    Raises:
        UsageError: the matcher does not exist, or a data set has no reference.
    """
    references: dict[str, _ReferenceOutputs] = defaultdict(_ReferenceOutputs)

    def requests() -> Iterator[ChatRequest | None]:
        for row in rows():
            references[row["dataset"] or "log"].add(row)
            if comparator is None:
                yield chat_of(row)

    default, cautions = default_of(requests())
    chosen = comparator or default
    comparing = get_matcher(chosen)
    truths = {
        dataset: Truth(reference.name(dataset), chosen, cautions=cautions) for dataset, reference in references.items()
    }

    def judged(dropped: Dropped) -> Iterator[dict[str, Any]]:
        # in questions without an audit, the outcomes decided whether all steps were run
        audits = {
            name for name, at in references.items() if at.audited and None in map(at.output, at.episodes - at.audited)
        }
        left_out: set[tuple[str, str]] = set()
        for row in rows():
            dataset, episode = row["dataset"] or "log", row["episode_id"]
            if dataset not in audits or episode in references[dataset].audited:
                yield _judged(row, references[dataset], comparing)
            elif (dataset, episode) not in left_out:
                left_out.add((dataset, episode))
                dropped.drop(UNAUDITED, episode)

    return Relabelled(truths, judged)


def _judged(row: Row, reference: _ReferenceOutputs, comparing: Matcher) -> dict[str, Any]:
    output = reference.output(row["episode_id"])
    judged = {**row, "gold": None if output is None else [output]}
    if output is None:
        judged["signals"] = _without_failure(row, reference)
    if not answers(row):
        return judged
    if output is None or reference.gives(row):
        return {**judged, "correct": output is not None}
    return {**judged, "correct": same(comparing, row["answer"], output, chat_of(row))}


def same(comparing: Matcher, answer: str | None, output: str, request: ChatRequest | None) -> bool:
    """Return whether an answer equals the reference's output; if the comparator cannot decide, it does not."""
    return answer is not None and (answer == output or comparing.same(answer, output, request) is True)


def _without_failure(row: Row, reference: _ReferenceOutputs) -> Any:
    """Return a row's signals without the mark of failed calls, if only the reference's call failed.

    Such an episode counts as a difference; if another model's call failed, it is left out, as from any log.
    """
    failed = replay_of(row).get(FAILED)
    if not failed or any(step != reference.horizon for step, *_ in failed):
        return row["signals"]
    replay = {name: value for name, value in replay_of(row).items() if name != FAILED}
    return {**row["signals"], "replay": replay}


# --- people's judgements as the truth ---


class Judgements(NamedTuple):
    """The judgements of people.

    Attributes:
        kind: the promise that they judged for.
        rate: the share of the requests that was drawn.
        drawn: whether a request, by its id, was drawn.
        loses: whether serving the output of a row that differs from the reference's loses something; None: not judged.
    """

    kind: str
    rate: float
    drawn: Callable[[str], bool]
    loses: Callable[[Row], bool | None]


def reviewed(labelled: Relabelled, judgements: Judgements, dropped: Dropped) -> list[Dataset]:
    """Return a log in which an output is right if it equals the reference's, or if people found that it loses nothing.

    The truth of an output that differs and that nobody judged is unknown.
    """

    def judged() -> Iterator[Row]:
        for row in labelled.rows(dropped):
            if row["answer"] is None or row["correct"] is not False:
                yield row
            else:
                loses = judgements.loses(row)
                yield {**row, "correct": None if loses is None else not loses}

    truths = {
        name: truth._replace(kind=judgements.kind, rate=judgements.rate) for name, truth in labelled.truths.items()
    }
    return datasets_of(judged(), dropped, truths, judgements.drawn)
