"""`cascade demo`: sort a shop's mail by team with two real local models, which need no key and are fetched once."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cascade.cli.main import console, say
from cascade.cli.setup import fetch
from cascade.demo import requests as shop
from cascade.providers import weights
from cascade.providers.local import Local, load_xllamacpp
from cascade.providers.replay import Memo
from cascade.resilience.event_loop import run
from cascade.text import percent

if TYPE_CHECKING:
    from cascade.api.fitting import FitResult
    from cascade.config import CascadeConfig

_HEAD = """cascade demo: each message of a shop's customers goes to one of six teams.
  the base   {base}, small and cheap, is asked first
  the guide  {guide}, at ten times the price, if the base is unsure
Both models run here. No key is needed, and the network only to fetch them once.

1. Fit a policy on a log of other messages, which ships with the package"""
_TINY = "--tiny: one model in both places, which the log is not of, so nothing is fitted."
_NEXT = "Next: cascade prove demo-requests --promise agreement"
_SERVE = """2. Serve {} new messages; the guide alone is asked too, to compare
 # message                answer   by    guide    how sure the base is"""


def demo(
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="How many messages.")] = 20,
    tiny: Annotated[bool, typer.Option("--tiny", help="One 98 MB model as base and guide, to see it run.")] = False,
) -> None:
    """Sort a shop's mail: a small model answers if it is sure, otherwise a large one.

    The policy is fitted on the log that ships with the package, then two real local models serve new messages.

    Example: cascade demo
    """
    load_xllamacpp()
    base, guide = shop.TINY if tiny else shop.PAIR
    config, messages, out = shop.demo_config(base, guide), shop.drawn(requests), console()
    out.print(_HEAD.format(base=base, guide=guide))
    fitted = None if tiny else fit_requests(config)
    lines = [_TINY] if fitted is None else fitted.reports[0].lines[:-1]  # the last says how to write it
    out.print("\n".join([*lines, "", _SERVE.format(requests)]))
    fetch([weights.entry_of(name) for name in dict.fromkeys((base, guide))])
    outcomes, started = list[shop.Outcome](), time.monotonic()
    provider = Memo(Local())
    try:
        for outcome in shop.run_requests(config, None if fitted is None else fitted.directory, provider, messages):
            outcomes.append(outcome)
            out.print(_line(len(outcomes), outcome))
    finally:
        run(provider.close())
    elapsed_s, shares = time.monotonic() - started, shop.figures(outcomes)
    cost = "an unknown share" if shares.cost_of_guide is None else f"{shares.cost_of_guide:.0%}"
    promised = f"{cost} of the guide's cost", f"; promised: at most {percent(shop.ALPHA)} different"
    before, after = ("Nothing to save where one model is asked twice", "") if tiny else promised
    out.print(f"\n{before}, {shares.same_as_guide:.0%} the same answer{after}.", style="bold")
    out.print(f"The base alone decided {shares.base_alone:.0%}, in {elapsed_s:.0f} s all together.")
    out.print(f"By our own labels the cascade is right on {shares.right:.0%}, the guide on {shares.guide_right:.0%}.")
    for warning in dict.fromkeys(warning for outcome in outcomes for warning in outcome.answer.warnings):
        say(warning)
    out.print(f"Prices are {shop.MADE_UP}. So few messages may cost much more or less than the log says.", style="dim")
    out.print(_NEXT)


def fit_requests(config: CascadeConfig) -> FitResult:
    """Fit and certify a policy for the ladder of base and guide, on the log that ships with the package.

    Raises:
        NotCertifiedError: the log is too small for the promise.
    """
    from cascade.api.fitting import fit  # these take long to import
    from cascade.episodes.opening import DEMO_REQUESTS

    return fit(DEMO_REQUESTS, shop.PROMISE, config=shop.ladder_config(config), tell=lambda notice: None)  # noqa: ARG005


def _line(number: int, outcome: shop.Outcome) -> str:
    """Return what the cascade did with a message and why, and the answer of the guide alone."""
    team, guide = (shop.team_of(answer) or "none" for answer in (outcome.answer, outcome.guide))
    message = textwrap.shorten(outcome.request.message, 22, placeholder="…")
    steps, compared = outcome.answer.steps, "same" if outcome.same else guide
    reason = str(steps[0].reason).partition(": ")[0] if steps else "no reply"
    return f"{number:2d} {message:22} {team:8} {'base' if len(steps) == 1 else 'guide':5} {compared:8} {reason}"
