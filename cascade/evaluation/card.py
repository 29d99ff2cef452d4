"""The model card of a fitted policy: what it was made from, how it was chosen, what it promises, and its limits.

The card is the file `README.md` of the policy directory. It has no durations, so the same data and
seed give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cascade.calibration.calibrating import Calibrated
from cascade.calibration.samples import data_sha256
from cascade.calibration.scores import Realised, history_of
from cascade.evaluation.baselines import BaselineFigures, baseline_figures, baselines_left_out, label, worth_of
from cascade.guarantees.certificate import statement
from cascade.policies.artifact import CERTIFICATE_FILE, MODEL_FILE, POLICY_FILE
from cascade.policies.learned import Weighed, weighed
from cascade.text import capital, counted, markdown_table, percent, plain_line
from cascade.training.choosing import RULE, Judged
from cascade.training.fitting import Fitted
from cascade.training.objective import Unit
from cascade.types import Certificate

if TYPE_CHECKING:  # most fits train no network
    from cascade.training.networks.trainer import Training

_SAID = 3
"""The most promises that are written in words; the certificates have all."""


class Facts(NamedTuple):
    """Facts about how a policy was made, for its card.

    Attributes:
        fitted: the policy, how it was chosen, and its certificates.
        settings: the fit's options, in words, by name.
        weights: its features, and how much its score depends on each.
        baselines: the baselines' figures on the training questions; empty if nothing was compared.
        left_out: which baselines are missing, and why.
    """

    fitted: Fitted
    settings: Mapping[str, str]
    weights: Sequence[Weighed]
    baselines: Sequence[BaselineFigures]
    left_out: Sequence[str]


METHODS_IN_WORDS = {
    "net_benefit": "optimal stopping: after each step it goes on if the expected gain of the later steps, at the price "
    "of a miss, exceeds their expected cost (ridge regressions, backward over the steps)",
    "purchases": "which call to buy next, or to stop, backward over the sets of calls: net benefit before each call",
    "threshold": "it goes on while one number indicates doubt",
    "depth": "it reads no signal: a fixed number of steps",
    "reference": "it asks the reference alone, at once: the guide, or a ladder's last model",
    "cpo": "constrained policy optimisation: a network gives the probabilities of keeping each answer and of going on, "
    "and was trained for low cost with misses within a bound, taking one action a step, the likeliest of which is "
    "taken",
    "cpo_batch": "constrained policy optimisation: the network of cpo, and every action is taken whose probability "
    "reaches the threshold that the calibration sets",
    "cpo_online": "constrained policy optimisation: the network of cpo, and every action is taken whose probability "
    "reaches a threshold; in training it followed the misses",
    "ccpo": "conformal constrained policy optimisation: a network as that of cpo, trained together with a threshold on "
    "its probabilities, and so for all the answers that the threshold keeps",
}


def facts_of(fitted: Fitted, settings: Mapping[str, str]) -> Facts:
    """Return the facts of a fit, for its card.

    Args:
        fitted: the policy and how it was made.
        settings: the fit's options, in words, by name.
    """
    training, choice = fitted.training, fitted.choice
    weights = weighed(fitted.policy, history_of(training))
    if not choice.folds:
        return Facts(fitted, settings, weights, (), ())
    baselines = baseline_figures(training, choice.objective.guarantee.rules, choice.alpha)
    return Facts(fitted, settings, weights, baselines, tuple(baselines_left_out(training)))


def card(facts: Facts) -> bytes:
    """Return the model card, Markdown."""
    return ("\n".join(_lines(facts)).rstrip() + "\n").encode("utf-8")


def _lines(facts: Facts) -> Iterator[str]:
    made = "Made by `cascade fit`; `policy: ./this-directory` in a configuration serves it."
    files = f"`{POLICY_FILE}` lists what it reads, `{MODEL_FILE}` has its numbers, `{CERTIFICATE_FILE}` its promise."
    fitted, method = facts.fitted, facts.fitted.policy.method
    yield from (f"# A policy for {plain_line(fitted.training.dataset)}", "")
    yield from (f"Method `{method}`: {METHODS_IN_WORDS[method]}. {made}", "", files, "")
    yield from _made_from(fitted, facts.settings)
    yield from _promised(fitted.calibrated)
    yield from _chosen(facts)
    if fitted.learning is not None:
        yield from _trained(fitted.learning)
    yield from _looks_at(facts.weights)
    yield from ("## Limits", "")
    yield from (f"- {plain_line(said)}" for said in fitted.calibrated.segments[0].certificate.assumptions)
    yield from (f"- {said}" for said in _LIMITS)
    yield from ("", "## To make it hold again", "")
    yield from (f"- {said}" for said in _AGAIN)


def _made_from(fitted: Fitted, settings: Mapping[str, str]) -> Iterator[str]:
    certificate, training, sizes = fitted.calibrated.segments[0].certificate, fitted.training, fitted.sizes
    rows = [
        ("log", plain_line(training.dataset)),
        ("questions", f"{sizes.questions:,}"),
        ("of them to choose and fit on", f"{sizes.training:,}"),
        ("of them to certify", f"{sizes.calibration:,}"),
        ("models", _models_of(certificate)),
        *((what, plain_line(said)) for what, said in settings.items()),
        ("training data, SHA-256", f"`{data_sha256(training)}`" if training.n else "none"),
        ("calibration data, SHA-256", f"`{certificate.data_sha256}`"),
    ]
    yield from ("## What it was made from", "")
    yield from markdown_table(["", ""], rows)


def _models_of(certificate: Certificate) -> str:
    """Return which models a certificate holds for, with their roles, as text for Markdown."""
    held = [(role, str(one["name"])) for role, one in (certificate.made_for.get("models") or {}).items()]
    return plain_line(", ".join(name if role == name else f"{role} {name}" for role, name in held)) or "not recorded"


_REALISED = ("n", "covered", "right answer kept", "one answer wrong", "USD per 1,000", "steps", "answers kept")


def _promised(done: Calibrated) -> Iterator[str]:
    """Yield the certificates, with their figures on the calibration questions, Markdown."""
    created = done.segments[0].certificate.created
    yield from ("## What it promises", "")
    yield from (f"As of {created}; a later `cascade calibrate` replaces the certificate, but not this page.", "")
    yield from (f"{capital(plain_line(note))}." for note in done.notes)
    for result in done.segments[:_SAID]:
        yield from (
            f"> {plain_line(capital(statement(result.certificate, is_reference=done.artifact.asks_reference)))}",
            "",
        )
    if len(done.segments) > _SAID:
        yield from (f"And so on for {len(done.segments) - _SAID} more certificates.", "")
    named = (("certified", done.realised), ("everything kept", done.everything))
    yield from markdown_table(
        ["on the calibration questions", *_REALISED], [[name, *_realised(one)] for name, one in named]
    )
    yield from (
        "These questions set the threshold, so this is no test of it: `cascade prove`, or a new log, is one.",
        "",
    )
    if done.reference_cost_nano_usd is not None:
        alone = _usd(done.reference_cost_nano_usd)
        yield from (f"The guide alone, or a ladder's last model, costs {alone} per 1,000 there.", "")
    against = worth_of(done).describe("the guide, or a ladder's last model, alone")
    if against is not None:
        yield from (f"**{against}**", "")


def _realised(one: Realised) -> list[str]:
    cost = "unknown" if one.cost_nano_usd is None else _usd(one.cost_nano_usd)
    shares = [f"{share:.3f}" for share in (one.coverage, one.in_set, one.error)]
    return [f"{one.n:,}", *shares, cost, f"{one.length:.2f}", f"{one.set_size:.2f}"]


def _usd(nano: float) -> str:
    return f"${nano / 1e6:.4g}"


# --- how it was chosen ---


def _figure(value: float | None, unit: Unit) -> str:
    """Return a candidate's cost as text.

    >>> _figure(123_456.0, "nano_usd"), _figure(1.5, "steps"), _figure(None, "steps")
    ('$0.1235', '1.500', '-')
    """
    if value is None:
        return "-"
    return _usd(value) if unit == "nano_usd" else f"{value:.3f}"


def _difference(one: Judged, unit: Unit) -> str:
    """Return the interval of a candidate's difference to the best.

    >>> from cascade.training.choosing import Difference
    >>> best = Judged("depth", "depth", 0, 2.0, None, 0.9, 0.1, True, "the least")
    >>> from dataclasses import replace
    >>> _difference(replace(best, difference=Difference(-0.1, 0.25)), "steps"), _difference(best, "steps")
    ('−0.100 to +0.250', '')
    """
    if one.difference is None:
        return ""
    scale, sign = (1e-6, "+.3g") if unit == "nano_usd" else (1.0, "+.3f")
    return " to ".join(format(bound * scale, sign).replace("-", "−") for bound in one.difference)


_WHAT = {
    "nano_usd": "USD per 1,000 questions",
    "steps": "steps a question",
}


def _chosen(facts: Facts) -> Iterator[str]:
    choice, unit = facts.fitted.choice, facts.fitted.choice.unit
    yield from ("## How it was chosen", "")
    if not choice.folds:
        yield from (f"Taken: {plain_line(choice.winner.name)}, because {plain_line(choice.winner.why)}.", "")
        return
    how = (
        f"On {choice.n:,} training questions of {choice.groups:,} groups, each scored by a model that saw neither it "
        f"nor its group ({choice.folds} folds), all at a loss of exactly {choice.alpha:.4g}. The chosen candidate is "
        "the simplest whose cost is at most "
        f"{percent(RULE.margin)} above that of the best, and not significantly above it. It is fitted on all of these "
        "questions. No calibration question was used."
    )
    yield from (how, "")
    heads = [
        "candidate",
        _WHAT[unit],
        "difference to the best, 90 %",
        "chosen",
        "because",
    ]
    rows = [
        [
            plain_line(one.name),
            _figure(one.matched, unit),
            _difference(one, unit),
            "yes" if one.chosen else "",
            plain_line(one.why),
        ]
        for one in choice.judged
    ]
    yield from markdown_table(heads, rows)
    if facts.baselines:
        yield from (_BASELINES, "")
        yield from markdown_table(
            ["baseline", _WHAT["nano_usd"], "steps", "promise kept on"], list(map(_baseline, facts.baselines))
        )
    for said in facts.left_out:
        yield from (plain_line(said), "")


_BASELINES = (
    "The baselines, methods without a fitted policy, on the same questions; the first is the reference. UALA "
    "stops at the first answer that is not in doubt; its threshold is tuned on these same questions, and cannot be "
    "certified. The depth mixture is the best coin between two depths, also tuned on them: a policy that costs less "
    "saves the difference by its signals. The clairvoyant bound is the cost of the promise for a policy that knows "
    "every answer beforehand."
)


def _baseline(one: BaselineFigures) -> list[str]:
    cost = "unknown" if one.cost_usd is None else _usd(one.cost_usd * 1e9)
    return [
        plain_line(label(one.name)),
        cost,
        "-" if one.length is None else f"{one.length:.2f}",
        "-" if one.kept is None else f"{one.kept:.3f}",
    ]


# --- what it reads ---


def _looks_at(weights: Sequence[Weighed]) -> Iterator[str]:
    yield from ("## What it reads", "")
    if not weights:
        yield from ("Nothing.", "")
        return
    legend = (
        "Weight, from 0 to 1: how much the score of going on, or the probabilities of a network's actions, depends on "
        "the feature. It is measured by permuting the feature's values among the training questions; features that "
        "carry the same information share it. If a feature is missing that was never missing in training, the policy "
        "goes on and keeps the answer. After the last step no step is left: features there rank the answers, or decide "
        "which are kept."
    )
    yield from (legend, "")
    rows = [
        [
            str(one.step),
            f"`{one.feature.name}`" if one.feature.name.isprintable() else plain_line(one.feature.name),
            plain_line(one.feature.unit),
            _range(one.feature.low, one.feature.high),
            "-" if one.known is None else f"{one.known:.0%}",
            "-" if one.weight is None else f"{one.weight:.2f}",
            plain_line(one.feature.what),
        ]
        for one in sorted(weights, key=lambda one: (one.step, -(one.weight or 0.0), one.feature.name))
    ]
    yield from markdown_table(["after step", "feature", "unit", "range", "known", "weight", "is"], rows)


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    if low is None:
        return f"≤ {high:g}"
    return f"≥ {low:g}" if high is None else f"{low:g} to {high:g}"


# --- limits ---


_LIMITS = (
    "It covers questions like those that it was calibrated on: other models, prices, prompts or traffic void it.",
    "Only audits show that a model changed without notice, or that questions became harder: `cascade monitor`.",
    "The policy sees only what the log records.",
)
_AGAIN = (
    "New questions, the same models: `cascade calibrate NEW_EPISODES --policy DIR` sets the threshold again.",
    "Other models, prices or prompts: `cascade fit NEW_EPISODES -o NEW_DIR` fits again.",
    "`cascade verify DIR EPISODES` computes the certificate again from the data, and compares.",
)


# --- how a network was trained ---


def _trained(training: Training) -> Iterator[str]:
    from cascade.training.networks.config import CCPOConfig

    config = CCPOConfig.model_validate(training.settings)
    yield from ("## How it was trained", "")
    several = f", for {training.levels} levels at once" if training.levels > 1 else ""
    asked = f"{training.steps:,} of {config.steps:,} steps" if training.diverged else counted(training.steps, "step")
    yield (
        f"On {training.questions:,} training questions{several}: {asked} of {config.batch:,} questions each, on "
        f"{config.device}. Gradient steps on the cost plus a multiplier times the violation; the multiplier follows "
        f"the violation. Gradients are exact, since the log has the result of every action. {_aim(training)}"
    )
    if config.device != "cpu":
        yield "Training it again on this device need not give the same network to the bit."
    yield ""
    if training.diverged is not None:
        yield from (f"**Training was ended early: {plain_line(training.diverged)}.**", "")
    other = CCPOConfig().model_dump(mode="json")
    rows = [(f"`{name}`", plain_line(str(one))) for name, one in training.settings.items() if one != other[name]]
    if rows:
        yield from ("Settings other than the defaults:", "")
        yield from markdown_table(["setting", ""], rows)
    else:
        yield from ("All settings are the defaults.", "")


def _aim(training: Training) -> str:
    mean = ", the mean over the levels" if training.levels > 1 else ""
    return f"It aims to keep the promise on {100 * training.covered:.3g} % of them{mean}."
