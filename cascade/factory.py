"""From the configuration's sections to what they describe: the strategy, the policy, and where models are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade.checks import checked_key
from cascade.config import (
    DEFAULT_BASE_VARIABLE,
    DEFAULT_KEY_VARIABLE,
    CascadeConfig,
    environment,
    policy_section,
    strategy_problems,
)
from cascade.config.learned import CrossConfig, LearnedConfig
from cascade.config.schema import (
    BaseGuideConfig,
    DirectoryConfig,
    ExitConfig,
    LadderConfig,
    ModelConfig,
    PolicyConfig,
)
from cascade.errors import ConfigError, UsageError
from cascade.policies.base import Policy
from cascade.policies.fixed import FixedPolicy, RandomPolicy
from cascade.policies.prompted import PromptedPolicy
from cascade.policies.threshold import ThresholdPolicy
from cascade.providers.exchange import OPENAI_BASE, Endpoint
from cascade.strategies import prompts
from cascade.strategies.base import ModelUse, Strategy
from cascade.strategies.base_guide import BaseGuide
from cascade.strategies.exit import Exit
from cascade.strategies.ladder import Ladder

if TYPE_CHECKING:
    from cascade.policies.artifact import PolicyArtifact
    from cascade.policies.learned import LearnedPolicy
    from cascade.policies.levels import Levels


def build_strategy(config: CascadeConfig) -> Strategy:
    """Return the strategy that a configuration describes."""
    uses = {name: _use(entry) for name, entry in config.models.items()}
    wanted = config.strategy
    templates = prompts.load(wanted.prompts)
    if isinstance(wanted, LadderConfig):
        return Ladder(tuple(uses[name] for name in wanted.models), templates)
    if isinstance(wanted, ExitConfig):
        return Exit(uses[wanted.model], wanted.model, wanted.rounds, templates)
    return _base_guide(wanted, uses, templates)


def _base_guide(wanted: BaseGuideConfig, uses: Mapping[str, ModelUse], templates: prompts.Prompts) -> BaseGuide:
    return BaseGuide(
        base=uses["base"],
        guide=uses["guide"],
        rounds=wanted.rounds,
        verdict=wanted.verdict,
        samples=wanted.samples,
        on_guide_error=wanted.on_guide_error,
        prompts=templates,
        decider=wanted.decider,
    )


_MAKERS: Mapping[str, Callable[[Any], Policy]] = {
    "fixed": lambda wanted: FixedPolicy(wanted.keep, wanted.depth),
    "random": lambda wanted: RandomPolicy(wanted.seed),
    "threshold": lambda wanted: ThresholdPolicy(wanted.threshold, wanted.keep, wanted.when),
    "prompted": lambda _: PromptedPolicy(),
}


def build_policy(config: CascadeConfig) -> Policy:
    """Return the policy that a configuration describes; of a policy directory, the policy at its certified threshold.

    Raises:
        ConfigError: the policy directory cannot be read, was changed, or holds a policy that does not fit the strategy.
    """
    wanted = config.policy
    return certified_policy(config, wanted.path)[0] if isinstance(wanted, DirectoryConfig) else policy_of(wanted)


def policy_of(section: PolicyConfig) -> Policy:
    """Return the policy that a section describes. Raises as `build_policy`, also for a learned one (`read_policy`)."""
    if isinstance(section, DirectoryConfig):
        return read_policy(section.path).deciding
    if isinstance(section, LearnedConfig | CrossConfig):
        raise ConfigError(["policy: the numbers of a learned policy are in its directory; name that: policy: DIR"])
    return _MAKERS[section.kind](section)


def certified_policy(config: CascadeConfig, directory: str) -> tuple[Policy, PolicyArtifact]:
    """Return the policy of a policy directory, and the directory's content, which says what is certified.

    The policy is at its certified threshold; at the hand-set one of its settings where nothing is certified.

    Raises:
        ConfigError: as `build_policy` says.
    """
    held = fitting(config, read_policy(directory), directory)
    return held.deciding, held.artifact


def fitting(config: CascadeConfig, held: HeldPolicy, directory: str) -> HeldPolicy:
    """Return a policy that was read from a directory, if it fits the strategy. Raises ConfigError where it does not."""
    problems = list(strategy_problems(config.model_copy(update={"policy": held.section})))
    if problems:
        raise ConfigError(problems, directory)
    return held


class HeldPolicy(NamedTuple):
    """A policy directory as read.

    Attributes:
        artifact: what is in it.
        section: the settings of its policy.
        policy: what these settings describe, at the threshold that they name.
    """

    artifact: PolicyArtifact
    section: PolicyConfig
    policy: Policy

    @property
    def deciding(self) -> Policy:
        """The policy as it serves: at its certified thresholds, where there are any."""
        return self.artifact.calibrated(self.policy) if self.artifact.certificates else self.policy


def read_policy(directory: str | Path, *, certificates: bool = True) -> HeldPolicy:
    """Return a policy directory with the policy in it.

    Args:
        directory: where it is.
        certificates: whether to read the certificates too; not where they are about to be replaced.

    Raises:
        ConfigError: it cannot be read, was changed, or holds no policy but the path of another directory; the numbers
            of a learned policy are no such numbers (`model_file.loads`).
        MissingExtraError, ModelFileError: it looks at questions with a sentence model that is not here.
    """
    from cascade.policies import artifact  # numpy, which most configurations do without

    found = artifact.read(directory, certificates=certificates)
    section = policy_section(found.policy, held=True)
    if isinstance(section, DirectoryConfig):
        raise ConfigError(["policy: a policy directory holds a policy, not the path of another"], str(directory))
    read = _READERS.get(section.kind)
    policy = policy_of(section) if read is None else read(found, str(directory))
    return HeldPolicy(found, section, policy)


class HeldLevels(NamedTuple):
    """A policy directory with levels as read: which there are, and the policy of each by its name."""

    levels: Levels
    policies: Mapping[str, HeldPolicy]


def read_levels(directory: str | Path, *, certificates: bool = True) -> HeldLevels | None:
    """Return the levels of a policy directory; None where it has none.

    Args:
        directory: where it is.
        certificates: whether to read the certificates too; not where they are about to be replaced.

    Raises:
        ConfigError: everything that is wrong with any of them, or they are not the levels of one policy.
        MissingExtraError, ModelFileError: as `read_policy`.
    """
    from cascade.policies import levels as file

    found = file.read(directory)
    if found is None:
        return None
    policies, problems = dict[str, HeldPolicy](), list[str]()
    for name in found.by_name:
        try:
            policies[name] = read_policy(Path(directory) / found.directory(name), certificates=certificates)
        except ConfigError as error:
            problems += [f"levels.{name}: {problem}" for problem in error.problems]
    if not problems:
        artifacts = {name: one.artifact for name, one in policies.items()}
        problems = list(file.check(found, artifacts, certificates=certificates))
    if problems:
        raise ConfigError(problems, str(directory))
    return HeldLevels(found, policies)


def _read_learned(found: PolicyArtifact, directory: str) -> Policy:
    """Return the policy whose numbers are in a directory's file."""
    from cascade.policies import model_file
    from cascade.policies.artifact import MODEL_FILE

    return _with_sentence_model(model_file.loads(found.files[MODEL_FILE], found.policy, directory), directory)


