"""The options of policy networks, checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from cascade.api.output import Tell
from cascade.api.problems import Problems
from cascade.errors import ConfigError, UsageError
from cascade.policies.files import writable
from cascade.policies.learned import BARE, NETWORKS
from cascade.training.choice.portfolio import AUTO, method_written

if TYPE_CHECKING:  # loaded only for networks
    from cascade.training.networks import progress
    from cascade.training.networks.config import CCPOConfig
    from cascade.training.networks.trainer import Networks


class NetworkOptions(NamedTuple):
    """The options of policy networks, as given.

    Attributes:
        offered: let --policy auto also try two policy networks, CCPO and CPO batch. Each is trained five times, for
            seconds to minutes each time. Needs the extra train.
        config: a file with the settings of training, YAML or JSON: docs/networks.md.
        steps: how many steps networks are trained for. By default 1,000.
        device: where networks are trained: cpu, or cuda, which does not give the same bytes every time. By default cpu.
        checkpoint: save checkpoints of one network's training there, to resume it.
        every: steps between checkpoints. By default 500.
        resume: resume from --checkpoint if it exists; the result has the same bytes.
    """

    offered: bool = False
    config: Path | None = None
    steps: int | None = None
    device: str | None = None
    checkpoint: Path | None = None
    every: int | None = None
    resume: bool = False

    @property
    def options(self) -> list[str]:
        """The options that were given."""
        there = {"--networks": self.offered, "--network-config": self.config is not None}
        there |= {"--steps": self.steps is not None, "--device": self.device is not None}
        there |= {"--checkpoint": self.checkpoint is not None, "--checkpoint-every": self.every is not None}
        return [name for name, one in (there | {"--resume": self.resume}).items() if one]

    def networks(self, config: CCPOConfig | None, show: progress.Tell, tell: Tell) -> Networks | None:
        """Return the trainer; None without networks. `show` gets the progress, `tell` notices of checkpoints."""
        if config is None:
            return None
        from cascade.training.networks.progress import EVERY, Checkpoints
        from cascade.training.networks.trainer import Networks

        kept = None
        if self.checkpoint is not None:
            kept = Checkpoints(self.checkpoint, self.every or EVERY, self.resume, tell)
        return Networks(config, offered=self.offered, checkpoints=kept, tell=show)


def wanted_config(problems: Problems, given: NetworkOptions, method: str) -> CCPOConfig | None:
    """Return the settings of training; None if no network is trained, or if a problem was noted."""
    used = method in NETWORKS or (method == AUTO and given.offered)
    for said in _conflicts(given, method, used=used):
        problems.add(said)
    if not used and not given.options:
        return None
    from cascade.training.networks.trainer import require_torch

    config = problems.of(lambda: _config(given))
    if used and config is not None:
        problems.of(lambda: require_torch(config.device))
    if given.checkpoint is not None:
        with problems.noted():
            _check_checkpoint(given.checkpoint, resume=given.resume)
    return config if used else None


def _conflicts(given: NetworkOptions, method: str, *, used: bool) -> Iterator[str]:
    """Yield the conflicts between options."""
    if given.offered and method in NETWORKS:
        named = method_written(method)
        yield (
            f"--networks adds networks to --policy auto, and --policy {named} is a network itself; leave "
            f"--networks out."
        )
    elif given.options and not used:
        several = f"{', '.join(given.options)} {'is' if len(given.options) == 1 else 'are'}"
        named = ", ".join(map(method_written, NETWORKS))
        yield f"{several} of policy networks: --policy {named}, or auto with --networks."
    if given.checkpoint is not None and method == AUTO:
        yield "--checkpoint saves the training of one network, and auto trains several: name one, as in --policy ccpo."
    if given.checkpoint is None and (given.resume or given.every is not None):
        yield "--resume and --checkpoint-every go with --checkpoint DIR."


def _check_checkpoint(folder: Path, *, resume: bool) -> None:
    """Refuse a folder that cannot be written, or that holds the checkpoint of another run."""
    from cascade.training.networks.progress import CALLED, CHECKPOINT_FILE, OPTION

    writable(folder, CALLED, OPTION)
    if not resume and (folder / CHECKPOINT_FILE).exists():
        raise UsageError(f"{folder} holds a checkpoint: --resume continues from it; or choose another --checkpoint.")


def _config(given: NetworkOptions) -> CCPOConfig:
    """Return the settings of the file, overridden by the options given beside it.

    Raises:
        ConfigError: lists every problem with them.
    """
    from cascade.training.networks.config import CCPOConfig

    document: dict[str, Any] = {} if given.config is None else dict(_document(given.config))
    document |= {} if given.steps is None else {"steps": given.steps}
    document |= {} if given.device is None else {"device": given.device}
    try:
        return CCPOConfig.model_validate(document)
    except ValidationError as error:
        from cascade.config.problems import problems_behind, problems_in

        found = [*problems_in(CCPOConfig, document, error), *problems_behind(CCPOConfig, document, error)]
        source = "the settings of networks" if given.config is None else str(given.config)
        raise ConfigError(dict.fromkeys(found), source) from None


def _document(path: Path) -> Any:
    from cascade.config.yamlfile import read_yaml

    if not path.is_file():
        raise UsageError(f"There is no file {path} with settings of networks.")
    return read_yaml(path, "docs/networks.md has an example")


def bare_conflicts(method: str, there: dict[str, bool]) -> Iterator[str]:
    """Yield the options that a network without a certificate cannot take."""
    besides = [name for name, given in there.items() if given]
    if method in BARE and besides:
        yield (
            f"--policy {method_written(method)} has no certificate, and {', '.join(besides)} "
            f"{'is' if len(besides) == 1 else 'are'} of one; leave out, or take --policy cpo-batch or ccpo."
        )
