"""`fit`: a policy learned from a log, chosen among others, and certified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cascade.api.fit_networks import NetworkOptions
from cascade.api.fit_report import PolicyFit, policy_fit
from cascade.api.fit_request import FitOptions, Place, Ready, checked
from cascade.api.guarantee_options import GuaranteeOptions
from cascade.api.logs import LogAsked, Models, Where
from cascade.api.reviewing import Files, ReviewOptions
from cascade.api.telling import Tell, warn
from cascade.api.waiting import waits
from cascade.episodes.embeddings import vectors_of
from cascade.evaluation.logs import Log
from cascade.guarantees.base import Guarantee
from cascade.policies.embedding import Embedder
from cascade.training.choice.portfolio import AUTO
from cascade.training.dividing import Embedding
from cascade.training.fitting import Fitted, fit_policy
from cascade.training.networks.progress import Tell as Show
from cascade.training.networks.trainer import BARE, CERTIFIABLE
from cascade.training.notes import starts_from

if TYPE_CHECKING:  # of these ways to fit a run needs one
    from cascade.api.fit_crossed import CrossedFit
    from cascade.api.fit_levels import LevelsFit
    from cascade.api.fit_uncertified import UncertifiedFit

FitResult: TypeAlias = "PolicyFit | LevelsFit | CrossedFit | UncertifiedFit"
Working: TypeAlias = Callable[[str], AbstractContextManager[Show]]
"""Makes a context that shows the progress of a piece of work; its argument names the work."""


def _silent(_: str) -> AbstractContextManager[Show]:
    return nullcontext(lambda _: None)


def fit(
    log: str | Log,
    *,
    guarantee: str | Guarantee | None = None,
    alpha: float | None = None,
    delta: float | None = None,
    budget_usd: float | None = None,
    most_usd: float | None = None,
    by_segment: bool = False,
    together: bool = False,
    by_group: bool = False,
    abstain: bool = False,
    policy: str = AUTO,
    calibration_share: float | None = None,
    lambda_set: float = 0.0,
    init: str | Path | None = None,
    embed: bool = False,
    cross_calibrate: bool = False,
    levels: str | Mapping[str, float] | None = None,
    default_level: str | None = None,
    networks: NetworkOptions = NetworkOptions(),  # noqa: B008 - frozen
    config: str | Path | None = None,
    expires_days: int | None = None,
    allow_everything: bool = False,
    where: Where = None,
    matcher: str | None = None,
    reference: str | None = None,
    models: Models = None,
    reviews: Files = None,
    label_rate: float | None = None,
    seconds_price_usd: float | None = None,
    seed: int = 0,
    output: str | Path | None = None,
    force: bool = False,
    working: Working = _silent,
    tell: Tell = warn,
) -> FitResult:
    """Learn when to stop from a log, choose honestly among simple and learned policies, and certify the best.

    Questions are divided first: one part to fit and choose on, one, which nothing else looks at, to certify.

    Args:
        log: a log, or what `open_log` takes.
        guarantee: the kind of promise, or the whole of it; then nothing else of it is given.
        alpha: the share of questions that may break the promise; by default 0.1.
        delta: for all but this share of calibrations.
        budget_usd: what a question may cost on average, in USD.
        most_usd: what no question can cost more than, in USD.
        by_segment: a promise for each segment of questions.
        together: with `by_segment` and `delta`: delta for all segments at once.
        by_group: until 0.7, as `by_segment` of the column group.
        abstain: serve no answer where the best one is not sure enough.
        policy: the method to fit; "auto" tries all but networks.
        calibration_share: the share of questions that certify, and are used for nothing else.
        lambda_set: what each answer more in the set is charged with, as a share of a step.
        init: a policy directory to start from.
        embed: offer what each question is about, by a local sentence model.
        cross_calibrate: set no question aside; misses up to twice alpha.
        levels: several levels by name, each with its alpha.
        default_level: the level that serves where none is named.
        networks: what is asked of policy networks.
        config: the configuration of the cascade that will serve.
        expires_days: how many days the certificates hold.
        allow_everything: with too few questions, keep every answer of every step.
        where: which rows of the log are read.
        matcher: judges the answers anew.
        reference: whose output is the truth, whatever the labels say: "guide", or a ladder's model.
        models: of a log of many models these alone, the cheapest first; the last is the reference.
        reviews: what people said (`cascade review`) is the truth: one file or several.
        label_rate: of the reviews only those drawn at this rate; by default all that were drawn.
        seconds_price_usd: what a second of waiting is worth, in USD: costs then are USD and this for each second that
            the log says a call took. It chooses and fits; the promise is the same.
        seed: which random draws; the same log and seed give the same policy.
        output: the directory to write; by default none, see `save` of the result.
        force: write over another policy there.
        working: makes the context in which it is shown how far a fit is.
        tell: is called with each notice about the log or the call.

    Returns:
        A `PolicyFit`; with levels a `LevelsFit`, with `cross_calibrate` a `CrossedFit`, of a network that carries no
        certificate an `UncertifiedFit`.

    Raises:
        UsageError: with everything that is wrong with what is asked for.
        NotCertifiedError: the log cannot certify the promise; the error says how many questions would.

    >>> found = fit("simulated:mmlu/llama-2-7b,400", alpha=0.2, policy="threshold")
    >>> found.certificates[0].kind
    'coverage'
    """
    given = FitOptions(
        policy,
        calibration_share,
        lambda_set,
        None if init is None else Path(init),
        _sentence_model if embed else None,
        cross=cross_calibrate,
        everything=allow_everything,
        levels=_written(levels),
        default_level=default_level,
        networks=networks,
        seconds_price_usd=seconds_price_usd,
    )
    money = (budget_usd, most_usd)
    promise = GuaranteeOptions.of(guarantee, (alpha, delta, *money, by_group, abstain, by_segment, together))
    place = Place(None if output is None else str(output), force)
    ready = checked(
        given,
        promise,
        LogAsked(log, where, matcher, reference, models),
        ReviewOptions.of(reviews, label_rate),
        place,
        tell,
        config=None if config is None else Path(config),
        expires_days=expires_days,
    )
    asked = {"method asked for": policy, "seed": str(seed)}
    how: dict[str, Any] = {"method": policy, "config": ready.settings, "seed": seed}
    found = _fitted(_Call(given, ready, working, tell), how, asked, expires_days)
    if seconds_price_usd is not None and isinstance(found, PolicyFit):
        tell(waits(found.fitted, ready.tables, seconds_price_usd))
    return found if output is None else found.save(output)


class _Call(NamedTuple):
    """A checked call, and how it is shown and told."""

    given: FitOptions
    ready: Ready
    working: Working
    tell: Tell


def _written(levels: str | Mapping[str, float] | None) -> str | None:
    """Return levels as they are written on the command line."""
    if levels is None or isinstance(levels, str):
        return levels
    return ",".join(f"{name}={alpha!r}" for name, alpha in levels.items())


def _fitted(call: _Call, how: dict[str, Any], asked: Mapping[str, str], expires_days: int | None) -> FitResult:
    given, ready = call.given, call.ready
    if given.cross:
        from cascade.api.fit_crossed import CrossedFit
        from cascade.training.crossing import fit_crossed

        with call.working("choosing, fitting and certifying, five times"):
            done = fit_crossed(ready.tables, ready.wanted, **how, expires_days=expires_days)
        return CrossedFit(done, asked)
    how |= {"lambda_set": given.lambda_set}
    how |= {} if given.calibration_share is None else {"calibration_share": given.calibration_share}
    how["embedding"] = None if ready.embedder is None else _embedding(ready.log, ready.embedder)
    if given.policy in BARE:
        from cascade.api.fit_uncertified import UncertifiedFit
        from cascade.training.uncertified import fit_uncertified

        with call.working("training") as show:
            networks = given.networks.networks(ready.network, show, call.tell)
            return UncertifiedFit(fit_uncertified(ready.tables, ready.wanted, networks=networks, **how), asked)
    how |= {"init": ready.init, "expires_days": expires_days, "allow_everything": given.everything}
    each = _certified(call, how)
    fits = {name: policy_fit(one, _asked(call, name, one, asked)) for name, one in each.items()}
    if ready.levels is None:
        return fits[""]
    from cascade.api.fit_levels import LevelsFit

    return LevelsFit(fits, ready.levels.default)


def _asked(call: _Call, level: str, fitted: Fitted, asked: Mapping[str, str]) -> dict[str, str]:
    """Return what the model card of a level says was asked for."""
    named = {"level": level} if level else {}
    return {**named, **asked, **dict(_took_effect(call.given, call.ready, fitted))}


def _certified(call: _Call, how: dict[str, Any]) -> Mapping[str, Fitted]:
    """Fit and certify: each level by its name; without levels one, called ""."""
    given, ready, levels = call.given, call.ready, call.ready.levels
    with call.working("choosing, fitting and certifying") as show:
        networks = given.networks.networks(ready.network, show, call.tell)
        if levels is None:
            return {"": fit_policy(ready.tables, ready.wanted, networks=networks, **how)}
        from cascade.training.levels import conditioned, fit_levels

        make = conditioned(networks, given.policy, how["seed"]) if given.policy in CERTIFIABLE else None
        return fit_levels(ready.tables, ready.wanted, levels.alphas, make=make, networks=networks, **how)


def _took_effect(given: FitOptions, ready: Ready, fitted: Fitted) -> Iterator[tuple[str, str]]:
    """Yield what was asked for, for the model card, as far as it had an effect."""
    share = given.calibration_share or fitted.sizes.calibration / max(fitted.sizes.questions, 1)
    yield "share of the questions that certifies", f"{share:.2g}"
    if given.lambda_set and not ready.wanted.single:  # of one answer served there is none further
        yield "charged for each further answer", f"{given.lambda_set:g} of a step"
    if given.init is not None and ready.init is not None and starts_from(ready.init, fitted.policy):
        yield "started from", given.init.name


def _sentence_model() -> Embedder:
    from cascade.strategies.embedding import sentence_model

    return sentence_model()


def _embedding(log: Log, embedder: Embedder) -> Embedding:
    """Return the sentence model, and what it makes of each question of a log."""
    return Embedding(embedder, vectors_of(log.rows(), embedder))
