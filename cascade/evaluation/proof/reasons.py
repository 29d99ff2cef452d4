"""Explain in sentences why a cascade saves money in a proof, or why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cascade.episodes.schema import BASE_ONLY
from cascade.evaluation.baselines import FIRST_STEP, NAMES
from cascade.evaluation.proof.proving import Proof
from cascade.evaluation.proof.split_results import Coin, Way
from cascade.evaluation.splits import Interval
from cascade.text import capital, counted

_WEAK = 0.6
"""With a lower AUROC a signal hardly tells right from wrong: a threshold on it saves a few per cent at most."""
_MOST = 0.5
_SEVERAL = 1.05
FEW_SPLITS = 10
"""Of fewer splits Student's t alone makes an interval wider, by more than a sixth, than many splits do."""
CLOSE = 0.05
"""An accuracy lower than the reference's by this much is not called as good, even if the interval allows it."""


class Reason(NamedTuple):
    """One reason: a key word that names it, and its sentence."""

    kind: str
    said: str


def called(way: Way) -> str:
    """Return the name of a method, for use within a sentence."""
    return NAMES.get(way.name, way.name)


def share(value: float) -> str:
    """Return a share as a percentage.

    >>> share(0.4213), share(0.0012)
    ('42.1 %', '0.1 %')
    """
    return f"{100 * value:.1f} %".replace("-", "−")


def points(gap: Interval) -> str:
    """Return a difference of shares in percentage points, with its interval where it has one.

    >>> points(Interval(-0.031, -0.04, -0.022))
    '−3.1 points [−4.0, −2.2]'
    """
    between = "" if gap.low is None or gap.high is None else f" [{_signed(gap.low)}, {_signed(gap.high)}]"
    return f"{_signed(gap.mean)} points{between}"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def reasons(proof: Proof) -> list[Reason]:
    """Return the reasons that explain a proof, the most important first."""
    found = (
        *_of_the_promise(proof),
        *_of_chance(proof),
        *_of_the_models(proof),
        *_of_the_signals(proof),
        *_of_the_set(proof),
        *_of_the_questions(proof),
        *(Reason("unknown", said) for said in proof.unknown),
    )
    return list(found)


def _of_the_promise(proof: Proof) -> Iterator[Reason]:
    if proof.impossible:
        because = proof.guarantee.rules.impossible(share(proof.lost), called(proof.reference))
        yield Reason("impossible", f"No policy over these steps can keep this promise: {because}.")
    elif proof.refused:
        many = "every split" if proof.refused == proof.splits else f"{proof.refused} of {proof.splits} splits"
        said = f"Nothing was certified in {many}; there you keep using {called(proof.reference)}."
        yield Reason("refused", f"{said} The first reason: {proof.why_refused}")


def tossed(proof: Proof, coin: Coin) -> str:
    """Return the two ways that a coin chooses between, in words."""
    names = {way.name: called(way) for way in (proof.reference, *proof.others)}
    if coin.one == coin.other or not 0 < coin.share < 1:
        return names[coin.other if coin.share == 1 else coin.one]
    return f"a coin between {names[coin.one]} and {names[coin.other]} ({share(coin.share)} of the questions)"


def _of_chance(proof: Proof) -> Iterator[Reason]:
    """Yield the saving of a coin that breaks the promise as often, or of one way alone that breaks it less often."""
    coin, ways = proof.coin, {way.name: way for way in (proof.reference, *proof.others)}
    if coin is None or coin.saving <= 0:
        return
    beside = f": the learned policy adds {points(coin.ahead)}, which may be nothing" if proof.verdict == "blind" else ""
    if 0 < coin.share < 1:
        said = f"{capital(tossed(proof, coin))} breaks the promise as often and saves {share(coin.saving)}{beside}."
        yield Reason("coin", said)
        return
    alone = ways[coin.other if coin.share == 1 else coin.one]
    said = f"{capital(called(alone))} breaks the promise on {share(alone.broken)} of the questions"
    yield Reason("no policy needed", f"{said}, no more often than the learned policy, and saves {share(coin.saving)}.")


def enough_alone(proof: Proof) -> Way | None:
    """Return the base alone, or the first step, if no difference to the reference's accuracy can be shown."""
    for way in proof.others:
        gap = way.accuracy_gap
        if way.name in {BASE_ONLY, FIRST_STEP} and gap is not None and gap.mean > -CLOSE and (gap.high or 0) >= 0:
            return way
    return None


