"""What `fit --cross-calibrate` prints: the members, the certificate, and what it saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cascade.api.fit_report import next_step, path_of, written
from cascade.api.output import Result, plain_text, table
from cascade.api.promises import calibrated_document, calibrated_report
from cascade.calibration.crossing import bound
from cascade.evaluation.baselines import worth_of
from cascade.evaluation.card import crossed_files
from cascade.policies.artifact import write
from cascade.text import counted
from cascade.training.crossing import Crossed


@dataclass(frozen=True, slots=True)
class CrossedFit(Result):
    """A cross-calibrated policy.

    Attributes:
        crossed: its members, and their certificate.
        asked: the options of the call, for the model card.
        output: the directory that it was written into; None if it was not written.
        notices: the notices about the log and the call, as `tell` got them.
    """

    crossed: Crossed
    asked: Mapping[str, str]
    output: str | None = None
    notices: tuple[str, ...] = ()

    def save(self, directory: str | Path) -> Self:
        """Write the policy directory with its model card; return the same result with its `output`."""
        write(Path(directory), self.crossed.artifact, files=crossed_files(self.crossed, self.asked))
        return replace(self, output=str(directory))

    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        done = self.crossed
        steps, many = done.training.arrays.horizon, len(done.choices)
        repeated = done.calibrated.repeated
        besides = f" ({repeated:,} more episodes of the same ones left out)" if repeated else ""
        said = f"{counted(done.training.n, 'question')} of {counted(steps, 'step')}{besides}"
        yield Text(f"{said}, in {many} folds: each is used both to fit and to certify", style="bold")
        for note in done.notes:
            yield Text(plain_text(f"{note[:1].upper()}{note[1:]}."))
        yield ""
        yield _members(done)
        yield ""
        yield from calibrated_report(done.calibrated, width)
        yield ""
        yield Text("The figures use, for each question, the one member that was not fitted on it.", style="dim")
        yield ""
        output = self.output or ""
        yield from written(
            self.output,
            f"what it is and how it was chosen in {plain_text(output)}/README.md",
            warning=worth_of(done.calibrated).describe("the guide, or a ladder's last model, alone"),
            following=next_step(done.policy.reads, done.policy.sources, path_of(output), done.training),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fit --cross-calibrate --json`."""
        done = self.crossed
        return {
            "output": self.output,
            "alpha_asked": done.alpha,
            "bound": bound(done.alpha),
            "questions": done.training.n,
            "fit_notes": list(done.notes),
            "notices": list(self.notices),
            "worth": worth_of(done.calibrated)._asdict(),
            "members": [
                {"chosen": choice.chosen.name, "training": choice.n, "calibration": critical.size}
                for choice, critical in zip(done.choices, done.policy.critical, strict=True)
            ],
            **calibrated_document(done.calibrated),
        }


def _members(done: Crossed) -> Table:
    rows = [
        [str(number), Text(plain_text(choice.chosen.name)), f"{choice.n:,}", f"{critical.size:,}"]
        for number, (choice, critical) in enumerate(zip(done.choices, done.policy.critical, strict=True))
    ]
    return table(("member", "chosen", "fitted on", "certifies with"), rows, left=2)
