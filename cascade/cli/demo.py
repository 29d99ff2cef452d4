"""`cascade demo`: the whole loop on real local models, no key, no network once the weights are here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from cascade import demo as demonstration
from cascade.cli.certificates import calibrated_document
from cascade.cli.models import fetch
from cascade.cli.output import console, dollars, notes, plain, print_json
from cascade.config import CascadeConfig
from cascade.conformal.certificate import statement
from cascade.demo import PAIR, TINY, Outcome, Row
from cascade.errors import NotCertifiedError, UsageError
from cascade.evaluation.breakeven import BreakEven
from cascade.providers import weights
from cascade.providers.base import Provider
from cascade.providers.local import Local, load_xllamacpp
from cascade.providers.memo import Memo
from cascade.types import Answer

if TYPE_CHECKING:
    from cascade.training.fitting import Fitted


def demo(
    questions: Annotated[int, typer.Option("--questions", "-n", min=1, help="How many questions.")] = 24,
    tiny: Annotated[bool, typer.Option("--tiny", help="One 98 MB model as both: shows the wiring only.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Which questions are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print as one JSON document.")] = False,
) -> None:
    """Run two real local models on the demo questions and print what it brought and cost.

    Example: cascade demo
    """
    load_xllamacpp()
    base, guide = TINY if tiny else PAIR
    out = notes() if as_json else console()
    _say_what_comes(out, tiny=tiny)
    fetch([weights.known(name) for name in dict.fromkeys((base, guide))])
    config = demonstration.demo_config(base, guide)
    drawn = _draw(questions, seed)
    started = time.monotonic()
    provider = Memo(Local())
    outcomes: list[Outcome] = []
    _print_head(out)
    try:
        for outcome in demonstration.run_demo(config, provider, drawn):
            outcomes.append(outcome)
            _print_outcome(out, outcome, len(outcomes))
        trial = None if tiny else _fit(out, config, provider, outcomes)
    finally:
        provider.close()
    price = config.prices()[guide]
    done = _Done(
        outcomes,
        demonstration.table(outcomes, trial.answers if trial else ()),
        demonstration.break_even_of(outcomes, price) if price else None,
        trial,
        time.monotonic() - started,
    )
    if as_json:
        print_json({"base": base, "guide": guide, "wiring_only": tiny, "seed": seed, **_document(done)})
    else:
        _print_end(out, done, tiny=tiny)


class _Trial(NamedTuple):
    """A policy that was fitted on the log, and its answers to the drawn questions."""

    fitted: Fitted
    answers: list[Answer]
    fit_s: float


class _Done(NamedTuple):
    """All that a demo brought."""

    outcomes: list[Outcome]
    rows: list[Row]
    even: BreakEven | None
    trial: _Trial | None
    elapsed_s: float


def _fit(out: Console, config: CascadeConfig, provider: Provider, outcomes: list[Outcome]) -> _Trial | None:
    """Fit a ladder's policy on the shipped log, say what it promises, and ask it the same questions."""
    out.print("\n[bold]cascade fit[/] on the log that ships with the package: other questions, the same two models")
    started = time.monotonic()
    try:
        fitted = demonstration.fit_ladder(config)
    except NotCertifiedError as error:
        out.print(plain(str(error)), style="yellow")
        return None
    elapsed = time.monotonic() - started
    sizes, choice = fitted.sizes, fitted.choice
    out.print(
        f"base first, then the guide: {len(choice.judged)} policies compared on {sizes.training} questions in "
        f"{elapsed:.1f} s; chosen: {plain(choice.winner.name)}"
    )
    for group in fitted.calibrated.groups:
        out.print(f"certified on {sizes.calibration} others: {plain(statement(group.certificate))}")
    out.print(demonstration.PICKED)
    answers = demonstration.serve_fitted(config, fitted, provider, outcomes)
    for said in dict.fromkeys(warning for answer in answers for warning in answer.warnings):
        out.print(plain(said), style="yellow")
    return _Trial(fitted, answers, elapsed)


def _print_end(out: Console, done: _Done, *, tiny: bool) -> None:
    out.print()
    out.print(_table(done.rows))
    out.print(
        "right: the answer served. in set: one of the answers kept. cost: USD per question. × guide: beside guide only."
    )
    out.print("ladder: the base, then the guide where the base's own log-prob is low. threshold: the guide judges.")
    if done.trial is not None:
        out.print(_says_trial(done.outcomes, done.trial))
    out.print(f"Prices are {demonstration.MADE_UP} (USD per million tokens in/out: 0.1/0.4 base, 1/4 guide).")
    if done.even is not None:
        out.print(done.even.says())
    if tiny:
        out.print("[yellow]--tiny: a 135M model judging itself. This shows the wiring, not what a cascade can do.[/]")
        out.print("[yellow]The log that ships is of other models, so no policy is fitted for this one.[/]")
    out.print(f"[dim]{len(done.outcomes)} questions in {done.elapsed_s:.0f} s[/]")


def _says_trial(outcomes: list[Outcome], trial: _Trial) -> str:
    """Return how the fitted ladder kept its promise here, in words."""
    lost, count = demonstration.regrets(outcomes, trial.answers), len(outcomes)
    times = {0: "never", 1: "once"}.get(lost, f"{lost} times")
    many = "1 question" if count == 1 else f"{count} questions"
    return (
        f"fitted ladder: wrong {times} where the guide alone is right, on these {many}; promised: at most "
        f"{demonstration.PROMISE.alpha:.0%} of fresh ones."
    )


