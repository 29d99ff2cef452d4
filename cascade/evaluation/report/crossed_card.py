"""The model card of a cross-calibrated policy: as `card` has it, with a line for each member and both bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cascade.calibration.crossing import bound
from cascade.evaluation.report.card import WHAT, figure, limits, models_of, promised
from cascade.evaluation.report.markdown import markdown_table, plain_line
from cascade.policies.artifact import CARD_FILE, CERTIFICATE_FILE, MODEL_FILE, POLICY_FILE
from cascade.training.crossing import Crossed

_AGAIN = (
    "New questions, the same models: `cascade calibrate NEW_EPISODES --policy DIR` sets one threshold on them.",
    "Other models, prices or prompts: `cascade fit NEW_EPISODES --cross-calibrate -o NEW_DIR` fits anew.",
    "`cascade verify DIR EPISODES` deals the folds and makes the critical values again from the data, and compares.",
)


def crossed_files(done: Crossed, settings: Mapping[str, str]) -> dict[str, bytes]:
    """Return the card by the name of its file.

    Args:
        done: the policy and how it came about.
        settings: what was asked of the fit, in words, by what it is called.
    """
    return {CARD_FILE: ("\n".join(_lines(done, settings)).rstrip() + "\n").encode("utf-8")}


def _lines(done: Crossed, settings: Mapping[str, str]) -> Iterator[str]:
    many, certificate = len(done.choices), done.artifact.certificates[0]
    yield from (f"# A policy for {plain_line(done.training.dataset)}", "")
    yield (
        f"Cross-calibrated: {many} policies, each chosen and fitted without a fold of the questions, decide by the "
        "mean rank of their scores among the critical values of that fold. Made by `cascade fit --cross-calibrate`; "
        "`policy: ./this-directory` in a configuration serves it."
    )
    files = f"`{POLICY_FILE}` says what they look at, `{MODEL_FILE}` holds their numbers and the critical values"
    yield from ("", f"{files}, `{CERTIFICATE_FILE}` the promise.", "", "## What it was made from", "")
    rows = [
        ("log", plain_line(done.training.dataset)),
        ("questions, each to fit and to certify", f"{done.training.n:,}"),
        ("alpha asked for", f"{done.alpha:g}"),
        ("models", models_of(certificate)),
        *((what, plain_line(said)) for what, said in settings.items()),
        ("data, SHA-256", f"`{certificate.data_sha256}`"),
    ]
    yield from markdown_table(["", ""], rows)
    yield from promised(done.calibrated)
    yield from (f"**{plain_line(bound(done.alpha))}**", "")
    yield (
        "The figures are those of each question under the one member that has not seen it. All members serve together, "
        "and as a rule cover more."
    )
    yield from ("", "## How it was chosen", "")
    yield from _members(done)
    yield from limits(done.calibrated, _AGAIN)


def _members(done: Crossed) -> Iterator[str]:
    heads = ["member", "chosen", f"its {WHAT[done.choices[0].unit]}", "because", "fitted on", "certifies with"]
    rows = [
        [
            str(number),
            plain_line(choice.chosen.name),
            figure(choice.winner.matched, choice.unit),
            plain_line(choice.winner.why),
            f"{choice.n:,}",
            f"{critical.size:,}",
        ]
        for number, (choice, critical) in enumerate(zip(done.choices, done.policy.critical, strict=True))
    ]
    yield from markdown_table(heads, rows)
