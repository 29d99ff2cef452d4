"""Label a log without labels: an answer is right if a comparator finds it the same as the reference's output.

Only this module puts the reference's output in place of the accepted answers. Code that fits, certifies, verifies or
compares then reads "right" as "equal to the reference's", and needs no change.

The reference is the guide asked outright, if the log has that walk, or else a ladder's last model.
`ladder_of_models` makes any model the last of a ladder.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cascade.chat import ChatRequest
from cascade.checks import did_you_mean
from cascade.episodes.schema import FAILED, GUIDE_ONLY, Dropped, answers, chat_of, replay_of
from cascade.episodes.table import AGREEMENT
from cascade.errors import UsageError
from cascade.guarantees.questions import Truth
from cascade.matching import Comparator, default_for, default_of, get_comparator
from cascade.matching.same import agreement

GUIDE = "guide"
"""The name of a log's default reference."""
AUDIT = "audit"
"""The `split` of a trace whose question was drawn for an audit, so that every step was run."""
UNAUDITED = "a question that was not drawn for an audit: whether its steps were run depended on its answers"

Row: TypeAlias = Mapping[str, Any]


# --- which models ---


def ladder_of_models(read: Callable[[], Iterable[Row]], models: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of some models of a ladder's log, as the log of a ladder of these models, in this order.

    The last name is the reference; of one name alone, the models before it in the log are kept too. `read` reads the
    log from the start each time.
    """
    order = _rungs(read())
    wanted = [*order[: order.index(models[0])], models[0]] if len(models) == 1 and models[0] in order else list(models)
    unknown = [name for name in wanted if name not in order]
    twice = [name for name, many in Counter(wanted).items() if many > 1]
    if unknown:
        listed = ", ".join(order[:_NAMED]) + (f" and {len(order) - _NAMED} more" if len(order) > _NAMED else "")
        raise UsageError(f"The log has no model {unknown[0]}{did_you_mean(unknown[0], order)}; it has {listed}.")
    if twice:
        raise UsageError(f"Name each model once; {', '.join(twice)} is named several times.")
    if len(wanted) < 2:
        raise UsageError(
            f"{wanted[0]} is the first model of the log, so nothing can be saved: name cheaper models before it."
        )
    place = {name: number for number, name in enumerate(wanted, 1)}
    said: dict[str, dict[int, str]] = defaultdict(dict)
    for row in read():
        if row["walk"] is None and row["model"] in place and row["answer"] is not None:
            said[row["episode_id"]][place[row["model"]]] = row["answer"]
    for row in read():
        if row["walk"] is None and row["model"] in place:
            step, signals = place[row["model"]], dict(row["signals"] or {})
            if row["answer"] is not None:
                earlier = [text for at, text in sorted(said[row["episode_id"]].items()) if at < step]
                signals[AGREEMENT] = agreement(row["answer"], earlier, chat_of(row))
            changed = {"step": step, "horizon": len(wanted), "source": row["model"], "kept": None}
            yield {**row, **changed, "signals": signals}


_NAMED = 12


def _rungs(rows: Iterable[Row]) -> list[str]:
    """Return the models of a ladder's log, by the step that each answers."""
    found: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        if row["walk"] is None and row["model"] is not None and row["step"] is not None and answers(row):
            found[row["model"]].add(row["step"])
    several = sorted(name for name, steps in found.items() if len(steps) > 1)
    if several:
        raise UsageError(
            f"{', '.join(several)} answers in several steps of this log, so its models cannot be a ladder in another "
            "order. Name the reference with --reference guide, or read the log as a ladder: ladder:LOG."
        )
    return sorted(found, key=lambda name: (min(found[name]), name))


# --- the reference's outputs ---


@dataclass(slots=True)
class _Given:
    """The reference's outputs in one data set.

    `walked` has the guide's output by episode, `last` the latest step with an answer and its text. `audited` has the
    episodes of audits.
    """

    walked: dict[str, str] = field(default_factory=dict)
    last: dict[str, tuple[int, str]] = field(default_factory=dict)
    horizon: int = 1
    guides: set[str] = field(default_factory=set)
    makers: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    audited: set[str] = field(default_factory=set)
    episodes: set[str] = field(default_factory=set)

    def take(self, row: Row) -> None:
        """Add one row."""
        name, step = row["episode_id"], row["step"] or 1
        self.episodes.add(name)
        if row["split"] == AUDIT:
            self.audited.add(name)
        if row["walk"] == GUIDE_ONLY:
            self.guides.update([row["model"]] if row["model"] else ())
            if row["answer"] is not None and row["kept"] is not False:
                self.walked[name] = row["answer"]
        elif row["walk"] is None and row["step"] is not None:
            self.horizon = max(self.horizon, row["horizon"] or 1, step)
            if row["answer"] is not None:
                self.makers[step].add(row["model"] or row["source"] or "")
                if step >= self.last.get(name, (0, ""))[0]:
                    self.last[name] = step, row["answer"]

    @property
    def outright(self) -> bool:
        """Whether the log has the guide asked outright."""
        return bool(self.walked)

    def output(self, episode: str) -> str | None:
        """Return the reference's output; None if it failed or was not asked."""
        if self.outright:
            return self.walked.get(episode)
        step, text = self.last.get(episode, (0, ""))
        return text if step == self.horizon else None

    def gives(self, row: Row) -> bool:
        """Whether a row is the reference's own."""
        if self.outright:
            return bool(row["walk"] == GUIDE_ONLY)
        return bool(row["walk"] is None and row["step"] == self.horizon)

    def name(self, dataset: str) -> str:
        """Return the reference's name."""
        names = self.guides if self.outright else self.makers[self.horizon]
        if not self.outright and (self.horizon < 2 or len(names) != 1):
            raise UsageError(
                f"{dataset} has no reference: neither the guide asked outright (the walk {GUIDE_ONLY!r}, which cascade "
                "collect records) nor a ladder that ends in one model. Name its models: --models CHEAP,DEAR."
            )
        return next(iter(names)) if len(names) == 1 else "the guide"

    @property
    def only_audits(self) -> bool:
        """Whether to use audited questions only: in the others, the outcomes decided whether all steps were run."""
        return bool(self.audited) and any(self.output(one) is None for one in self.episodes - self.audited)


@dataclass(frozen=True, slots=True)
class Relabelled:
    """A log whose truth is the reference's output.

    Attributes:
        truths: by data set, the reference and the comparator.
        rows: yields the rows, with the reference's output as `gold`, and as `correct` whether the answer equals it.
    """

    truths: Mapping[str, Truth]
    rows: Callable[[Dropped], Iterator[dict[str, Any]]]


def labelled_by_reference(read: Callable[[], Iterable[Row]], comparator: str | None = None) -> Relabelled:
    """Return a log in which the reference's output replaces the accepted answers and judges every answer.

    An answer counts as different if the comparator cannot decide. The reference's own answer equals itself. If the
    reference failed, or was not asked, every other answer counts as different. Of a log with audits, and with questions
    on which not every step was run, only the audits are kept. `comparator` is a name for `matching.get_comparator`; by
    default the one that all requests choose, or each one's own. `read` reads the log from the start each time.

    Raises:
        UsageError: the matcher does not exist, or a data set has no reference.
    """
    found: dict[str, _Given] = defaultdict(_Given)

    def requests() -> Iterator[ChatRequest | None]:
        for row in read():
            found[row["dataset"] or "log"].take(row)
            if comparator is None:
                yield chat_of(row)

    default, cautions = default_of(requests())
    chosen = comparator or default
    comparing = get_comparator(chosen)
    truths = {dataset: Truth(given.name(dataset), chosen, cautions=cautions) for dataset, given in found.items()}

    def rows(dropped: Dropped) -> Iterator[dict[str, Any]]:
        left_out: set[tuple[str, str]] = set()
        audits_alone = {dataset for dataset, given in found.items() if given.only_audits}
        for row in read():
            dataset, episode = row["dataset"] or "log", row["episode_id"]
            given = found[dataset]
            if dataset in audits_alone and episode not in given.audited:
                if (dataset, episode) not in left_out:
                    dropped.drop(UNAUDITED, episode)
                left_out.add((dataset, episode))
                continue
            yield _judged(row, given, comparing)

    return Relabelled(truths, rows)


def _judged(row: Row, given: _Given, comparing: Comparator) -> dict[str, Any]:
    output = given.output(row["episode_id"])
    judged = {**row, "gold": None if output is None else [output]}
    if output is None:
        judged["signals"] = _without_failure(row, given)
    if not answers(row):
        return judged
    if output is None or given.gives(row):
        return {**judged, "correct": output is not None}
    return {**judged, "correct": same(comparing, row["answer"], output, chat_of(row))}


def same(comparing: Comparator, answer: str | None, output: str, request: ChatRequest | None) -> bool:
    """Whether an answer equals the reference's output; if the comparator cannot decide, it counts as different."""
    return answer is not None and (answer == output or comparing.same(answer, output, request) is True)


def _without_failure(row: Row, given: _Given) -> Any:
    """Return a row's signals without the mark that calls failed, if only the reference's call failed.

    Such an episode counts as a difference; if another model's call failed it is left out, as from any log.
    """
    failed = replay_of(row).get(FAILED)
    if not failed or any(step != given.horizon for step, *_ in failed):
        return row["signals"]
    signals = dict(row["signals"])
    signals["replay"] = {name: one for name, one in signals["replay"].items() if name != FAILED}
    return signals


TEXT = default_for(None).name
"""For requests that ask for no form."""
