"""The page that `cascade prove` prints for each cascade of a log, also as Markdown and as plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cascade.api.output import Block, Command, Heading, Listed, Rows, Said, per_thousand
from cascade.calibration.samples import PER_RUNG
from cascade.conformal.ltt import chance_said
from cascade.evaluation.baselines import CLAIRVOYANT, label
from cascade.evaluation.proof.proving import Proof
from cascade.evaluation.proof.reasons import CLOSE, Reason, called, enough_alone, points, reasons, share
from cascade.evaluation.proof.split_results import Way
from cascade.evaluation.splits import Interval
from cascade.guarantees.base import Guarantee
from cascade.text import counted, percent

_WIDE, _MIDDLE = 110, 94
_SIGNALS_SAID = _SEGMENTS_SAID = 5
_HARDLY = 0.01
"""Steps per question: a saving below this counts as no step saved."""
_COIN = "a coin, as broken"


@dataclass(frozen=True, slots=True)
class Cascade:
    """The result for one cascade: a proof for each requested promise; the first is the headline.

    Attributes:
        log: the options that name the questions on a command line, quoted for a shell: the log, its filters, the
            matcher.
        proofs: the result for each promise.
        failed: why there is no proof, in words.
        dataset: the name of the questions.
        method: the one method that was fitted; None for all that `cascade fit` tries by default.
    """

    log: tuple[str, ...]
    dataset: str
    proofs: tuple[Proof, ...] = ()
    failed: str | None = None
    method: str | None = None


# --- what the page says ---


def page(found: Cascade, width: int) -> Iterator[Block]:
    """Yield the page of one cascade, for a terminal `width` columns wide."""
    yield Heading(found.dataset)
    if not found.proofs:
        yield Said("Nothing can be said.", strong=True)
        yield Said(f"{found.failed}")
        return
    proof = found.proofs[0]
    yield Said(_setting(proof))
    yield Said(headline(proof), strong=True)
    yield Said(_promise(proof))
    ways = _ways(proof, width)
    yield ways
    yield Said(_legend(proof, ways.heads))
    if proof.segments:
        yield Heading("Segment by segment, the worst first", 3)
        yield _segments(proof)
        yield Said(_segments_said(proof))
    if len(found.proofs) > 1:
        yield Heading("Other promises", 3)
        yield _promises(found.proofs, width)
        yield Said(
            f"Each of the {len(found.proofs)} promises and each 95 % interval holds separately: that all hold at once "
            "is less likely. None of them covers the choice of the one that looks best here: decide by what "
            "you need, or check your choice on questions that are not in this log."
        )
    yield Heading("Why", 3)
    yield Listed([one.said for one in reasons(proof)])
    if proof.signals and width >= _MIDDLE:
        yield Heading("What the first step's signals tell", 3)
        yield _signals(proof)
    yield Heading("Next", 3)
    yield from _next(found, proof)


def _setting(proof: Proof) -> str:
    groups = "" if proof.groups == proof.n else f" of {proof.groups:,} groups"
    repeated = "" if not proof.repeated else f" ({proof.repeated:,} repeated left out)"
    fit, test = proof.sizes
    fitted = ", ".join(
        name if many == proof.splits else f"{name} ({'once' if many == 1 else f'{many} times'})"
        for name, many in proof.fitted.items()
    )
    asked = f"{counted(proof.n, 'question')}{groups}{repeated}, {counted(proof.horizon, 'step')}."
    if proof.impossible:
        none = "Nothing was fitted, since no policy can keep the promise"
        return f"{asked} {none}; figures are means over {proof.splits} random splits."
    return (
        f"{asked} {proof.splits} random splits: everything is fitted and certified on {fit:,} questions "
        f"({fitted or 'nothing was certified'}), the rest, {test:,}, are the test."
    )


def headline(proof: Proof) -> str:
    """Return the conclusion of a proof, in a sentence."""
    if proof.impossible:
        return "You cannot save: no policy over these steps can keep this promise."
    if proof.verdict == "refused":
        return f"No saving is shown: in {proof.refused} of {proof.splits} splits this promise cannot be certified."
    policy, reference, saving = proof.policy, proof.reference, proof.policy.saving
    good = "answered rightly" if proof.truth is None else proof.truth.good
    right = f"{share(policy.accuracy)} instead of {share(reference.accuracy)} {good}"
    if saving is None:
        length = f"{policy.length:.2f} of {proof.horizon} steps are run on average"
        return f"No saving in money can be shown, since the log has no costs: {length}, {right}."
    prices = f"{per_thousand(policy.cost_usd)} instead of {per_thousand(reference.cost_usd)} per 1,000 questions"
    of = f"of what {called(reference)} costs"
    more = Interval(-saving.mean, *(None if one is None else -one for one in (saving.high, saving.low)))
    said = {
        "saves": f"You can save {interval(saving)} {of}, at this promise",
        "blind": f"No saving is shown that a coin would not bring: {interval(saving)} {of}",
        "costs": f"You cannot save: at this promise a cascade costs {interval(more)} more than {called(reference)}",
        "unsure": f"No saving is shown: {interval(saving)} {of}, which may be nothing",
    }[proof.verdict]
    return f"{said}: {prices}, {right}."


def interval(found: Interval) -> str:
    """Return a share with its interval.

    >>> interval(Interval(0.421, 0.38, 0.462))
    '42.1 % [38.0, 46.2]'
    """
    if found.low is None or found.high is None:
        return share(found.mean)
    return f"{share(found.mean)} [{100 * found.low:.1f}, {100 * found.high:.1f}]".replace("-", "−")


def promise(guarantee: Guarantee, *, grouped: bool = False) -> str:
    """Return a promise in words. With `grouped`, one question of each group certifies."""
    least = percent(guarantee.alpha or 0.0, rest=True)
    one = "a random question of a random fresh group" if grouped else "a fresh question"
    over = one if guarantee.delta is not None else f"the calibration and {one}"
    rest = "" if guarantee.delta is None else f". At most {percent(guarantee.delta)} of calibrations break this promise"
    return f"with probability at least {least} over {over}, {guarantee.rules.event}{rest}"


def _promise(proof: Proof) -> str:
    alpha = proof.guarantee.alpha or 0.0
    grouped = proof.groups < proof.n
    said = f"The promise: {promise(proof.guarantee, grouped=grouped)}."
    certified = proof.splits - proof.refused
    if not certified:
        return said
    above = f"and on more than {percent(alpha)} in {proof.exceeded} of {certified} splits (chance alone can do this)"
    none = f"never more than {percent(alpha)}"
    weighed = (
        " This figure counts each question once, and the promise counts each group once: long groups weigh more here."
        * grouped
    )
    return (
        f"{said} On the test questions it was broken on {share(proof.policy.broken)} on average, "
        f"{above if proof.exceeded else none}.{weighed}"
    )


def _segments(proof: Proof) -> Rows:
    shown = proof.segments[:_SEGMENTS_SAID]
    rows = [
        [one.name, f"{one.questions:,}", "-" if one.saving is None else share(one.saving), f"{one.broken:.3f}"]
        for one in shown
    ]
    return Rows(["segment", "questions", "saves", "broken"], rows)


def _segments_said(proof: Proof) -> str:
    many = len(proof.segments)
    rest = "" if many <= _SEGMENTS_SAID else f" {many - _SEGMENTS_SAID} more are broken less often."
    return (
        f"The promise covers all questions together, not each segment; the worst of {many} looks worse than it "
        f"is.{rest} For a promise on each: cascade fit --by-segment."
    )


def _name(way: Way) -> str:
    return label(way.name)


def _ways(proof: Proof, width: int) -> Rows:
    sets = _WIDE if proof.guarantee.single else 0
    columns: list[tuple[str, int, Callable[[Way], str]]] = [
        ("cost/1k", 0, lambda way: per_thousand(way.cost_usd)),
        ("saves", 0, lambda way: "" if way.saving is None else interval(way.saving)),
        ("right", 0, lambda way: f"{way.accuracy:.3f}"),
        ("Δ right, points", _WIDE, lambda way: "" if way.accuracy_gap is None else _gap(way.accuracy_gap)),
        ("broken", 0, lambda way: f"{way.broken:.3f}"),
        ("in set", sets, lambda way: f"{way.in_set:.3f}"),
        ("set", sets, lambda way: f"{way.answers:.2f}"),
        ("len", 0, lambda way: f"{way.length:.2f}"),
    ]
    shown = [one for one in columns if one[1] <= width]
    ways = [proof.reference, *([proof.policy] if proof.refused < proof.splits else []), *proof.others]
    rows = [[_name(way), *(cell(way) for _, _, cell in shown)] for way in ways]
    if proof.coin is not None and proof.reference.cost_usd:
        coin = proof.coin
        cost = per_thousand(proof.reference.cost_usd * (1 - coin.saving))
        told = {"cost/1k": cost, "saves": share(coin.saving), "right": f"{coin.accuracy:.3f}"}
        told["broken"] = f"{proof.policy.broken:.3f}"
        rows.append([_COIN, *(told.get(head, "") for head, _, _ in shown)])
    if proof.clairvoyant_usd is not None and proof.reference.cost_usd:
        saved = share(1 - proof.clairvoyant_usd / proof.reference.cost_usd)
        rows.append([CLAIRVOYANT, per_thousand(proof.clairvoyant_usd), saved, *[""] * (len(shown) - 2)])
    return _fitting(Rows(["", *(head for head, _, _ in shown)], rows), width)


def _fitting(table: Rows, width: int) -> Rows:
    """Return a table that fits: the least informative columns are dropped, and no figure is cut."""
    heads, rows = table.heads, table.rows
    for gone in ("len", "set", "in set"):
        needed = sum(max(map(len, column)) + 1 for column in zip(heads, *rows, strict=True))
        if needed > width and gone in heads:
            place = heads.index(gone)
            heads = [*heads[:place], *heads[place + 1 :]]
            rows = [[*row[:place], *row[place + 1 :]] for row in rows]
    return Rows(heads, rows)


def _gap(found: Interval) -> str:
    return points(found).replace(" points", "")


def _legend(proof: Proof, heads: Sequence[str]) -> str:
    meaning = {
        "cost/1k": "USD per 1,000 questions",
        "saves": f"of the cost of {called(proof.reference)}, with a 95 % interval over the splits",
        "right": "the one answer served is right" if proof.truth is None else proof.truth.good,
        "broken": "counts against the promise",
        "in set": "a right answer is kept",
        "set": "different answers kept",
        "len": "steps",
    }
    said = [f"{head}: {meaning[head]}" for head in heads if head in meaning]
    if proof.coin is not None and proof.reference.cost_usd:
        said.append(f"{_COIN}: the cheapest random mix of two rows without signals that breaks the promise as often")
    if any(way.name == PER_RUNG for way in proof.others):
        said.append(f"{PER_RUNG}: tuned on each split's questions, to break the promise as often; not certified")
    if proof.clairvoyant_usd is not None and proof.reference.cost_usd:
        said.append(f"{CLAIRVOYANT}: what it would cost if every answer were known beforehand")
    return "; ".join(said) + "."


def _promises(proofs: Sequence[Proof], width: int) -> Rows:
    heads = ["", "saves", "right", *(["Δ right, points"] if width >= _WIDE else []), "broken", "refused"]
    rows = []
    for proof in proofs:
        policy, gap = proof.policy, proof.policy.accuracy_gap
        certified = proof.refused < proof.splits
        wide = [] if width < _WIDE else ["" if gap is None else _gap(gap)]
        found = ["-" if policy.saving is None else interval(policy.saving), f"{policy.accuracy:.3f}", *wide]
        found = [*found, f"{policy.broken:.3f}"] if certified else ["-"] * (len(found) + 1)
        alpha = f"{proof.guarantee.kind}, alpha {proof.guarantee.alpha:g}"
        rows.append([alpha, *found, f"{proof.refused} of {proof.splits}"])
    return Rows(heads, rows)


def _signals(proof: Proof) -> Rows:
    rows = []
    for one in proof.signals[:_SIGNALS_SAID]:
        low, high = one.auroc.low, one.auroc.high
        bounds = "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        rows.append([one.name, f"{one.auroc.mean:.3f}", bounds, "doubt" if one.doubt else "trust", share(one.known)])
    return Rows(["", "AUROC", "95 % interval", "high means", "known"], rows)


def _next(found: Cascade, proof: Proof) -> Iterator[Block]:
    advice = _advice(proof)
    yield Said(advice)
    if proof.verdict == "saves" or advice.endswith(":"):
        yield fit_command(found, proof)


def _advice(proof: Proof) -> str:
    """Return what to do next, in a sentence or two."""
    if proof.unsolvable == 1:
        return "No logged answer is right: check how they are judged (--matcher), or try other models."
    enough = None if proof.verdict == "saves" else enough_alone(proof)
    if enough is None or (enough.saving is not None and enough.saving.mean <= 0):
        return _usual_advice(proof)
    price = "" if enough.saving is None else f", for {share(1 - enough.saving.mean)} of the cost"
    gap = enough.accuracy_gap
    if gap is not None and gap.low is not None and gap.low > -CLOSE:
        return f"Serve {called(enough)}: it is as right as {called(proof.reference)}{price}, and needs no policy."
    maybe = f"{called(enough)} may be as right as {called(proof.reference)}{price}"
    return f"{maybe[:1].upper()}{maybe[1:]}: more questions would tell. {_usual_advice(proof)}"


def _usual_advice(proof: Proof) -> str:
    if proof.impossible:
        return "Other steps: another base, another prompt, the guide's own answer as a last step; or a higher alpha."
    ahead = proof.coin is not None and proof.coin.ahead.mean > 0
    more = "Log more questions (cascade collect) and prove again"
    needed = ""
    if proof.needed_n is not None:
        sure = proof.chance is None or proof.chance == 1
        likely = "" if sure else f" with a probability of {chance_said(proof.chance or 0.0)}"
        fitted = math.ceil(proof.needed_n * proof.sizes[0] / proof.n)
        alone = f"or {fitted:,} for cascade fit, which keeps none to test"
        needed = f": about {proof.needed_n:,} in all would be enough{likely}, {alone}"
    unpriced = ""
    if proof.reference.cost_usd is None and proof.reference.length == 1:
        unpriced = (
            "Log what calls cost (cost_nano_usd; in a wide table NAME_cost): without it steps are counted, and one "
            f"step of {called(proof.reference)} is the minimum. "
        )
    runs_all = proof.policy.length > proof.horizon - _HARDLY
    by_length = "ask for a higher alpha: no step is saved." if runs_all else "serve by length:"
    return {
        "saves": "Fit it on all of these questions. --config cascade.yaml records the cascade that will serve.",
        "blind": f"{more}: the learned policy may beat a coin, but the questions are too few to show it."
        if ahead
        else "Log signals that tell right from wrong (log-probs, a verdict, several samples), and prove again.",
        "refused": f"{unpriced}Log more questions (cascade collect){needed}; or ask for a higher alpha.",
        "unsure": f"{more}, or ask for a higher alpha.",
        "unknown": f"Log what calls cost, or {by_length}",
        "costs": f"Stay with {called(proof.reference)}, or ask for a higher alpha.",
    }[proof.verdict]


def fit_command(found: Cascade, proof: Proof) -> Command:
    """Return the command that fits the same on all of the questions."""
    asked = proof.guarantee
    delta = [] if asked.delta is None else [f"--delta {asked.delta:g}"]
    method = [] if found.method is None else [f"--policy {found.method}"]
    promised = [f"--guarantee {asked.kind}", f"--alpha {asked.alpha:g}", *delta]
    return Command(["cascade fit", *found.log, *promised, *method, "-o policy"])


# --- as plain values ---


def cascade_document(found: Cascade) -> dict[str, Any]:
    """Return the result for one cascade as plain values. Costs in USD per question, shares between 0 and 1."""
    return {
        "log": " ".join(found.log),
        "dataset": found.dataset,
        "failed": found.failed,
        "proofs": [_proof_document(proof, reasons(proof)) for proof in found.proofs],
    }


def _proof_document(proof: Proof, why: Sequence[Reason]) -> dict[str, Any]:
    asked = proof.guarantee
    return {
        "verdict": proof.verdict,
        "says": headline(proof),
        "guarantee": {"kind": asked.kind, "alpha": asked.alpha, "delta": asked.delta},
        "questions": proof.n,
        "repeated": proof.repeated,
        "left_out": proof.left_out,
        "groups": proof.groups,
        "horizon": proof.horizon,
        "splits": proof.splits,
        "seed": proof.seed,
        "sizes": {"fit": proof.sizes[0], "test": proof.sizes[1]},
        "fitted": dict(proof.fitted),
        "refused": proof.refused,
        "needed_n": proof.needed_n,
        "chance": proof.chance,
        "exceeded": proof.exceeded,
        "policy": _way_document(proof.policy) if proof.refused < proof.splits else None,
        "reference": _way_document(proof.reference),
        "others": [_way_document(way) for way in proof.others],
        "coin": None if proof.coin is None else {**proof.coin._asdict(), "ahead": proof.coin.ahead._asdict()},
        "clairvoyant_usd": proof.clairvoyant_usd,
        "impossible": proof.impossible,
        "segments": [one._asdict() for one in proof.segments],
        "lost": proof.lost,
        "unsolvable": proof.unsolvable,
        "first_right": proof.first_right,
        "signals": [{**one._asdict(), "auroc": one.auroc._asdict()} for one in proof.signals],
        "why": [one._asdict() for one in why],
    }


def _way_document(way: Way) -> dict[str, Any]:
    gaps = {"saving": way.saving, "accuracy_gap": way.accuracy_gap}
    return {**way._asdict(), **{name: None if one is None else one._asdict() for name, one in gaps.items()}}
