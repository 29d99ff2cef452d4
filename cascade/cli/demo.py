"""`cascade demo`: the whole loop on real local models, no key, no network once the weights are here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cascade import demo as demonstration
from cascade.cli.models import fetch
from cascade.cli.output import console, dollars, notes, plain, print_json
from cascade.demo import PAIR, TINY, Outcome, Row
from cascade.errors import UsageError
from cascade.evaluation.breakeven import BreakEven
from cascade.providers import weights
from cascade.providers.local import Local, load_xllamacpp


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
    provider = Local()
    outcomes: list[Outcome] = []
    _print_head(out)
    try:
        for outcome in demonstration.run_demo(config, provider, drawn):
            outcomes.append(outcome)
            _print_outcome(out, outcome, len(outcomes))
    finally:
        provider.close()
    elapsed = time.monotonic() - started
    rows = demonstration.table(outcomes)
    price = config.prices()[guide]
    even = demonstration.break_even_of(outcomes, price) if price else None
    if as_json:
        print_json(_document(base, guide, seed, elapsed, outcomes, rows, even, tiny=tiny))
        return
    out.print()
    out.print(_table(rows))
    out.print(
        "right: the answer served. in set: one of the answers kept. cost: USD per question. × guide: beside guide only."
    )
    out.print("ladder: the base, then the guide where the base's own log-prob is low. threshold: the guide judges.")
    out.print(f"Prices are {demonstration.MADE_UP} (USD per million tokens in/out: 0.1/0.4 base, 1/4 guide).")
    if even is not None:
        out.print(even.says())
    if tiny:
        out.print("[yellow]--tiny: a 135M model judging itself. This shows the wiring, not what a cascade can do.[/]")
    out.print(f"[dim]{len(outcomes)} questions in {elapsed:.0f} s[/]")


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


def _document(
    base: str,
    guide: str,
    seed: int,
    elapsed_s: float,
    outcomes: list[Outcome],
    rows: list[Row],
    even: BreakEven | None,
    *,
    tiny: bool,
) -> dict[str, Any]:
    return {
        "base": base,
        "guide": guide,
        "prices": demonstration.MADE_UP,
        "wiring_only": tiny,
        "seed": seed,
        "elapsed_s": round(elapsed_s, 1),
        "questions": [
            {
                "id": o.asked.question_id,
                "kind": o.asked.kind,
                "question": o.asked.question.text,
                "accepted": o.asked.answers,
                "base_answer": o.base_answer,
                "base_right": o.right(o.base_answer),
                "p_yes": o.walked.steps[0].signals.get("p_yes"),
                "served": o.walked.text,
                "served_right": o.right(o.walked.text),
                "rounds": len(o.walked.steps),
                "stopped": o.walked.stopped,
                "cost_usd": o.walked.cost,
                "guide_outright": o.outright.text,
                "guide_right": o.right(o.outright.text),
                "guide_cost_usd": o.outright.cost,
            }
            for o in outcomes
        ],
        "rows": [
            {
                "policy": row.policy,
                "accuracy": row.accuracy,
                "coverage": row.coverage,
                "cost_usd": row.cost_usd,
                "avg_length": row.rounds,
                "set_size": row.answers,
            }
            for row in rows
        ],
        "break_even": None if even is None else {name: getattr(even, name) for name in even.__slots__},
        "break_even_says": None if even is None else even.says(),
    }
