"""What `fit --cross-calibrate` prints: the members, the certificate, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cascade.calibration.crossing import bound
from cascade.cli.certificates import calibrated_document, calibrated_report, plain_text
from cascade.cli.output import console, print_json
from cascade.evaluation.report.crossed_card import crossed_files
from cascade.evaluation.report.worth import worth_of
from cascade.policies.artifact import write
from cascade.text import counted
from cascade.training.crossing import Crossed


class CrossedFit(NamedTuple):
    """A cross-calibrated policy, and where it was written."""

    crossed: Crossed
    output: str


def write_and_say(done: Crossed, output: Path, asked: Mapping[str, str], *, as_json: bool) -> None:
    """Write the directory with its model card, and print what is in it."""
    write(output, done.artifact, files=crossed_files(done, asked))
    found = CrossedFit(done, str(output))
    if as_json:
        print_json(crossed_document(found))
        return
    out = console()
    for part in crossed_report(found, out.width):
        out.print(part)


def crossed_report(found: CrossedFit, width: int) -> Iterator[RenderableType]:
    """Yield what is said about a fit, for a terminal of so many columns."""
    done = found.crossed
    steps, many = done.training.arrays.horizon, len(done.choices)
    repeated = done.calibrated.repeated
    besides = f" ({repeated:,} more episodes of the same ones left out)" if repeated else ""
    said = f"{counted(done.training.n, 'question')} of {counted(steps, 'step')}{besides}"
    yield Text(f"{said}, in {many} folds: all fit, and all certify", style="bold")
    for note in done.notes:
        yield Text(plain_text(f"{note[:1].upper()}{note[1:]}."))
    yield ""
    yield _members(done)
    yield ""
    yield from calibrated_report(done.calibrated, width)
    yield ""
    yield Text("The figures are those of each question under the one member that has not seen it.", style="dim")
    yield ""
    output = plain_text(found.output)
    yield Text(f"written: {output}, what it is and how it was chosen in {output}/README.md")
    path = output if output.startswith(("/", ".")) else f"./{output}"
    against = worth_of(done.calibrated).describe("the guide, or a ladder's last model, alone")
    served = Text(f"next: policy: {path} in cascade.yaml serves it")
    yield served if against is None else Text(plain_text(against), style="bold yellow")


def _members(done: Crossed) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("member", justify="right")
    table.add_column("chosen", no_wrap=True, overflow="ellipsis")
    for head in ("fitted on", "certifies with"):
        table.add_column(head, justify="right")
    for number, (choice, critical) in enumerate(zip(done.choices, done.policy.critical, strict=True)):
        table.add_row(str(number), Text(plain_text(choice.chosen.name)), f"{choice.n:,}", f"{critical.size:,}")
    return table


def crossed_document(found: CrossedFit) -> dict[str, Any]:
    """Return a cross-calibrated fit as plain values: the contract of `fit --cross-calibrate --json`."""
    done = found.crossed
    return {
        "output": found.output,
        "alpha_asked": done.alpha,
        "bound": bound(done.alpha),
        "questions": done.training.n,
        "fit_notes": list(done.notes),
        "worth": worth_of(done.calibrated)._asdict(),
        "members": [
            {"chosen": choice.chosen.name, "training": choice.n, "calibration": critical.size}
            for choice, critical in zip(done.choices, done.policy.critical, strict=True)
        ],
        **calibrated_document(done.calibrated),
    }
