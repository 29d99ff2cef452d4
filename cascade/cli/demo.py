"""`cascade demo`: a shop's mail goes to the right team, by two real local models, without key or network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from cascade.api.output import cut, plain
from cascade.cli.main import console, notes, print_json
from cascade.cli.models import fetch
from cascade.demo import requests as demonstration
from cascade.demo.requests import MADE_UP, PAIR, TINY, DemoRequest, Outcome, Summary, demo_config, sureness, team_of
from cascade.errors import UsageError
from cascade.providers import weights
from cascade.providers.local import Local, load_xllamacpp
from cascade.providers.memo import Memo
from cascade.text import counted
from cascade.types import Answer

if TYPE_CHECKING:
    from cascade.api.fitting import FitResult
    from cascade.config import CascadeConfig

_REQUESTS = 20


def demo(
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="How many messages.")] = _REQUESTS,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="One 98 MB model as base and guide: shows that it runs.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw of messages.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Sort a shop's mail: a small model answers if it is sure, otherwise a large one.

    The policy is fitted on the log that ships with the package, then two real local models serve new messages.

    Example: cascade demo
    """
    load_xllamacpp()
    base, guide = TINY if tiny else PAIR
    out = notes() if as_json else console()
    config = demo_config(base, guide)
    drawn = _draw(requests, seed)
    _print_start(out, tiny=tiny)
    fitted = None if tiny else _fit(out, lambda: fit_requests(config))
    outcomes: list[Outcome] = []
    live = _Live(out)
    with local_models(base, guide) as provider:
        started = time.monotonic()
        with demonstration.serving(config, None if fitted is None else fitted.directory, provider) as asking:
            live.head(len(drawn))
            for outcome in demonstration.run_requests(asking, drawn, live.served):
                outcomes.append(outcome)
                live.done(outcome)
    done = _Done(outcomes, fitted, time.monotonic() - started)
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


class _Done(NamedTuple):
    """The results of a demo."""

    outcomes: list[Outcome]
    fitted: FitResult | None
    elapsed_s: float


def _draw(count: int, seed: int) -> list[DemoRequest]:
    there = len(demonstration.demo_requests("live"))
    if count > there:
        raise UsageError(f"The demo has {there} live messages; ask for at most that many with --requests.")
    return demonstration.drawn(count, seed)


# --- from the log ---


def fit_requests(config: CascadeConfig) -> FitResult:
    """Fit and certify a policy for the ladder of base and guide, on the log that ships with the package.

    Raises:
        NotCertifiedError: the log is too small for the promise.
    """
    from cascade.api.fitting import fit  # these take long to import
    from cascade.episodes.opening import DEMO_REQUESTS

    ladder = demonstration.ladder_config(config)
    return fit(DEMO_REQUESTS, demonstration.PROMISE, config=ladder, tell=lambda notice: None)  # noqa: ARG005


def _print_start(out: Console, *, tiny: bool) -> None:
    out.print(
        "[bold]cascade demo[/]: each message of a shop's customers goes to one of six teams. Two models can say which:"
    )
    if tiny:
        out.print("  here one model, SmolLM2 135M, in both places (--tiny): this shows the wiring only")
    else:
        out.print("  the base   Qwen2.5-Coder 0.5B, small and cheap, is asked first")
        out.print("  the guide  Qwen2.5-Coder 1.5B, at ten times the price, is asked where the base is not sure enough")
    out.print(
        "Both run on this machine. No key is needed, and the network only to fetch their weights once.", style="dim"
    )