def _read_cross(found: PolicyArtifact, directory: str) -> Policy:
    """Return the policies whose numbers are in a directory's file, as one."""
    from cascade.policies import cross_file
    from cascade.policies.artifact import MODEL_FILE

    return cross_file.loads(found.files[MODEL_FILE], found.policy, directory)


_READERS: Mapping[str, Callable[[PolicyArtifact, str], Policy]] = {"learned": _read_learned, "cross": _read_cross}
"""What reads the policies that have more than settings, by their kind."""


def _with_sentence_model(policy: LearnedPolicy, directory: str) -> LearnedPolicy:
    """Return a learned policy with the sentence model that it looks at questions with, if it does."""
    if policy.directions is None:
        return policy
    from cascade.policies.embedding import Embedded
    from cascade.strategies.embedding import sentence_model

    try:
        return replace(policy, embedded=Embedded(policy.directions, sentence_model()))
    except UsageError as error:
        raise ConfigError([f"policy.embedding: {error}"], directory) from None


def _use(entry: ModelConfig) -> ModelUse:
    return ModelUse(entry.model, entry.max_tokens, entry.temperature, entry.seed)


def address(config: CascadeConfig, kind: str, entry: ModelConfig) -> str | None:
    """Return where a provider of this kind finds a model; None where it knows by itself."""
    shared = config.provider
    base = entry.api_base or (shared.api_base if kind == shared.kind else None)
    return base or ((environment(DEFAULT_BASE_VARIABLE) or OPENAI_BASE) if kind == "openai_http" else None)


def endpoints(config: CascadeConfig, kind: str, entries: Iterable[ModelConfig]) -> dict[str, Endpoint]:
    """Return where each model is served and with which key, as far as the configuration says.

    `openai_http` always needs an address: the provider's, else OPENAI_BASE_URL, else OpenAI's own. `litellm` finds its
    own where none is configured.

    Raises:
        ConfigError: a variable holds what can be no key; without the key.
    """
    shared = config.provider
    own_kind = kind == shared.kind
    found, problems = dict[str, Endpoint](), list[str]()
    for entry in entries:
        base = address(config, kind, entry)
        key_env = entry.api_key_env or (shared.api_key_env if own_kind else None)
        if base is None and key_env is None:
            continue
        # The default key goes to the default address only: another server must be given its key by name.
        default = DEFAULT_KEY_VARIABLE if base == OPENAI_BASE else None
        variable = key_env or default
        key = environment(variable)
        try:
            found[entry.model] = Endpoint(base, key and checked_key(key, f"the environment variable {variable}"))
        except ValueError as error:
            problems.append(f"models: {error}")
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return found
