"""What `fit` is asked for, checked all together before anything is fitted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade.api.fit_levels import LevelsWanted, check_places, levels_asked
from cascade.api.fit_networks import NetworkOptions, bare_conflicts, wanted_config
from cascade.api.guarantee_options import GuaranteeOptions, wanted_guarantee
from cascade.api.logs import LogAsked, refuse_other_prices, tables_for, tell_pooled, tell_questions
from cascade.api.methods import check_method
from cascade.api.policies import check_target
from cascade.api.problems import Problems, checked_log
from cascade.api.reviewing import ReviewOptions, compared, read_reviewed
from cascade.api.telling import Tell
from cascade.api.unserved import tell_unserved
from cascade.episodes.seconds import seconds_of, with_seconds
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.logs import Log
from cascade.guarantees.base import DEFAULT, Guarantee, default_kind, get, is_known
from cascade.policies.artifact import CARD_FILE, POLICY_FILE
from cascade.policies.embedding import Embedder
from cascade.policies.learned import as_learned
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.trainer import CERTIFIABLE
from cascade.training.notes import Init

if TYPE_CHECKING:
    from cascade.config import CascadeConfig


class FitOptions(NamedTuple):
    """How a policy is to be fitted and where it is written: arguments of `fit`, by the same names."""

    policy: str
    calibration_share: float | None
    lambda_set: float
    init: Path | None
    embed: bool
    cross_calibrate: bool
    levels: str | None
    default_level: str | None
    networks: NetworkOptions
    config: Path | None
    expires_days: int | None
    allow_everything: bool
    seconds_price_usd: float | None
    output: str | None
    force: bool

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> FitOptions:
        """Return the options among the arguments of a call."""
        found = {name: given[name] for name in cls._fields}
        if isinstance(found["levels"], Mapping):  # as they are written on the command line
            found["levels"] = ",".join(f"{name}={alpha!r}" for name, alpha in found["levels"].items())
        for name, kind in {"init": Path, "config": Path, "output": str}.items():
            found[name] = None if found[name] is None else kind(found[name])
        return cls(**found)

    def check(self) -> Iterator[str]:
        """Yield what is wrong with it."""
        if self.calibration_share is not None and not 0 < self.calibration_share < 1:
            yield f"The share of questions that certify lies between 0 and 1, not {self.calibration_share:g}."
        if not 0 <= self.lambda_set < math.inf:
            yield f"--lambda-set is a share of a step, 0 or more, not {self.lambda_set:g}."
        if self.cross_calibrate and self.levels is not None:
            yield "--levels sets the same questions aside for each level, and --cross-calibrate none; leave one out."
        if self.levels is not None and self.policy in CERTIFIABLE:
            for name, one in {"--init": self.init, "--embed": self.embed}.items():
                if one:
                    yield f"{name} does not go with one network for several levels."

    def uncrossed(self) -> list[str]:
        """Return the options that do not go with --cross-calibrate."""
        there = {"--lambda-set": self.lambda_set, "--init": self.init, "--embed": self.embed}
        there |= {
            "--allow-everything": self.allow_everything,
            "--calibration-share": self.calibration_share is not None,
        }
        network = [f"--policy {self.policy.replace('_', '-')}"] if self.policy in CERTIFIABLE else []
        return [*(name for name, one in there.items() if one), *network, *self.networks.options]

    def besides(self, promise: GuaranteeOptions) -> dict[str, bool]:
        """Return the options that are of a certificate, and whether they were given."""
        there = {
            "--cross-calibrate": self.cross_calibrate,
            "--levels": self.levels is not None,
            "--init": self.init is not None,
        }
        there |= {
            "--by-group": promise.by_group,
            "--by-segment": promise.by_segment,
            "--abstain": promise.abstain,
            "--delta": promise.delta is not None,
        }
        there |= {"--allow-everything": self.allow_everything}
        return there | {"--expires-days": self.expires_days is not None}


class Ready(NamedTuple):
    """What a fit starts from, all of it checked."""

    wanted: Guarantee
    settings: CascadeConfig | None
    log: Log
    tables: Sequence[EpisodeTable]
    init: Init | None
    embedder: Embedder | None
    levels: LevelsWanted | None = None
    network: CCPOConfig | None = None


def checked(
    given: FitOptions, promise: GuaranteeOptions, log_asked: LogAsked, reviews: ReviewOptions, tell: Tell
) -> Ready:
    """Return what a fit starts from, or refuse, with everything that is wrong."""
    problems = Problems()
    if given.output is not None:
        _check_output(problems, given.output, force=given.force)
    with problems.noted():
        check_method(given.policy)
    for said in (*given.check(), *bare_conflicts(given.policy, given.besides(promise))):
        problems.add(said)
    network = wanted_config(problems, given.networks, given.policy)
    settings = None if (config := given.config) is None else problems.of(lambda: _settings(config))
    log = checked_log(problems, compared(log_asked) if reviews.files else log_asked, tell)
    if log is not None and promise.kind is None and any(table.truth is not None for table in log.tables):
        promise = promise._replace(kind=default_kind(budget=False, compared=True))
    levels = levels_asked(problems, given.levels, given.default_level, promise)
    if given.output is not None:
        check_places(problems, Path(given.output), levels, force=given.force)
    wanted = problems.of(lambda: wanted_guarantee(_at_default(promise, levels), settings, tell))
    if given.cross_calibrate:
        with problems.noted():
            _check_crossable(wanted, promise, given.uncrossed())
    directory = given.init
    started = None if directory is None else problems.of(lambda: _init(directory))
    embedder = problems.of(_sentence_model) if given.embed else None
    if reviews.files and log is not None and wanted is not None:
        kind = wanted.kind
        log = problems.of(lambda: read_reviewed(log_asked, reviews, kind, tell))
    tables: Sequence[EpisodeTable] | None = None
    if log is not None:
        with problems.noted():
            _check_prices(log, settings)
        tables = problems.of(lambda: tables_for(log, None if wanted is None else wanted.kind))
        price = given.seconds_price_usd
        if price is not None and promise.budget_usd is not None:
            problems.add("--seconds-price counts seconds as costs, and --budget promises USD alone; leave one out.")
        elif price is not None and tables is not None:
            plain, taken = tables, seconds_of(log.rows())
            tables = problems.of(lambda: tuple([with_seconds(one, taken, price) for one in plain]))
    problems.refuse()
    assert wanted is not None  # noqa: S101 - else there were problems
    assert log is not None  # noqa: S101 - the same
    assert tables is not None  # noqa: S101 - the same
    tell_pooled(tables, tell)
    tell_questions(tables, tell, reference=wanted.rules.needs_reference)
    tell_unserved(tables, settings, tell)
    return Ready(wanted, settings, log, tables, started, embedder, levels, network)


def _sentence_model() -> Embedder:
    from cascade.strategies.embedding import sentence_model

    return sentence_model()


def _settings(path: Path) -> CascadeConfig:
    from cascade.config import load

    return load(path)


def _at_default(promise: GuaranteeOptions, levels: LevelsWanted | None) -> GuaranteeOptions:
    """Return what is promised at the default level, where there are levels."""
    return promise if levels is None else promise._replace(alpha=levels.alphas[levels.default])


def _check_output(problems: Problems, output: str, *, force: bool) -> None:
    """Note why a policy cannot be written there."""
    if not output.strip():
        problems.add("--output is empty; name the policy directory to write, as in -o policy, or -o . for this one.")
        return
    with problems.noted():
        otherwise = f"Calibrate that one with --policy {output}, choose"
        check_target(Path(output), same=False, force=force, otherwise=otherwise)
        _refuse_other_pages(Path(output), force=force)


def _check_crossable(wanted: Guarantee | None, promise: GuaranteeOptions, besides: list[str]) -> None:
    """Refuse what does not go with --cross-calibrate; where the promise itself is wrong, name its options."""
    from cascade.training.crossing import check_crossable

    if wanted is not None:
        check_crossable(wanted, besides)
        return
    crossable = promise.kind is None or (is_known(promise.kind) and get(promise.kind).crossable)
    there = {f"--guarantee {promise.kind}": not crossable, "--by-group": promise.by_group}
    there |= {"--by-segment": promise.by_segment, "--together": promise.together}
    there |= {"--delta": promise.delta is not None, "--budget": promise.budget_usd is not None}
    besides += [name for name, one in there.items() if one]
    if besides:
        check_crossable(Guarantee(DEFAULT), besides)


def _check_prices(log: Log, settings: CascadeConfig | None) -> None:
    """Refuse a log of other prices than are configured."""
    if settings is not None:
        advice = "collect anew, or configure the prices of the log"
        refuse_other_prices(log, settings.prices(), "the configuration", advice)


def _refuse_other_pages(output: Path, *, force: bool) -> None:
    """Refuse to write a model card over a README.md that is not one, such as a project's own."""
    if (output / CARD_FILE).exists() and not (output / POLICY_FILE).exists() and not force:
        raise UsageError(
            f"{output} is no policy directory and holds a {CARD_FILE}, which the model card would be written over; "
            "choose another --output, or --force."
        )


def _init(directory: Path) -> Init:
    """Return the policy to start from.

    Raises:
        UsageError: it was not fitted, or several were, so that there is nothing to start from.
    """
    from cascade.api.policies import policy_directory
    from cascade.policies.cross import as_crossed

    if not (directory / POLICY_FILE).is_file():
        raise UsageError(f"--init {directory} is not a policy directory: name one that cascade fit wrote.")
    held = policy_directory(directory, certificates=False)
    if as_crossed(held.policy) is not None:
        raise UsageError(f"{directory} was cross-calibrated: it holds several policies, and --init starts from one.")
    learned = as_learned(held.policy)
    if learned is None:
        raise UsageError(f"{directory} holds a policy that was not fitted: there is nothing in it to start from.")
    return Init(learned, held.artifact.seen)
