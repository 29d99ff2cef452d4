"""The report that `fit` prints: the split of the questions, the candidates, the choice, and the certificate.

The report also says whether the policy can serve. A policy can be fitted on a log with a signal that no strategy
produces; such a policy can be evaluated but not served.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cascade.api.output import Column, Result, Tell, figures, per_thousand, plain_text
from cascade.api.promises import calibrated_document, calibrated_report
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import CLAIRVOYANT, MIXTURE, NAMES, BaselineFigures, label, worth_of
from cascade.evaluation.card import Facts, card, facts_of
from cascade.policies.artifact import CARD_FILE, write
from cascade.policies.base import SHARED_PLACE, Policy
from cascade.policies.signals import GIVES, Gives
from cascade.text import capital, counted
from cascade.training.choosing import Judged
from cascade.training.dividing import ended_early
from cascade.training.fitting import Fitted
from cascade.types import Certificate

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.training.networks.trainer import Training

_WIDE, _MIDDLE = 118, 100
_LEAST_NAME = 22
_THRESHOLDS = 3
"""The maximum number of thresholds in the printed table; the JSON document and the model card have all."""


@dataclass(frozen=True, slots=True)
class PolicyFit(Result):
    """A policy learned from a log, chosen among others, and certified.

    Attributes:
        facts: the policy, how it was chosen, and what else its model card says.
        files: the files beside the policy, by name: the model card.
        output: the directory that it was written into; None if it was not written.
        notices: the notices about the log and the call, as `tell` got them.
    """

    facts: Facts
    files: Mapping[str, bytes]
    output: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def fitted(self) -> Fitted:
        """The policy, how it was chosen, and its certificates."""
        return self.facts.fitted

    @property
    def policy(self) -> Policy:
        """The policy, at its certified thresholds."""
        return self.fitted.artifact.calibrated(self.fitted.policy)

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The promises: a certificate for each segment."""
        return tuple(self.fitted.artifact.certificates)

    @property
    def baselines(self) -> Sequence[BaselineFigures]:
        """The costs of the baselines on the training questions."""
        return self.facts.baselines

    def save(self, directory: str | Path) -> Self:
        """Write the policy directory with its model card; return the same result with its `output`.

        Raises:
            UsageError: it cannot be written.
        """
        write(Path(directory), self.fitted.artifact, files=self.files)
        return replace(self, output=str(directory))

    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        return fitted_report(self, width)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fit --json`. Costs in USD per question."""
        return fitted_document(self) | {"notices": list(self.notices)}


def policy_fit(fitted: Fitted, asked: Mapping[str, str]) -> PolicyFit:
    """Return a fit as a result; `asked` has the options of the call, for the model card."""
    facts = facts_of(fitted, asked)
    return PolicyFit(facts, {CARD_FILE: card(facts)})


def written(output: str | None, what: str, *, warning: str | None = None, following: str = "") -> Iterator[Text]:
    """Yield lines that say where a fit was written and what to do next.

    Args:
        output: the policy directory; None if none was written.
        what: what its README.md says.
        warning: why it should not be served; printed instead of `following`.
        following: the next step; all its lines except the first belong to a configuration.
    """
    if output is None:
        yield Text("not written yet: save(DIRECTORY) writes the policy directory")
        return
    shown = plain_text(output)
    yield Text(f"written: {shown}, {what}")
    if warning is not None:
        yield Text(plain_text(warning), style="bold yellow")
        return
    first, *lines = following.split("\n")
    yield Text(plain_text(first))
    for line in lines:  # of a file, to be copied
        indent = " " * (len(line) - len(line.lstrip()))
        yield Text(indent + plain_text(line), no_wrap=True, overflow="ignore")


def path_of(output: str) -> str:
    """Return a directory as it is written in a configuration.

    >>> path_of("policy"), path_of("/srv/policy")
    ('./policy', '/srv/policy')
    """
    return output if output.startswith(("/", ".")) else f"./{output}"


class _Line(NamedTuple):
    """One line of the table: a candidate or a baseline.

    `cost` is in the unit of the table: USD a question, steps a question.
    """

    name: str
    cost: float | None
    kept: float | None
    right: float | None = None
    judged: Judged | None = None


def fitted_report(found: PolicyFit, width: int) -> Iterator[RenderableType]:
    """Yield what is printed about a fit, for a terminal `width` columns wide."""
    fitted = found.fitted
    yield Text(_divided(fitted), style="bold")
    loud = set(ended_early(fitted.learning))
    for note in fitted.notes:
        yield Text(plain_text(f"{capital(note)}."), style="bold yellow" if note in loud else "")
    yield ""
    if fitted.choice.folds:
        yield _table(found, width)
        yield Text(_legend(found, width), style="dim")
        yield from (Text(plain_text(said)) for said in found.facts.left_out)
        yield ""
    yield Text(plain_text(_chosen(found)), style="bold")
    yield ""
    yield from calibrated_report(fitted.calibrated, width)
    yield ""
    compared = _on_calibration(found)
    if compared:
        yield from (Text(plain_text(compared), style="bold"), "")
    output = found.output or ""
    yield from written(
        found.output,
        f"what it is and how it was chosen in {plain_text(output)}/README.md.",
        warning=_not_worth(found),
        following=next_step(fitted.policy.reads, fitted.policy.sources, path_of(output), fitted.training),
    )


def _not_worth(found: PolicyFit) -> str | None:
    """Return why the policy should not be served, or saves nothing, and what else to try; None if it does."""
    worth, table = worth_of(found.fitted.calibrated), found.fitted.training
    said = worth.describe(_reference(found))
    rounds = {"base", "guide"} >= {*table.sources} and GUIDE_ONLY in table.walks
    if said is None or worth.saves or not rounds or worth.times_reference is None:
        return said
    return (
        f"{said} Here each round pays for a verdict of the guide. Without that more may be saved: fit the same log "
        "call by call, offers:LOG, or as a ladder, ladder:LOG."
    )


def _reference(found: PolicyFit) -> str:
    """Return the name of the reference of the calibration questions."""
    return _called(found.baselines[0]) if found.baselines else "the guide, or a ladder's last model, alone"


def _on_calibration(found: PolicyFit) -> str:
    """Return what the certified policy costs on the questions that set its threshold; "" if that is unknown."""
    done = found.fitted.calibrated
    cost, reference = done.realised.cost_nano_usd, done.reference_cost_nano_usd
    if cost is None or not reference:
        return ""
    return (
        f"On the calibration questions it costs {cost / reference:.2f} × what {_reference(found)} costs there. "
        "They set the threshold, so this is no test of it: cascade prove, or cascade evaluate on a new log, is one."
    )


def _called(one: BaselineFigures) -> str:
    return NAMES.get(one.name, one.name)


def _divided(fitted: Fitted) -> str:
    sizes, horizon = fitted.sizes, fitted.training.arrays.horizon
    repeated = fitted.calibrated.repeated
    besides = f" ({repeated:,} more episodes of the same ones left out)" if repeated else ""
    asked = f"{counted(sizes.questions, 'question')} of {counted(horizon, 'step')}{besides}"
    return f"{asked}: {sizes.training:,} to choose and fit on, {sizes.calibration:,} to certify"


# --- the candidates ---


def _lines(found: PolicyFit) -> Iterator[_Line]:
    choice = found.fitted.choice
    for one in found.baselines:
        cost = one.cost_usd if choice.unit == "nano_usd" else one.length
        yield _Line(label(one.name), cost, one.kept, one.right)
    kept = 1 - choice.alpha
    for judged in choice.judged:
        shown = judged.matched
        if shown is not None and choice.unit == "nano_usd":
            shown /= 1e9
        yield _Line(judged.name, shown, kept if shown is not None else None, judged=judged)


def _columns(found: PolicyFit) -> Sequence[Column[_Line]]:
    unit = found.fitted.choice.unit
    reference = next((line.cost for line in _lines(found) if line.judged is None), None)
    cost = {"nano_usd": "cost/1k", "steps": "len"}[unit]

    def shown(line: _Line) -> str:
        if line.cost is None:
            return "-"
        return per_thousand(line.cost) if unit == "nano_usd" else f"{line.cost:.3f}"

    def times(line: _Line) -> str:
        return "-" if line.cost is None or not reference else f"{line.cost / reference:.2f}"

    return (
        Column(cost, 0, shown),
        Column("× ref", 0, times),
        Column("kept", 0, lambda line: _share(line.kept)),
        Column("Δ to the best", 0, lambda line: _difference(line, unit)),
        Column("right", _MIDDLE, lambda line: _share(line.right)),
        Column("fit s", 0, lambda line: "" if line.judged is None else f"{line.judged.fit_seconds:.2f}"),
    )


def _difference(line: _Line, unit: str) -> str:
    if line.judged is None or line.judged.difference is None:
        return ""
    scale, sign = (1e-6, "+.2g") if unit == "nano_usd" else (1.0, "+.3f")
    low, high = (format(bound * scale, sign).replace("-", "−") for bound in line.judged.difference)
    return f"{low} to {high}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _table(found: PolicyFit, width: int) -> Table:
    lines, hidden = _told(list(_lines(found)))

    def name(line: _Line, room: int) -> Text:
        called = Text(f"{'*' if _is_chosen(line) else ' '} {plain_text(line.name)}")
        if width < _WIDE:
            called.truncate(room, overflow="ellipsis")
        return called

    def why(line: _Line) -> Text:
        return Text(plain_text(line.judged.why if line.judged is not None else ""))

    made = figures(
        lines,
        _columns(found),
        width,
        name,
        least_name=_LEAST_NAME,
        style=lambda line: "bold" if _is_chosen(line) else "",
        why=None if width < _WIDE else why,
    )
    if hidden:
        made.add_row(f"  and {hidden} costlier thresholds")
    return made


def _told(lines: Sequence[_Line]) -> tuple[list[_Line], int]:
    """Return the lines to show (always the cheapest and the chosen one) and the number of thresholds left out."""
    costs = sorted(line.cost for line in lines if _is_threshold(line) and line.cost is not None)
    most = costs[_THRESHOLDS - 1] if len(costs) > _THRESHOLDS else None
    shown, left = [], _THRESHOLDS
    for line in lines:
        if most is None or not _is_threshold(line) or _is_chosen(line):
            shown.append(line)
        elif line.cost is not None and line.cost <= most and left:
            shown.append(line)
            left -= 1
    return shown, len(lines) - len(shown)


def _is_threshold(line: _Line) -> bool:
    return line.judged is not None and line.judged.method == "threshold"


def _is_chosen(line: _Line) -> bool:
    return line.judged is not None and line.judged.chosen


def _legend(found: PolicyFit, width: int) -> str:
    choice = found.fitted.choice
    costs = {"nano_usd": "cost/1k: USD per 1,000 questions", "steps": "len: steps a question"}
    certify = f"{found.fitted.sizes.calibration:,} calibration questions"
    said = [
        costs[choice.unit],
        f"× ref: cost as a multiple of that of {_called(found.baselines[0])}",
        f"kept: share of questions on which the promise is kept, at what {certify} can certify",
        "Δ to the best: 90 % interval of the difference to the best candidate, in the unit of the first column",
    ]
    if any(one.matched is None for one in choice.judged):
        said.append("-: not fitted, or it keeps the promise at no threshold")
    said += [*(["right: the one answer served is right"] if width >= _MIDDLE else []), "fit s: seconds, all folds"]
    if any(one.name.startswith("UALA") for one in found.baselines):
        said.append(
            "UALA: stops at the first answer that is not in doubt, at a threshold tuned on these very questions, which "
            "cannot be certified"
        )
    if any(one.name == MIXTURE for one in found.baselines):
        said.append(
            f"{MIXTURE}: the best coin between two depths, tuned too; a policy that costs less owes that to its signals"
        )
    if any(one.name == CLAIRVOYANT for one in found.baselines):
        said.append(f"{CLAIRVOYANT}: what it would cost if every answer were known beforehand")
    how = f"On the {choice.n:,} training questions, each scored by a model that saw neither it nor its group."
    return f"{'; '.join(said)}; *: chosen. {how}"


# --- what was chosen ---


def _chosen(found: PolicyFit) -> str:
    choice = found.fitted.choice
    winner = choice.winner
    if not choice.folds:
        return f"Taken: {winner.name}, because {winner.why}."
    return f"Chosen: {winner.name}. {capital(_reason(found, winner))}.{_ahead(found, winner)}"


def _reason(found: PolicyFit, winner: Judged) -> str:
    if winner.matched is None:
        return "no candidate keeps the promise at any threshold on the training questions, and it is the simplest"
    if winner.method == "reference":  # `why` is already a complete sentence
        return winner.why
    what = {"nano_usd": "it costs", "steps": "it takes"}[found.fitted.choice.unit]
    return f"{what} {winner.why}" if winner.why == "the least" else f"it is {winner.why}"


def _ahead(found: PolicyFit, winner: Judged) -> str:
    """Return the chosen candidate's cost relative to the simplest baselines, in words."""
    lines = list(_lines(found))
    own = next(line.cost for line in lines if line.judged is winner)
    said = []
    reference = lines[0]
    if own is not None and reference.cost:
        said.append(f"{own / reference.cost:.2f} × {_called(found.baselines[0])}")
    thresholds = [line.cost for line in lines if _is_threshold(line) and line.cost]
    if thresholds and own is not None and winner.method != "threshold":
        said.append(f"{own / min(thresholds):.2f} × the best threshold")
    mixture = next((line.cost for line in lines if line.judged is None and line.name == MIXTURE), None)
    if mixture and own is not None and winner.method != "depth":
        said.append(f"{own / mixture:.2f} × the best coin between two depths")
    return f" That is {', '.join(said)}." if said else ""


# --- as plain values ---


def fitted_document(found: PolicyFit) -> dict[str, Any]:
    """Return a fit as plain values. Costs in USD per question."""
    fitted = found.fitted
    choice = fitted.choice
    return {
        "output": found.output,
        "method": fitted.policy.method,
        "chosen": choice.chosen.name,
        "sizes": fitted.sizes._asdict(),
        "fit_notes": list(fitted.notes),
        **({} if fitted.learning is None else {"training": training_document(fitted.learning)}),
        "worth": worth_of(fitted.calibrated)._asdict(),
        "unit": {"nano_usd": "usd"}.get(choice.unit, choice.unit),
        "loss_compared_at": choice.alpha,
        "folds": choice.folds,
        "candidates": [_judged_document(one, choice.unit) for one in choice.judged],
        "baselines": [one._asdict() for one in found.baselines],
        "left_out": list(found.facts.left_out),
        **calibrated_document(fitted.calibrated),
    }


def training_document(learning: Training) -> dict[str, Any]:
    """Return how a policy network was trained as plain values."""
    return {"steps": learning.steps, "diverged": learning.diverged, "settings": dict(learning.settings)}


def _judged_document(one: Judged, unit: str) -> dict[str, Any]:
    scale = 1e-9 if unit == "nano_usd" else 1.0
    return {
        "name": one.name,
        "method": one.method,
        "complexity": one.complexity,
        "matched": None if one.matched is None else one.matched * scale,
        "difference": None if one.difference is None else [bound * scale for bound in one.difference],
        "coverage": one.coverage,
        "fit_seconds": one.fit_seconds,
        "chosen": one.chosen,
        "why": one.why,
    }


def unserved(names: Iterable[str], sources: Sequence[str], config: CascadeConfig | None) -> list[str]:
    """Return, sorted, the signals that no strategy with candidates of these sources produces.

    Args:
        names: names of signals.
        sources: the places of a step's candidates, as a table has them.
        config: the cascade that will serve; without it, every strategy that has such candidates is considered.

    >>> unserved(["logprob", "reply_mean_logprob"], ("answer",), None)
    ['logprob']
    """
    return sorted(set(names) - _given(sources, config))


def tell_unserved(tables: Iterable[EpisodeTable], config: CascadeConfig | None, tell: Tell) -> None:
    """Report each signal of a log that no strategy produces, with the most similar name that one does produce."""
    for table in tables:
        there = [name for name, values in table.signals.items() if not np.isnan(values).all()]
        for name in unserved(there, table.sources, config):
            tell(
                f"{table.dataset}: no strategy gives the signal {name}, so a policy that uses it cannot be served. "
                f"{_advice(name, _given(table.sources, config))}"
            )


def next_step(reads: Iterable[str], sources: Sequence[str], path: str, table: EpisodeTable | None = None) -> str:
    """Return what to write into cascade.yaml to serve a fitted policy, or why it cannot be served.

    Args:
        reads: the signals that the policy uses.
        sources: the places of the candidates.
        path: the policy directory, as a configuration names it.
        table: the questions that it was fitted on, which may tell the strategy.

    >>> next_step(["p_yes"], ("answer",), "./policy")
    'next: policy: ./policy in cascade.yaml serves it, with a strategy of kind offers or verified'
    >>> next_step(["logprob"], ("answer",), "./policy")[:55]
    'It cannot be served: it uses logprob, which no strategy'
    """
    names = set(reads)
    missing = unserved(names, sources, None)
    if missing:
        return (
            f"It cannot be served: it uses {', '.join(missing)}, which no strategy gives. It can be evaluated on "
            "logs that have it."
        )
    there = gives_for(sources)
    kinds = [kind for kind, one in there.items() if names <= one.signals]
    if not kinds:
        return f"It cannot be served: it uses {', '.join(sorted(names))}, and no strategy gives all of them."
    served = f"next: policy: {path} in cascade.yaml serves it"
    last = None if table is None or table.parents is None or not table.calls else table.calls[-1]
    if table is not None and last is not None and last.role != last.model:
        logged = f"with the offers of the log as its strategy: {', '.join(table.step_names)}"
        return _offers(table, path) or f"{served}, {logged}"
    return served if len(kinds) == len(there) else f"{served}, with a strategy of kind {' or '.join(kinds)}"


def _offers(table: EpisodeTable, path: str) -> str | None:
    """Return the lines of a configuration with the offers of a log; None if the log does not record their purposes."""
    calls = [one for one in table.calls if one is not None and one.purpose is not None]
    if len(calls) < len(table.calls) or calls[-1].purpose != "outright":  # `collect` logs other purposes
        return None
    names = {number: one.role for number, one in enumerate(calls, 1)}
    parents = table.parents or ((),) * len(calls)
    models = dict.fromkeys(one.model for one in calls)
    lines = ["next: serve it with this cascade.yaml (add provider, and price where it is not known):", "models:"]
    lines += [f"  {_scalar(name)}: {{model: {_scalar(name)}}}" for name in models]
    lines += ["strategy:", "  kind: offers", "  offers:"]
    for one, reads in zip(calls, parents, strict=True):
        said = [f"name: {_scalar(one.role)}", f"model: {_scalar(one.model)}", f"purpose: {one.purpose}"]
        said += [f"parents: [{', '.join(_scalar(names[parent]) for parent in reads)}]"] if reads else []
        lines.append(f"    - {{{', '.join(said)}}}")
    return "\n".join([*lines, f"policy: {path}"])


def _scalar(text: str) -> str:
    """Return a text as a YAML scalar.

    >>> _scalar("gpt-4o"), _scalar("a: b"), _scalar("no")
    ('gpt-4o', '"a: b"', '"no"')
    """
    plain = re.fullmatch(r"[A-Za-z][\w./ -]*[\w]", text) and text.lower() not in _YAML_WORDS
    return text if plain else json.dumps(text)


_YAML_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "null"})


def _given(sources: Sequence[str], config: CascadeConfig | None) -> frozenset[str]:
    if config is not None:
        return config.strategy.given
    return frozenset(name for one in gives_for(sources).values() for name in one.signals)


def _advice(name: str, given: Iterable[str]) -> str:
    """Return advice: the signal whose name is most similar, or all signals if none is similar."""
    near, one = max((SequenceMatcher(None, name, one).ratio() + (name in one), one) for one in sorted(given))
    if near < _NEAR:
        return f"Strategies give: {', '.join(sorted(given))}."
    return f"The most similar signal that a strategy gives is {one}: if it is the same, rename it in the log."


_NEAR = 0.6


def gives_for(sources: Sequence[str]) -> dict[str, Gives]:
    """Return the signals of each kind of strategy with candidates in these places, else of all strategies."""
    every = dict(GIVES)
    if entry_points(group="cascade.strategies"):
        from cascade.strategies.config import STRATEGIES  # a package brings more

        others = STRATEGIES.usable([kind for kind in STRATEGIES.names if kind not in GIVES])
        every |= {kind: Gives(one.candidates, one.signals) for kind, one in others.items()}

    def having(places: Sequence[str]) -> dict[str, Gives]:
        return {kind: one for kind, one in every.items() if sorted(one.candidates) == sorted(places)}

    return having(sources) or having((SHARED_PLACE,))
