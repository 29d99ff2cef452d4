"""`cascade demo questions`: learn a policy from the shipped log of short questions, then serve it with real models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from cascade.api.output import cut, dollars, plain
from cascade.api.promises import calibrated_document
from cascade.cli.main import console, notes, print_json
from cascade.cli.models import fetch
from cascade.demo import questions as demonstration
from cascade.demo.questions import BASE_ALONE, FITTED, GUIDE_ALONE, PAIR, TINY, DemoQuestion, Outcome, Row
from cascade.errors import UsageError
from cascade.guarantees.certificate import statement
from cascade.providers import weights
from cascade.providers.local import Local, load_xllamacpp
from cascade.providers.memo import Memo
from cascade.text import counted
from cascade.types import Answer

if TYPE_CHECKING:
    from cascade.training.fitting import Fitted

_MODELS = "base Qwen2.5-Coder 0.5B, guide Qwen2.5-Coder 1.5B"
_QUESTIONS = 12


def demo(
    questions: Annotated[int, typer.Option("--questions", "-n", min=1, help="How many questions.")] = _QUESTIONS,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="One 98 MB model as base and guide: shows that it runs.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw of questions.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Answer short questions with two real local models and a policy fitted on the log that ships with the package.

    Example: cascade demo questions
    """
    load_xllamacpp()
    base, guide = TINY if tiny else PAIR
    out = notes() if as_json else console()
    config = demonstration.demo_config(base, guide)
    drawn = _draw(questions, seed)
    _print_start(out, tiny=tiny)
    trial = None if tiny else _fit(out, lambda: demonstration.fit_ladder(config))
    outcomes: list[Outcome] = []
    live = _Live(out)
    with local_models(base, guide) as provider:
        started = time.monotonic()
        with demonstration.ways(config, trial.fitted if trial else None, provider) as asking:
            live.head(len(drawn), next(iter(asking)))
            for outcome in demonstration.run_demo(asking, drawn, live.led):
                outcomes.append(outcome)
                live.done(outcome)
    done = _Done(outcomes, demonstration.table(outcomes), trial, time.monotonic() - started)
    if as_json:
        print_json({"base": base, "guide": guide, "wiring_only": tiny, "seed": seed, **_document(done)})
    else:
        _print_end(out, done, tiny=tiny)


@contextmanager
def local_models(base: str, guide: str) -> Iterator[Memo]:
    """Fetch the weights of two models; answer with them while the block runs, each call made once."""
    fetch([weights.known(name) for name in dict.fromkeys((base, guide))])
    with closing(Memo(Local())) as provider:
        yield provider


class _Trial(NamedTuple):
    """A policy that was fitted on the log, with the figures of all ways to answer on that log."""

    fitted: Fitted
    logged: list[Row]
    fit_s: float


class _Done(NamedTuple):
    """The results of a demo."""

    outcomes: list[Outcome]
    rows: list[Row]
    trial: _Trial | None
    elapsed_s: float


# --- from the log ---


def _print_start(out: Console, *, tiny: bool) -> None:
    who = "one real local model (SmolLM2 135M) in both places" if tiny else f"two real local models ({_MODELS})"
    out.print(f"[bold]cascade demo questions[/]: {who}, no key; the network is only used to fetch the weights once.")


def _fit(out: Console, fit: Callable[[], Fitted]) -> _Trial:
    """Fit a ladder's policy on the shipped log, and print its promise and its figures on that log."""
    out.print("\n[bold]1. Learn from a log[/] of other questions (it ships with the package; no model is asked)")
    started = time.monotonic()
    fitted = fit()
    elapsed = time.monotonic() - started
    sizes = fitted.sizes
    out.print(
        f"base first, then the guide if needed: {plain(fitted.choice.winner.name)}, "
        f"certified on {sizes.calibration} of {counted(sizes.questions, 'question')} in {elapsed:.1f} s"
    )
    for segment in fitted.calibrated.segments:
        out.print(plain(statement(segment.certificate)))
    out.print(demonstration.PICKED, style="dim")
    logged = demonstration.on_the_log(fitted)
    out.print(
        _table(logged, f"the {counted(logged[0].n, 'question')} of the log that set the fitted ladder's threshold")
    )
    out.print(_judging(logged))
    return _Trial(fitted, logged, elapsed)


def _judging(logged: list[Row]) -> str:
    """Return how the rounds in which the guide judges compare with the guide alone, from the log's figures."""
    judged, outright = (next(row for row in logged if row.way == way) for way in (demonstration.JUDGED, GUIDE_ALONE))
    return (
        f"Asking the guide to judge each answer was logged too: right on {judged.right:.0%} for "
        f"{_ratio(judged, outright)} × the guide's cost, so below it only answers."
    )


# --- live ---


def _widths(out: Console) -> tuple[int, int]:
    """Return the widths of a question and an answer in a terminal: half and a quarter of what the numbers leave."""
    free = max(36, min(out.width, 140) - 42)
    return free // 2, free // 4


