"""What `fit` writes and prints for a policy network without a certificate."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from rich.console import RenderableType
from rich.text import Text

from cascade.api.fit_report import training_document, written
from cascade.api.output import Result, plain_text
from cascade.api.promises import realised_document
from cascade.evaluation import plots
from cascade.evaluation.card import found_in_words, uncertified_files
from cascade.evaluation.learning_plot import plot_learning
from cascade.policies.artifact import write
from cascade.text import capital
from cascade.training.dividing import ended_early
from cascade.training.uncertified import Uncertified


@dataclass(frozen=True, slots=True)
class UncertifiedFit(Result):
    """A policy network without a certificate.

    Attributes:
        done: the network, and its figures.
        asked: the options of the call, for the model card.
        output: the directory that it was written into; None if it was not written.
        notices: the notices about the log and the call, as `tell` got them.
    """

    done: Uncertified
    asked: Mapping[str, str]
    output: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def drawn(self) -> bool:
        """Whether there is a plot of its training among the files."""
        return plots.available()

    def save(self, directory: str | Path) -> Self:
        """Write the policy directory with its model card; return the same result with its `output`."""
        plot = plot_learning(self.done.learning) if self.drawn else None
        write(Path(directory), self.done.artifact, files=uncertified_files(self.done, self.asked, plot))
        return replace(self, output=str(directory))

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        done, sizes = self.done, self.done.sizes
        said = f"{sizes.questions:,} questions: {sizes.training:,} to train on, {sizes.calibration:,} to evaluate it on"
        yield Text(said, style="bold")
        loud = set(ended_early(done.learning))
        for note in done.notes:
            yield Text(plain_text(f"{capital(note)}."), style="bold yellow" if note in loud else "")
        yield ""
        yield Text(plain_text(found_in_words(done)))
        yield ""
        yield Text(
            "not certified: on new questions it may do worse. --policy cpo-batch calibrates the same network.",
            style="bold yellow",
        )
        output = self.output or ""
        yield from written(
            self.output,
            f"what it is and how it was trained in {plain_text(output)}/README.md",
            following=f"next: cascade calibrate NEW_EPISODES --policy {shlex.quote(output)} certifies a threshold "
            "for it",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fit --policy cpo --json`."""
        done = self.done
        reference = done.reference_cost_nano_usd
        return {
            "output": self.output,
            "notices": list(self.notices),
            "certified": False,
            "plot": self.drawn,
            "method": done.policy.method,
            "kappa": done.policy.kappa,
            "sizes": done.sizes._asdict(),
            "fit_notes": list(done.notes),
            "asked": {"kind": done.wanted.kind, "alpha": done.wanted.alpha},
            "kept": done.kept._asdict(),
            "realised": realised_document(done.realised),
            "reference_cost_usd": None if reference is None else reference / 1e9,
            "training": training_document(done.learning),
        }
