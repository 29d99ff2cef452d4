"""How a policy network was trained, for its model card, and the files that go with it."""

from __future__ import annotations

from collections.abc import Iterator

from cascade.evaluation.report.markdown import markdown_table, plain_line
from cascade.policies.artifact import CURVES_FILE, CURVES_PLOT_FILE
from cascade.text import counted
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.progress import Training


def learning_files(training: Training, plot: bytes | None) -> dict[str, bytes]:
    """Return the learning curves and, where it was drawn, their plot, by the names of their files."""
    return {CURVES_FILE: training.curves, **({} if plot is None else {CURVES_PLOT_FILE: plot})}


def trained(training: Training, *, drawn: bool) -> Iterator[str]:
    """Yield how a network was trained, Markdown."""
    config = CCPOConfig.model_validate(training.settings)
    yield from ("## How it was trained", "")
    several = f", for {training.levels} levels at once" if training.levels > 1 else ""
    asked = f"{training.steps:,} of {config.steps:,} steps" if training.diverged else counted(training.steps, "step")
    yield (
        f"On {training.questions:,} training questions{several}: {asked} of {config.batch:,} questions each, on "
        f"{config.device}. Gradient steps on the cost plus a multiplier times the violation, which follows the "
        f"violation; gradients are exact: the log says what every action brings. {_aim(training)}"
    )
    if config.device != "cpu":
        yield "Trained again on this device it need not be the same to the bit."
    yield ""
    if training.diverged is not None:
        yield from (f"**Training was ended early: {plain_line(training.diverged)}.**", "")
    other = CCPOConfig().model_dump(mode="json")
    rows = [(f"`{name}`", plain_line(str(one))) for name, one in training.settings.items() if one != other[name]]
    if rows:
        yield from ("Settings other than the defaults:", "")
        yield from markdown_table(["setting", ""], rows)
    else:
        yield from ("All settings are the defaults.", "")
    if drawn:
        yield from (f"![Learning curves]({CURVES_PLOT_FILE})", "")
    yield from (f"`{CURVES_FILE}` has what each step showed.", "")


def _aim(training: Training) -> str:
    if training.covered is None:
        return f"It aims at a mean cost of {training.cost:.3g} steps, a mean step being 1."
    mean = ", the mean over the levels" if training.levels > 1 else ""
    return f"It aims to keep the promise on {100 * training.covered:.3g} % of them{mean}."