def _draw(count: int, seed: int) -> list[demonstration.DemoQuestion]:
    live = demonstration.demo_questions("live")
    if count > len(live):
        raise UsageError(f"The demo has {len(live)} questions; ask for at most so many with --questions.")
    return demonstration.sample(live, count, seed)


def _say_what_comes(out: Console, *, tiny: bool) -> None:
    who = "one real local model (SmolLM2 135M) in both places" if tiny else "two real local models"
    out.print(f"[bold]cascade demo[/]: {who}, no key, no network once the weights (1.6 GB, 98 MB with --tiny) are here")
    if not tiny:
        out.print("base Qwen2.5-Coder 0.5B answers, guide Qwen2.5-Coder 1.5B judges; about 3 to 5 minutes on 2 cores")


@dataclass(frozen=True, slots=True)
class _Widths:
    """How the width of a terminal is shared out: half of what numbers leave goes to the question."""

    question: int
    answer: int

    @classmethod
    def of(cls, out: Console) -> _Widths:
        free = max(40, min(out.width, 140) - 35)
        return cls(free // 2, free // 4)


def _print_head(out: Console) -> None:
    w = _Widths.of(out)
    answers = f"{'base answers':{w.answer + 2}} P(yes) {'served':{w.answer + 2}} rounds"
    out.print(f"\n[bold]{'question':{w.question}} {answers}       cost[/]", soft_wrap=True)


def _print_outcome(out: Console, outcome: Outcome, number: int) -> None:
    w = _Widths.of(out)
    first, answer = outcome.walked.steps[0], outcome.walked
    p_yes = first.signals.get("p_yes")
    shown = _cut(f"{number:2d} {answer.question.text}", w.question)
    base = _marked(outcome.base_answer, outcome.right(outcome.base_answer), w.answer)
    served = _marked(answer.text, outcome.right(answer.text), w.answer)
    judged = "  none" if p_yes is None else f"{p_yes:6.3f}"
    line = f"{shown} {base} {judged} {served} {len(answer.steps):6d} {dollars(answer.cost):>10}"
    out.print(line, soft_wrap=True)


def _marked(text: str | None, right: bool, width: int) -> str:
    mark, colour = ("✓", "green") if right else ("✗", "red")
    return f"[{colour}]{mark}[/] {_cut(text or 'no answer', width)}"


def _cut(text: str, width: int) -> str:
    flat = " ".join(text.split())
    short = flat if len(flat) <= width else flat[: width - 1] + "…"
    return plain(f"{short:{width}}")


def _table(rows: list[Row]) -> Table:
    outright = next(row.cost_usd for row in rows if row.policy.startswith("guide only"))
    table = Table("way to answer", "right", "in set", "answers", "rounds", "cost", "× guide")
    for row in rows:
        ratio = "" if not outright or row.cost_usd is None else f"{row.cost_usd / outright:.2f}"
        cost = dollars(row.cost_usd)
        cells = (f"{row.accuracy:.0%}", f"{row.coverage:.0%}", f"{row.answers:.2f}", f"{row.rounds:.2f}", cost, ratio)
        table.add_row(row.policy, *cells)
    return table


def _document(done: _Done) -> dict[str, Any]:
    return {
        "prices": demonstration.MADE_UP,
        "elapsed_s": round(done.elapsed_s, 1),
        "questions": [_of_question(outcome) for outcome in done.outcomes],
        "rows": [
            {
                "policy": row.policy,
                "accuracy": row.accuracy,
                "coverage": row.coverage,
                "cost_usd": row.cost_usd,
                "avg_length": row.rounds,
                "set_size": row.answers,
            }
            for row in done.rows
        ],
        "fitted": None if done.trial is None else _of_trial(done.outcomes, done.trial),
        "break_even": None if done.even is None else {name: getattr(done.even, name) for name in done.even.__slots__},
        "break_even_says": None if done.even is None else done.even.says(),
    }


def _of_question(outcome: Outcome) -> dict[str, Any]:
    return {
        "id": outcome.asked.question_id,
        "kind": outcome.asked.kind,
        "question": outcome.asked.question.text,
        "accepted": outcome.asked.answers,
        "base_answer": outcome.base_answer,
        "base_right": outcome.right(outcome.base_answer),
        "p_yes": outcome.walked.steps[0].signals.get("p_yes"),
        "served": outcome.walked.text,
        "served_right": outcome.right(outcome.walked.text),
        "rounds": len(outcome.walked.steps),
        "stopped": outcome.walked.stopped,
        "cost_usd": outcome.walked.cost,
        "guide_outright": outcome.outright.text,
        "guide_right": outcome.right(outcome.outright.text),
        "guide_cost_usd": outcome.outright.cost,
    }


def _of_trial(outcomes: list[Outcome], trial: _Trial) -> dict[str, Any]:
    chosen = trial.fitted.choice.winner
    return {
        "chosen": chosen.name,
        "why": chosen.why,
        "compared": [one.name for one in trial.fitted.choice.judged],
        "training": trial.fitted.sizes.training,
        "fit_s": round(trial.fit_s, 2),
        "calibrated": calibrated_document(trial.fitted.calibrated),
        "alpha_picked": demonstration.PICKED,
        "wrong_where_the_guide_is_right": demonstration.regrets(outcomes, trial.answers),
        "questions": [
            {
                "id": outcome.asked.question_id,
                "served": answer.text,
                "served_right": outcome.right(answer.text),
                "steps": len(answer.steps),
                "cost_usd": answer.cost,
                "certified": answer.certificate is not None,
            }
            for outcome, answer in zip(outcomes, trial.answers, strict=True)
        ],
    }
