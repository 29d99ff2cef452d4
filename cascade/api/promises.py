"""The options of a promise, the `Guarantee` made from them, and the report that `calibrate` and `fit` print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cascade.api.output import Column, Tell, listed, per_thousand, plain_text, table
from cascade.calibration.calibrating import Calibrated, SegmentResult
from cascade.calibration.fingerprint import unknown
from cascade.calibration.scores import Realised
from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.guarantees.base import DEFAULT, KINDS, Guarantee, get, is_known
from cascade.guarantees.certificate import number, statement, to_document
from cascade.text import capital, counted

_SHARE = 0.1
"""The default alpha, and the default delta of the kinds that require one."""
KIND = f"The kind of guarantee: {', '.join(KINDS.built_in)}, or an installed one. By default coverage."
"""The help of --guarantee, where the kinds are listed."""


class GuaranteeOptions(NamedTuple):
    """The options of a promise, as given. None and False mean not given."""

    kind: str | None = None
    alpha: float | None = None
    delta: float | None = None
    abstain: bool = False
    by_segment: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> GuaranteeOptions:
        """Return the options among the arguments of a call; `guarantee` is the kind or a whole `Guarantee`.

        Raises:
            UsageError: the call gives a whole guarantee, and parts of one beside it.
        """
        asked, parts = given["guarantee"], {name: given[name] for name in cls._fields[1:]}
        if not isinstance(asked, Guarantee):
            return cls(asked, **parts)
        if any(parts.values()):
            raise UsageError("The guarantee is given as a whole: give alpha, delta and the like in it, not beside it.")
        return cls(asked.kind, asked.alpha, asked.delta, asked.abstain, asked.by_segment)


def wanted_guarantee(asked: GuaranteeOptions, tell: Tell) -> Guarantee:
    """Return the promise to make; report to `tell` which parts differ from the options.

    Raises:
        UsageError: lists every problem.
    """
    kind = asked.kind or DEFAULT
    needs_delta = is_known(kind) and get(kind).needs_delta and asked.delta is None
    problems = [] if is_known(kind) else [f"There is no guarantee {kind!r}{did_you_mean(kind, KINDS.names)}."]
    parts = asked._replace(
        kind=DEFAULT if problems else kind,
        alpha=_SHARE if asked.alpha is None else asked.alpha,
        delta=_SHARE if needs_delta else asked.delta,
        abstain=asked.abstain and not problems,
    )
    try:
        wanted = Guarantee(**parts._asdict())
    except UsageError as error:
        problems.append(str(error))
    if problems:
        raise UsageError(" ".join(problems))
    if needs_delta:
        tell(f"a guarantee of {kind} has a delta; without --delta it is {_SHARE:g}")
    return wanted


# --- what is printed of a certified policy ---

_WIDE = 100
"""The minimum width at which all columns fit."""
_SEGMENTS_SAID = 3
"""The maximum number of promises printed in words; the table and the JSON document have all."""
_OFTEN = 0.1
"""The share of repeated episodes above which a line says what the promise does not count."""
_MUCH = 0.5
"""Above this share of unanswered questions, a separate line reports them."""
_MEANING = {
    "n": "questions that the threshold was set on",
    "k": "the threshold is the k-th lowest",
    "missed": "of them, at the threshold",
    "sure of": "nothing is served below this confidence",
    "silent": "nothing is served",
    "cover": "a right answer is kept, or no step has one",
    "in set": "a right answer is kept",
    "wrong": "the one answer served is wrong or missing",
    "cost/1k": "USD per 1,000 questions",
    "len": "steps",
    "set": "different answers kept",
}


class _Line(NamedTuple):
    """One line of the table: its subject, what calibration found, and its figures on the calibration questions."""

    name: str
    result: SegmentResult | None
    realised: Realised | None


def calibrated_report(done: Calibrated, width: int) -> Iterator[RenderableType]:
    """Yield what is printed about a calibration, for a terminal `width` columns wide."""
    yield Text(f"{counted(done.n, 'calibration question')}{_besides(done)}", style="bold")
    for note in done.notes:
        yield Text(f"{capital(note)}.")
    for result in done.segments[:_SEGMENTS_SAID]:
        yield Text(plain_text(capital(statement(result.certificate, is_reference=done.artifact.asks_reference))))
    if len(done.segments) > _SEGMENTS_SAID:
        yield Text(f"And so on for {len(done.segments) - _SEGMENTS_SAID} more certificates.")
    yield ""
    yield _table(done, width)
    yield Text(_legend(done, width), style="dim")
    for said in _warnings(done):
        yield Text(said, style="yellow")
    yield ""
    yield _assumptions(done)


def _besides(done: Calibrated) -> str:
    said = []
    if done.repeated:
        said.append(f"{done.repeated} more episodes of the same questions left out")
    if done.selection:
        said.append(f"{done.selection} others set aside to order the thresholds")
    return "".join(f", {one}" for one in said)


def _table(done: Calibrated, width: int) -> Table:
    columns = _shown(done, width)
    rows = [[Text(plain_text(line.name)), *(column.cell(line) for column in columns)] for line in _lines(done)]
    return table(["", *(column.head for column in columns)], rows, name_width=12)


def _lines(done: Calibrated) -> Iterator[_Line]:
    grouped = any(result.segment is not None for result in done.segments)
    for result in done.segments:
        yield _Line("certified" if result.segment is None else result.segment, result, result.realised)
    if grouped or done.segments[0].rows != done.n:  # the promise may be about some questions only
        yield _Line("all certified" if done.too_small else "all questions", None, done.realised)
    yield _Line("all is kept", None, done.everything)


def _shown(done: Calibrated, width: int) -> Sequence[Column[_Line]]:
    """Return the columns that fit on the terminal."""
    return [column for column in _columns(done) if column.from_width <= width]


def _columns(done: Calibrated) -> Sequence[Column[_Line]]:
    abstains = done.guarantee.abstain
    below = (Column("sure of", 0, _of_result(_sure)), Column("silent", 0, _share(lambda one: one.abstained)))
    return (
        Column("n", 0, _of_result(lambda one: str(one.certificate.n))),
        *_counts(done),
        Column("kappa", 0, _of_result(_kappa)),
        *(below if abstains else ()),
        Column("cover", 0, _share(lambda one: one.coverage)),
        Column("in set", 0, _share(lambda one: one.in_set)),
        Column("wrong", 0, _share(lambda one: one.error)),
        Column("cost/1k", 0, _cost),
        Column("len", 0, _figure(lambda one: f"{one.length:.2f}")),
        Column("set", _WIDE if abstains else 0, _figure(lambda one: f"{one.set_size:.2f}")),
    )


def _counts(done: Calibrated) -> Iterator[Column[_Line]]:
    """Yield the columns of rank and misses, if the promise has them."""
    if any(result.certificate.k is not None for result in done.segments):
        yield Column("k", 0, _of_result(lambda one: _count(one.certificate.k)))
    if any(result.found.misses is not None for result in done.segments):
        yield Column("missed", 0, _of_result(lambda one: _count(one.found.misses)))


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _of_result(shown: Callable[[SegmentResult], str]) -> Callable[[_Line], str]:
    return lambda line: "" if line.result is None else shown(line.result)


def _figure(shown: Callable[[Realised], str]) -> Callable[[_Line], str]:
    return lambda line: "-" if line.realised is None else shown(line.realised)


def _share(of: Callable[[Realised], float]) -> Callable[[_Line], str]:
    return _figure(lambda one: f"{of(one):.3f}")


def _kappa(result: SegmentResult) -> str:
    return "all kept" if result.certificate.keeps_everything else f"{result.certificate.kappa:.4g}"


def _sure(result: SegmentResult) -> str:
    below = result.certificate.abstain_below
    return "-" if below is None else f"{below:.3g}"


def _cost(line: _Line) -> str:
    cost = None if line.realised is None else line.realised.cost_nano_usd
    return per_thousand(None if cost is None else cost / 1e9)


def _legend(done: Calibrated, width: int) -> str:
    """Return the meaning of the columns shown."""
    meaning = dict(_MEANING)
    if done.guarantee.abstain:
        meaning["wrong"] = "of all questions, an answer is served that is wrong"
    said = [f"{column.head}: {meaning[column.head]}" for column in _shown(done, width) if column.head in meaning]
    reference, realised = done.reference_cost_nano_usd, done.realised
    certificate = done.segments[0].certificate
    ending = ["Shares are those of the calibration questions themselves."]
    if certificate.comparator is not None:
        right = "equal to what" if get(certificate.kind).compares else "no worse than what"
        ending.append(f"Right means {right} {certificate.reference} gives.")
    if realised.abstained and not _misleads(done):
        ending.append(_said_of_answered(done))
    if reference is not None:
        ending.append(f"{_reference(done)} alone costs {per_thousand(reference / 1e9)} per 1,000.")
    return f"{'; '.join(said)}. {' '.join(ending)}"


def _reference(done: Calibrated) -> str:
    """Return the name of the reference: the guide of a cascade that has one, else a ladder's last model."""
    roles = done.segments[0].certificate.made_for.get("models") or {}
    return "The guide" if "guide" in roles else "The last model"