def _fit(out: Console, fit: Any) -> FitResult:
    """Fit the policy on the shipped log, and print its promise and its figures on that log."""
    out.print(
        "\n[bold]1. Learn from a log[/] of other messages, which ships with the package: how sure is sure enough?"
    )
    started = time.monotonic()
    fitted: FitResult = fit()
    did = demonstration.on_the_log(fitted.done)
    kept = (
        f"on at least {_whole(1 - demonstration.ALPHA)} of such messages, the team is the one that the guide would name"
    )
    out.print(
        f"Promise: {kept} (with {_whole(1 - demonstration.DELTA)} confidence). No message had to be labelled for it."
    )
    needed = demonstration.needed(fitted.done)
    rule = (
        "the base is never sure enough"
        if needed is None
        else f"the base decides where it is {_percent(needed)} sure or more"
    )
    out.print(
        f"Found in {time.monotonic() - started:.0f} s on {counted(did.n, 'message')}: {rule}. "
        f"It decides {_whole(did.alone)} of them, and all together costs {_share(did.cost)} of the guide's cost."
    )
    return fitted


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _whole(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share(cost: float | None) -> str:
    return "an unknown share" if cost is None else _whole(cost)


# --- live ---


def _message_width(out: Console) -> int:
    """Return the width of a message in a terminal: what the other columns leave."""
    return max(24, min(out.width, 140) - 60)


@dataclass(slots=True)
class _Live:
    """Prints a line for each message: first what the cascade did, then the answer of the guide alone."""

    out: Console
    number: int = 0

    def head(self, count: int) -> None:
        self.out.print(f"\n[bold]2. Serve[/] {counted(count, 'new message')}; the guide alone is asked too, to compare")
        line = f"{'message':{_message_width(self.out)}} {'team':8} {'who decided, and why':23} {'$/1,000':>7}"
        self.out.print(f"[bold]{line}  guide alone[/]", soft_wrap=True)

    def served(self, asked: DemoRequest, answer: Answer) -> None:
        self.number += 1
        message = f"{self.number:2d} {cut(asked.message, _message_width(self.out) - 3)}"
        team = _team(answer)
        line = f"{message} {team} {_why(answer):23} {_cost(answer):>7}"
        self.out.print(line, soft_wrap=True, end="")

    def done(self, outcome: Outcome) -> None:
        said = "[green]same[/]    " if outcome.same else f"[red]{_team(outcome.guide)}[/]"
        self.out.print(f"  {said} {_cost(outcome.guide):>6}", soft_wrap=True)


def _team(answer: Answer) -> str:
    return plain(f"{team_of(answer) or 'none':8}")


def _why(answer: Answer) -> str:
    """Return who decided and why, in a few words."""
    sure = sureness(answer)
    said = "not known" if sure is None else f"{_percent(sure)} sure"
    if len(answer.steps) == 1:
        return f"base, {said}" if sure is not None else "guide"
    return f"guide; base {said}"


def _cost(answer: Answer) -> str:
    return "?" if answer.cost is None else f"{1_000 * answer.cost:.3f}"


def _print_end(out: Console, done: _Done, *, tiny: bool) -> None:
    did = demonstration.summary(done.outcomes)
    said = f"{_share(did.cost)} of the guide's cost, {_whole(did.same)} the same answer"
    promised = "" if tiny else f"; promised: at most {_whole(demonstration.ALPHA)} different"
    out.print(f"\n[bold]{said}{promised}.[/]")
    right, guide_right = demonstration.right(done.outcomes)
    out.print(
        f"The base decided {_whole(did.alone)} of these {counted(did.n, 'message')} by itself. "
        f"By our own labels the cascade was right on {_whole(right)}, the guide alone on {_whole(guide_right)}."
    )
    for said in dict.fromkeys(warning for one in done.outcomes for warning in one.served.warnings):
        out.print(plain(said), style="yellow")
    out.print(f"Prices are {MADE_UP} (USD per million tokens in/out: 0.1/0.4 base, 1/4 guide).", style="dim")
    if tiny:
        out.print("[yellow]--tiny: the log that ships is of other models, so no policy is fitted for this one.[/]")
    else:
        out.print("A run of so few messages may cost much more or less than the log says.")
        out.print("Next: cascade prove demo-requests   what it saves on average, over many random splits of the log")
    out.print(f"[dim]{counted(did.n, 'message')} in {done.elapsed_s:.0f} s[/]")


# --- as plain values ---


def _document(done: _Done) -> dict[str, Any]:
    right, guide_right = demonstration.right(done.outcomes)
    messages = [
        {
            "id": outcome.asked.request_id,
            "message": outcome.asked.message,
            "belongs_to": outcome.asked.team,
            "served": team_of(outcome.served),
            "steps": len(outcome.served.steps),
            "cost_usd": outcome.served.cost,
            "certified": outcome.served.certificate is not None,
            "guide": team_of(outcome.guide),
            "guide_cost_usd": outcome.guide.cost,
            "same": outcome.same,
        }
        for outcome in done.outcomes
    ]
    return {
        "prices": MADE_UP,
        "elapsed_s": round(done.elapsed_s, 1),
        "messages": messages,
        **_summed(demonstration.summary(done.outcomes)),
        "right": right,
        "guide_right": guide_right,
        "fitted": None if done.fitted is None else _of_fitted(done.fitted),
    }


def _summed(did: Summary) -> dict[str, Any]:
    return {"cost_of_guide": did.cost, "same_as_guide": did.same, "base_alone": did.alone}


def _of_fitted(fitted: FitResult) -> dict[str, Any]:
    did = demonstration.on_the_log(fitted.done)
    return {**fitted.to_dict(), "on_the_log": {"messages": did.n, **_summed(did)}}
