"""`fit`: a policy learned from a log, chosen among others, and certified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cascade.api.fit_networks import NetworkOptions
from cascade.api.fit_report import PolicyFit, policy_fit
from cascade.api.fit_request import FitOptions, Ready, checked
from cascade.api.guarantee_options import GuaranteeOptions
from cascade.api.logs import LogAsked, Models, Where
from cascade.api.reviewing import Files, ReviewOptions
from cascade.api.telling import Tell, warn
from cascade.api.waiting import waits
from cascade.episodes.embeddings import vectors_of
from cascade.evaluation.logs import Log
from cascade.guarantees.base import Guarantee
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
    """Learn a policy from a log: compare simple and learned policies by cross-fitting, and certify the best.

    The questions are divided first: one part is used to fit and choose the policy, the other only to certify it.

    Args:
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder, demo-requests, or simulated:NAME.
        guarantee: the kind of guarantee, or the whole of it; then nothing else of it is given.
        alpha: the share of questions that may be missed. By default 0.1.
        delta: the guarantee holds with probability 1 - delta over calibrations, not only on average over them.
        budget_usd: the mean cost of a question, in USD, as in 0.01.
        most_usd: the highest cost that a question can have, in USD. By default budget.per_question.
        by_segment: make a certificate for each segment of questions (a tenant, a task, a language).
        together: with --by-segment and --delta: delta holds for all segments together, not for each.
        by_group: the old name of --by-segment, for the column group; 0.7 removes it.
        abstain: abstain where the best answer is not sure enough.
        policy: the kind of policy; auto compares all but networks and takes the simplest that does as well as the best.
        calibration_share: the share of questions set aside for certification. By default 0.3; for regret, the share
            that costs least in the end, or all questions for a score named beforehand.
        lambda_set: the price of each further answer in the set, as a share of a step's cost.
        init: a fitted policy to start from.
        embed: add sentence embeddings of the question as features (extra embed; cascade models pull minilm). To serve
            a policy that looks at them, both are needed too.
        cross_calibrate: set no question aside: each certifies a policy that was fitted without it. The certificate is
            weaker: misses up to twice alpha.
        levels: fit several levels, each with a certificate, into one directory; a request names one: low=0.2,high=0.05.
        default_level: the level used when a request names none. By default the middle one.
        networks: what is asked of policy networks.
        config: the configuration that will serve: models, prices, prompts, strategy.
        expires_days: the certificate expires after so many days. By default never.
        allow_everything: if there are too few questions, keep every answer of every step instead of failing.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        reference: guide, or a ladder's model: an answer is right if it equals this model's output. Labels are ignored.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        reviews: a file of reviews (`cascade review`): they decide what is right. Repeatable, for several reviewers.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        seconds_price_usd: the price of a second of waiting, added to each cost for the seconds that the log records. It
            affects how policies are fitted and chosen; the promise is the same.
        seed: seed of the random draws; the same log and seed give the same policy.
        output: the policy directory to write. By default none is written; see `save` of the result.
        force: overwrite the policy in the directory.
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
    arguments = locals()
    given, promise = FitOptions.of(arguments), GuaranteeOptions.of(arguments)
    log_asked, reviewed = LogAsked(log, where, matcher, reference, models), ReviewOptions.of(reviews, label_rate)
    ready = checked(given, promise, log_asked, reviewed, tell)
    found = _fitted(_Call(given, ready, working, tell), seed)
    if seconds_price_usd is not None and isinstance(found, PolicyFit):
        tell(waits(found.fitted, ready.tables, seconds_price_usd))
    return found if output is None else found.save(output)


class _Call(NamedTuple):
    """A checked call, and how it is shown and told."""

    given: FitOptions
    ready: Ready
    working: Working
    tell: Tell


def _fitted(call: _Call, seed: int) -> FitResult:
    given, ready = call.given, call.ready
    asked = {"method asked for": given.policy, "seed": str(seed)}
    how: dict[str, Any] = {"method": given.policy, "config": ready.settings, "seed": seed}
    if given.cross_calibrate:
        from cascade.api.fit_crossed import CrossedFit
        from cascade.training.crossing import fit_crossed

        with call.working("choosing, fitting and certifying, five times"):
            done = fit_crossed(ready.tables, ready.wanted, **how, expires_days=given.expires_days)
        return CrossedFit(done, asked)
    how |= {"lambda_set": given.lambda_set}
    how |= {} if given.calibration_share is None else {"calibration_share": given.calibration_share}
    how["embedding"] = None
    if ready.embedder is not None:
        how["embedding"] = Embedding(ready.embedder, vectors_of(ready.log.rows(), ready.embedder))
    if given.policy in BARE:
        from cascade.api.fit_uncertified import UncertifiedFit
        from cascade.training.uncertified import fit_uncertified

        with call.working("training") as show:
            networks = given.networks.networks(ready.network, show, call.tell)
            return UncertifiedFit(fit_uncertified(ready.tables, ready.wanted, networks=networks, **how), asked)
    how |= {"init": ready.init, "expires_days": given.expires_days, "allow_everything": given.allow_everything}
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