def _wrong_of_answered(done: Calibrated) -> float:
    answered = 1 - done.realised.abstained
    return done.realised.error / answered if answered > 0 else 0.0


def _misleads(done: Calibrated) -> bool:
    """Whether a larger share of the answered questions is wrong than the promise allows of all questions."""
    return bool(done.realised.abstained) and _wrong_of_answered(done) > (done.guarantee.alpha or 0.0)


def _said_of_answered(done: Calibrated) -> str:
    return f"The promise counts all questions: of those answered, {_wrong_of_answered(done):.1%} are wrong."


def _warnings(done: Calibrated) -> Iterator[str]:
    """Yield warnings about what a kept promise does not say."""
    if done.repeated > _OFTEN * (done.n + done.repeated):
        yield (
            f"{done.repeated:,} episodes repeat a question, and the promise counts each question once. On requests it "
            "may be broken more often, if your users repeat questions as this log does."
        )
    if not done.guarantee.abstain:
        return
    if done.realised.abstained > _MUCH:
        yield (
            f"Nothing is served for {done.realised.abstained:.1%} of the questions: serving nothing does not "
            f"count as an error."
        )
    if _misleads(done):
        yield _said_of_answered(done)


def _assumptions(done: Calibrated) -> RenderableType:
    certificate = done.segments[0].certificate
    ending = ["It does not expire." if certificate.expires is None else f"It is valid until {certificate.expires}."]
    if unknown(certificate.made_for):
        ending.append("With --config the certificate records the cascade that will serve.")
    return Group(Text("It rests on:"), listed(certificate.assumptions), Text(" ".join(ending)))


def calibrated_document(done: Calibrated) -> dict[str, Any]:
    """Return the document of `calibrate --json`. Costs in USD per question."""
    reference = done.reference_cost_nano_usd
    return {
        "n": done.n,
        "repeated": done.repeated,
        "selection": done.selection,
        "notes": list(done.notes),
        "segments": [
            {
                "segment": result.segment,
                "questions": result.rows,
                "misses": result.found.misses,
                "kappa": number(result.certificate.kappa),
                "statement": statement(result.certificate),
                "realised": realised_document(result.realised),
                "certificate": to_document(result.certificate),
            }
            for result in done.segments
        ],
        "too_small": [{"segment": one.segment, "n": one.n, "needed_n": one.needed_n} for one in done.too_small],
        "realised": realised_document(done.realised),
        "everything": realised_document(done.everything),
        "reference_cost_usd": None if reference is None else reference / 1e9,
    }


def realised_document(found: Realised | None) -> dict[str, Any] | None:
    """Return a policy's figures on logged questions as plain values; its cost in USD a question."""
    if found is None:
        return None
    plain = found._asdict()
    cost = plain.pop("cost_nano_usd")
    return {**plain, "cost_usd": None if cost is None else cost / 1e9}