@dataclass(slots=True)
class _Live:
    """Prints a line for each question: first the answer of the leading way, then those of the others."""

    out: Console
    number: int = 0

    def head(self, count: int, leads: str) -> None:
        question, answer = _widths(self.out)
        self.out.print(f"\n[bold]2. Serve it[/]: {counted(count, 'new question')}, each asked of the {leads} first")
        line = f"{'question':{question}} {'served':{answer + 2}} {'asked':5} {'cost':>10}"
        self.out.print(f"[bold]{line}  base  guide  guide's cost[/]", soft_wrap=True)

    def led(self, asked: DemoQuestion, answer: Answer) -> None:
        question_width, answer_width = _widths(self.out)
        self.number += 1
        shown = cut(f"{self.number:2d} {asked.question.text}", question_width)
        right = _mark(demonstration.is_right(asked, answer))
        served = f"{right} {cut(answer.text or 'no answer', answer_width)}"
        asked_of = "base" if len(answer.steps) == 1 else "both"
        self.out.print(f"{shown} {served} {asked_of:5} {dollars(answer.cost):>10}", soft_wrap=True, end="")

    def done(self, outcome: Outcome) -> None:
        base, guide = (_mark(outcome.right(way)) for way in (BASE_ALONE, GUIDE_ALONE))
        cost = dollars(outcome.answers[GUIDE_ALONE].cost)
        self.out.print(f"  {base}     {guide}      {cost:>12}", soft_wrap=True)


def _mark(right: bool) -> str:
    mark, colour = ("✓", "green") if right else ("✗", "red")
    return f"[{colour}]{mark}[/]"


def _print_end(out: Console, done: _Done, *, tiny: bool) -> None:
    out.print()
    out.print(_table(done.rows, f"on these {counted(len(done.outcomes), 'question')}"))
    if done.trial is not None:
        out.print(_says_kept(done.outcomes))
    leading = [next(iter(one.answers.values())) for one in done.outcomes]
    for said in dict.fromkeys(warning for one in leading for warning in one.warnings):
        out.print(plain(said), style="yellow")
    out.print(f"Prices are {demonstration.MADE_UP} (USD per million tokens in/out: 0.1/0.4 base, 1/4 guide).")
    if tiny:
        out.print("[yellow]--tiny: a 135M model as both base and guide. This shows the wiring, not a saving.[/]")
        out.print("[yellow]The log that ships is of other models, so no policy is fitted for this one.[/]")
    else:
        out.print("Next: cascade prove demo-ladder   what such a cascade saves, and how sure that is, on one page")
    out.print(f"[dim]{counted(len(done.outcomes), 'question')} asked in {done.elapsed_s:.0f} s[/]")


def _says_kept(outcomes: list[Outcome]) -> str:
    """Return how the fitted ladder kept its promise here, in words."""
    lost, count = demonstration.regrets(outcomes), len(outcomes)
    times = {0: "never", 1: "once"}.get(lost, f"{lost} times")
    return (
        f"The fitted ladder was wrong {times} where the guide alone is right, on these {counted(count, 'question')}; "
        f"it promised at most {demonstration.PROMISE.alpha:.0%} of fresh ones. So few questions show no more than that."
    )


def _draw(count: int, seed: int) -> list[DemoQuestion]:
    live = demonstration.demo_questions("live")
    if count > len(live):
        raise UsageError(f"The demo has {len(live)} questions; ask for at most that many with --questions.")
    return demonstration.sample(live, count, seed)


def _table(rows: list[Row], title: str) -> Table:
    outright = next(row for row in rows if row.way == GUIDE_ALONE)
    table = Table("way to answer", "right", "steps", "cost per 1,000", "× guide", title=title, title_justify="left")
    for row in rows:
        cost = dollars(None if row.cost_usd is None else row.cost_usd * 1_000)
        style = "bold" if row.way == FITTED else ""
        table.add_row(row.way, f"{row.right:.0%}", f"{row.steps:.2f}", cost, _ratio(row, outright), style=style)
    return table


def _ratio(row: Row, reference: Row) -> str:
    return "" if not reference.cost_usd or row.cost_usd is None else f"{row.cost_usd / reference.cost_usd:.2f}"


# --- as plain values ---


def _document(done: _Done) -> dict[str, Any]:
    return {
        "prices": demonstration.MADE_UP,
        "elapsed_s": round(done.elapsed_s, 1),
        "questions": [_of_question(outcome) for outcome in done.outcomes],
        "rows": [_of_row(row) for row in done.rows],
        "fitted": None if done.trial is None else _of_trial(done.outcomes, done.trial),
    }


def _of_row(row: Row) -> dict[str, Any]:
    return {"way": row.way, "questions": row.n, "right": row.right, "cost_usd": row.cost_usd, "avg_length": row.steps}


def _of_question(outcome: Outcome) -> dict[str, Any]:
    return {
        "id": outcome.asked.question_id,
        "kind": outcome.asked.kind,
        "question": outcome.asked.question.text,
        "accepted": outcome.asked.answers,
        "answers": {
            way: {
                "served": answer.text,
                "right": outcome.right(way),
                "steps": len(answer.steps),
                "cost_usd": answer.cost,
                "certified": answer.certificate is not None,
            }
            for way, answer in outcome.answers.items()
        },
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
        "on_the_log": [_of_row(row) for row in trial.logged],
        "wrong_where_the_guide_is_right": demonstration.regrets(outcomes),
    }