def _of_the_models(proof: Proof) -> Iterator[Reason]:
    """Yield how the reference compares with the other baselines, and how much could be saved at most."""
    reference = proof.reference
    enough = enough_alone(proof)
    if enough is not None and enough.accuracy_gap is not None:
        yield Reason("no better", _no_better(enough, reference, enough.accuracy_gap))
    if proof.clairvoyant_usd is not None and reference.cost_usd:
        most = 1 - proof.clairvoyant_usd / reference.cost_usd
        if most > 0:
            said = (
                f"Knowing every answer beforehand would save {share(most)}: no policy over these steps can save more."
            )
        else:
            said = f"Even a policy that knows every answer costs {share(-most)} more: the steps are too expensive."
        yield Reason("bound", said)


def _no_better(way: Way, reference: Way, gap: Interval) -> str:
    more = "more often" if (gap.low or 0) > 0 else "as often, within the error"
    return (
        f"{capital(called(way))} is right {more}: {share(way.accuracy)} against {share(reference.accuracy)} "
        f"({points(gap)}). Paying more for {called(reference)} gives no more right answers."
    )


def _of_the_signals(proof: Proof) -> Iterator[Reason]:
    if not proof.signals:
        if proof.horizon > 1:
            yield Reason("no signal", _without_signals(proof))
        return
    best = proof.signals[0]
    between = f" [{best.auroc.low:.2f}, {best.auroc.high:.2f}]" if best.auroc.low is not None else ""
    right = "right" if proof.truth is None else proof.truth.right
    told = f"{best.name} tells whether the first answer is {right}, with an AUROC of {best.auroc.mean:.2f}{between}"
    if (best.auroc.low or 0.0) <= _MOST or best.auroc.mean < _WEAK:
        yield Reason("weak signals", f"The signals hardly tell right from wrong: at best, {told}.")
    else:
        yield Reason("signals", f"The signal {told} (0.5 is a coin, 1 is perfect).")


def _without_signals(proof: Proof) -> str:
    if proof.first_right == 1:
        return "The first step answers every question rightly: there is no wrong answer for a signal to detect."
    if proof.unsolvable == 1:
        return "No step answers any question rightly: there is no right answer for a signal to detect."
    if proof.first_right == 0:
        return "The first step answers no question rightly: there is no right answer for a signal to detect."
    return (
        "The log has no signal of the first step that varies: only the question's text can tell easy questions from "
        "hard ones."
    )


def _of_the_set(proof: Proof) -> Iterator[Reason]:
    """Yield what a promise on the set, or on most questions, does not say about the one answer served."""
    policy, reference = proof.policy, proof.reference
    if proof.refused == proof.splits:
        return
    several = not proof.guarantee.single and policy.answers > _SEVERAL
    gap = policy.accuracy_gap
    if several:
        yield Reason(
            "more answers",
            f"The promise covers the set of answers kept, {policy.answers:.2f} different ones a question. The "
            f"one served "
            f"is right on {share(policy.accuracy)}, against {share(reference.accuracy)} for {called(reference)}. If "
            "you serve one answer, ask for --guarantee regret.",
        )
    elif proof.truth is None and gap is not None and gap.high is not None and gap.high < 0:
        yield Reason(
            "less often right",
            f"The answer served is right less often than that of {called(reference)}: {points(gap)}. The promise "
            "allows as much.",
        )


def _of_the_questions(proof: Proof) -> Iterator[Reason]:
    if proof.unsolvable > _MOST:
        yield Reason(
            "unsolvable",
            f"No step answers {share(proof.unsolvable)} of the questions rightly. They count as covered, so that "
            "coverage promises little here.",
        )
    saving = proof.policy.saving
    if proof.verdict == "unsure" and saving is not None and saving.low is not None and saving.high is not None:
        between = f"the saving lies between {share(saving.low)} and {share(saving.high)}"
        if proof.splits < FEW_SPLITS:
            said = (
                f"With {proof.splits} splits of {proof.n:,} questions, {between}. More splits (--splits 20) tell more."
            )
            yield Reason("few splits", said)
        else:
            said = f"With {proof.n:,} questions, {between}; four times as many would about halve this interval."
            yield Reason("few questions", said)
    if proof.left_out:
        many = f"{counted(proof.left_out, 'more question')} {'has' if proof.left_out == 1 else 'have'}"
        yield Reason("left out", f"{many} no record of {called(proof.reference)}.")
