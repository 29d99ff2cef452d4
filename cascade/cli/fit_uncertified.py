"""What `fit` writes and prints of a policy network that carries no certificate."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.cli.certificates import plain_text, realised_document
from cascade.cli.fit_tables import training_document
from cascade.cli.output import console, print_json
from cascade.evaluation.report import plots
from cascade.evaluation.report.learning_plot import plot_learning
from cascade.evaluation.report.uncertified_card import found_in_words, uncertified_files
from cascade.policies.artifact import write
from cascade.text import capital
from cascade.training.notes import ended_early
from cascade.training.uncertified import Uncertified


def write_and_say_uncertified(done: Uncertified, output: Path, asked: Mapping[str, str], *, as_json: bool) -> None:
    """Write the directory with its model card and no certificate, and print what it does."""
    plot = plot_learning(done.learning) if plots.available() else None
    write(output, done.artifact, files=uncertified_files(done, asked, plot))
    if as_json:
        print_json(uncertified_document(done, str(output), drawn=plot is not None))
        return
    out = console()
    for part in _report(done, str(output)):
        out.print(part)


def _report(done: Uncertified, output: str) -> Iterator[RenderableType]:
    sizes, shown = done.sizes, plain_text(output)
    said = f"{sizes.questions:,} questions: {sizes.training:,} to train on, {sizes.calibration:,} to judge it on"
    yield Text(said, style="bold")
    loud = set(ended_early(done.learning))
    for note in done.notes:
        yield Text(plain_text(f"{capital(note)}."), style="bold yellow" if note in loud else "")
    yield ""
    yield Text(plain_text(found_in_words(done)))
    yield ""
    yield Text(
        "not certified: what comes next may fare worse. --policy cpo-batch calibrates the same network.",
        style="bold yellow",
    )
    yield Text(f"written: {shown}, what it is and how it was trained in {shown}/README.md")
    named = plain_text(shlex.quote(output))
    yield Text(f"next: cascade calibrate NEW_EPISODES --policy {named} certifies a threshold for it")


def uncertified_document(done: Uncertified, output: str, *, drawn: bool) -> dict[str, Any]:
    """Return a network without a certificate as plain values: the contract of `fit --policy cpo --json`."""
    reference = done.reference_cost_nano_usd
    return {
        "output": output,
        "certified": False,
        "plot": drawn,
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
