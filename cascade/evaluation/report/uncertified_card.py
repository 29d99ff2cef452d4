"""The model card of a policy network without a certificate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cascade.calibration.samples import data_sha256
from cascade.calibration.scores import history_of
from cascade.evaluation.report.card import METHODS_IN_WORDS, looks_at
from cascade.evaluation.report.importance import weighed
from cascade.evaluation.report.learning_card import learning_files, trained
from cascade.evaluation.report.markdown import markdown_table, plain_line
from cascade.policies.artifact import CARD_FILE, MODEL_FILE, POLICY_FILE
from cascade.training.uncertified import Uncertified

CERTIFY = "`cascade fit --policy cpo-batch` trains the same network and certifies a threshold for it."


def uncertified_files(done: Uncertified, settings: Mapping[str, str], plot: bytes | None) -> dict[str, bytes]:
    """Return the card, the learning curves and, where it was drawn, their plot, by the names of their files."""
    text = "\n".join(_lines(done, settings, drawn=plot is not None)).rstrip() + "\n"
    return {CARD_FILE: text.encode("utf-8"), **learning_files(done.learning, plot)}


def _lines(done: Uncertified, settings: Mapping[str, str], *, drawn: bool) -> Iterator[str]:
    method, name = done.policy.method, plain_line(done.training.dataset)
    yield from (f"# A policy for {name}, not certified", "")
    yield from (f"Method `{method}`: {METHODS_IN_WORDS[method]}. Made by `cascade fit`.", "")
    yield from (f"`{POLICY_FILE}` says what it looks at, `{MODEL_FILE}` holds its numbers.", "")
    yield from ("## What it was made from", "")
    rows = [
        ("log", name),
        ("questions", f"{done.sizes.questions:,}"),
        ("of them to train on", f"{done.sizes.training:,}"),
        ("of them to judge it on", f"{done.sizes.calibration:,}"),
        *((what, plain_line(said)) for what, said in settings.items()),
        ("training data, SHA-256", f"`{data_sha256(done.training)}`"),
    ]
    yield from markdown_table(["", ""], rows)
    yield from ("## What it promises", "")
    yield from (f"Nothing: it has no certificate. {CERTIFY}", "")
    yield from (found_in_words(done), "")
    yield from trained(done.learning, drawn=drawn)
    yield from looks_at(weighed(done.policy, history_of(done.training)))


def found_in_words(done: Uncertified) -> str:
    """Return what the policy does on the questions that it has not seen, in words."""
    kept, wanted, found = done.kept, done.wanted, done.realised
    asked = f", where {100 * (1 - wanted.alpha):.4g} % were asked for" if wanted.alpha is not None else ""
    cost = f"{found.length:.2f} steps a question"
    if found.cost_nano_usd is not None:
        cost = f"${found.cost_nano_usd / 1e6:.4g} per 1,000 questions, {cost}"
    if wanted.budget_nano_usd is not None:
        cost += f"; the bound asked for is ${wanted.budget_nano_usd / 1e6:.4g} per 1,000"
    came = "what was asked for speaks of none"
    if kept.share is not None:
        interval = f"{100 * kept.low:.1f} to {100 * kept.high:.1f} %, with 95 % confidence"
        came = f"{wanted.rules.kept}: {100 * kept.share:.1f} % ({interval})"
    many = found.n if kept.share is None else kept.n
    return f"On {many:,} questions that it has not seen, {came}{asked}. It costs {cost}."
