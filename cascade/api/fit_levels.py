"""`fit --levels`: parses the levels, writes them, and prints a table with a row for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import RenderableType
from rich.text import Text

from cascade.api.fit_report import PolicyFit, fitted_document, next_step, path_of, written
from cascade.api.logs import Problems
from cascade.api.output import Result, per_thousand, plain_text, table
from cascade.api.promises import GuaranteeOptions
from cascade.calibration.calibrating import Calibrated
from cascade.errors import UsageError
from cascade.evaluation.baselines import worth_of
from cascade.guarantees.certificate import statement
from cascade.policies.levels import foreign, in_order, write
from cascade.text import capital, counted
from cascade.training.fitting import Fitted
from cascade.training.levels import level_notes, level_problems, middle

_WIDE = 100
_BARE = {2: ("low", "high"), 3: ("low", "medium", "high")}
"""The default names of levels given as bare alphas, the cheapest first."""
APART = (
    "Each level's promise holds for questions like those of the log. Choose a level by what a question may cost, not "
    "by how hard it looks: a level promises nothing about the hard questions alone."
)


class LevelsWanted(NamedTuple):
    """The levels that are asked for: their alphas by name, the cheapest first, and the default one."""

    alphas: Mapping[str, float]
    default: str


def levels_asked(
    problems: Problems, given: str | None, default: str | None, promise: GuaranteeOptions
) -> LevelsWanted | None:
    """Return the requested levels; None if there are none, or if a problem with them was noted."""
    if given is None:
        if default is not None:
            problems.add("--default-level is one of --levels, and there are none.")
        return None
    found = list[str]()
    if promise.alpha is not None:
        found.append(
            "--alpha is one share for all questions, and --levels has one for each level; leave one of them out."
        )
    alphas = dict[str, float]()
    try:
        alphas = parsed(given)
        found += [f"--levels: {said}." for said in level_problems(alphas)]
    except UsageError as error:
        found.append(str(error))
    if alphas and default is not None and default not in alphas:
        found.append(f"--default-level is {default!r}, and --levels has {', '.join(alphas)}.")
    for said in found:
        problems.add(said)
    return None if found else LevelsWanted(alphas, middle(alphas) if default is None else default)


def parsed(given: str) -> dict[str, float]:
    """Parse the alphas of levels, the cheapest first.

    Raises:
        UsageError: the text cannot be parsed; lists every problem.

    >>> parsed("high=0.05, low=0.2"), parsed("0.2,0.1,0.05")
    ({'low': 0.2, 'high': 0.05}, {'low': 0.2, 'medium': 0.1, 'high': 0.05})
    """
    parts = [one.strip() for one in given.split(",")]
    named = [one.partition("=") for one in parts]
    wrong = [one for one, (_, _, value) in zip(parts, named, strict=True) if "=" in one and _number(value) is None]
    wrong += [one for one in parts if "=" not in one and _number(one) is None]
    if wrong:
        raise UsageError(
            f"--levels: {', '.join(map(repr, wrong))} is not of the form NAME=ALPHA, as in low=0.2,high=0.05."
        )
    bare = [_number(one) or 0.0 for one in parts if "=" not in one]
    if bare and len(bare) < len(parts):
        raise UsageError("--levels: name all of them, or none.")
    if bare:
        if len(bare) not in _BARE:
            said = f"--levels: {counted(len(bare), 'alpha')} without names; name them, as in low=0.2,high=0.05."
            raise UsageError(said)
        return dict(zip(_BARE[len(bare)], sorted(bare, reverse=True), strict=True))
    found = {name.strip(): _number(value) or 0.0 for name, _, value in named}
    if len(found) < len(parts):
        raise UsageError("--levels: a name appears twice.")
    return in_order(found, found)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_places(problems: Problems, output: Path, wanted: LevelsWanted | None, *, force: bool) -> None:
    """Note a problem if files that are not levels are in the way."""
    if wanted is not None and not force:
        with problems.noted():
            refuse_foreign(output, wanted.alphas, wanted.default)


def refuse_foreign(output: Path, names: Iterable[str], default: str) -> None:
    """Refuse to write levels over files that this directory's levels do not own.

    Raises:
        UsageError: there are such files; it names all of them.
    """
    if there := foreign(output, names, default):
        hold = "holds" if len(there) == 1 else "hold"
        said = f"{', '.join(map(str, there))} {hold} files that do not belong to a level of {output}"
        raise UsageError(f"{said}; choose another --output, or --force.")


# --- what is written and printed ---


@dataclass(frozen=True, slots=True)
class LevelsFit(Result):
    """The fitted levels of a policy.

    Attributes:
        fits: each level by its name, the cheapest first.
        default: the level that serves a question that names none.
        output: the directory that they were written into; None if they were not written.
        notices: the notices about the log and the call, as `tell` got them.
    """

    fits: Mapping[str, PolicyFit]
    default: str
    output: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def fitted(self) -> dict[str, Fitted]:
        """The levels, the cheapest first."""
        return {name: one.fitted for name, one in self.fits.items()}

    def save(self, directory: str | Path) -> Self:
        """Write the directory with a model card for each level; return the same result with its `output`."""
        place = Path(directory)
        artifacts = {name: one.fitted.artifact for name, one in self.fits.items()}
        levels = write(place, artifacts, self.default, files={name: one.files for name, one in self.fits.items()})
        fits = {name: replace(one, output=str(place / levels.directory(name))) for name, one in self.fits.items()}
        return replace(self, fits=fits, output=str(directory))

    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        fitted = self.fitted
        sizes = fitted[self.default].sizes
        asked = f"{counted(sizes.questions, 'question')}: {sizes.training:,} to choose and fit on"
        yield Text(f"{asked}, {sizes.calibration:,} to certify, the same for all levels", style="bold")
        for note in dict.fromkeys([*level_notes(fitted), *(said for one in fitted.values() for said in one.notes)]):
            yield Text(plain_text(f"{capital(note)}."))
        yield ""
        chosen = {name: one.choice.chosen.name for name, one in fitted.items()}
        yield from certified_levels({name: one.calibrated for name, one in fitted.items()}, self.default, width, chosen)
        output = self.output or ""
        what = f"and {plain_text(output)}/levels: what each level is in its README.md"
        level = next(iter(fitted))
        policies, table = [one.policy for one in fitted.values()], fitted[self.default].training
        reads = {name for one in policies for name in one.reads}
        following = next_step(reads, policies[0].sources, path_of(output), table)
        first, *last = written(self.output, what, following=following)
        yield first
        for name, one in fitted.items() if last else ():
            against = worth_of(one.calibrated).describe("the guide, or a ladder's last model, alone")
            if against is not None:
                yield Text(plain_text(f"{name}: {against}"), style="bold yellow")
        if last:
            yield Text(plain_text(f'to ask at a level: ask(question, level="{level}")'))
        yield from last

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `fit --levels --json`, each level as `fit --json` has it."""
        return {
            "output": self.output,
            "default": self.default,
            "level_notes": list(level_notes(self.fitted)),
            "notices": list(self.notices),
            "levels": {
                name: {"alpha": one.fitted.calibrated.guarantee.alpha, **fitted_document(one)}
                for name, one in self.fits.items()
            },
        }


def certified_levels(
    levels: Mapping[str, Calibrated], default: str, width: int, chosen: Mapping[str, str] | None = None
) -> Iterator[RenderableType]:
    """Yield the certificates of the levels: a table with a row for each certificate, and the promises in words."""
    priced = all(one.realised.cost_nano_usd is not None for one in levels.values())
    named = chosen if chosen is not None and width >= _WIDE else {}
    heads = ["  level", "alpha", "n", "kappa", "cost/1k" if priced else "len", "cover", "certificate"]
    made = table([*heads, *(["chosen"] if named else [])], [], wrap=1 if named else 0)
    made.columns[len(heads) - 1].justify = "left"
    for name, one in levels.items():
        for cells in _rows(name, one, priced=priced):
            first = Text(f"{'*' if name == default else ' '} {plain_text(cells[0])}")
            last = [Text(plain_text(named[name]))] if named else []
            made.add_row(first, *cells[1:], *last, style="bold" if name == default else "")
    yield made
    yield Text(_legend(priced=priced), style="dim")
    yield ""
    for name, one in levels.items():
        yield Text(plain_text(f"{name}: {statement(one.artifact.certificates[0])}"))
    yield ""
    yield Text(APART)
    yield ""


def _rows(name: str, done: Calibrated, *, priced: bool) -> Iterator[tuple[str, ...]]:
    """Yield the cells of a level: a row for each certificate."""
    for result in done.segments:
        certificate, realised = result.certificate, result.realised
        cost = coverage = "-"
        if realised is not None:
            known = None if realised.cost_nano_usd is None else realised.cost_nano_usd / 1e9
            cost = per_thousand(known) if priced else f"{realised.length:.2f}"
            coverage = f"{realised.coverage:.3f}"
        called = name if certificate.segment is None else f"{name}, {certificate.segment}"
        kappa = "all kept" if certificate.keeps_everything else f"{certificate.kappa:.4g}"
        yield called, f"{certificate.alpha:g}", f"{certificate.n:,}", kappa, cost, coverage, certificate.calibration_id


def _legend(*, priced: bool) -> str:
    cost = "cost/1k: USD per 1,000 questions" if priced else "len: steps a question"
    return (
        f"alpha: the share that may be missed; n: questions that the threshold kappa was set on; {cost}; cover: a "
        "right answer is kept, or no step has one. Cost and cover are those of the calibration questions themselves. "
        "*: the default level."
    )
