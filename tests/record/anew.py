"""What the path and its certifier decide on a world (`worlds`), in the form of the record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.certify import certify
from cascade.conformal.path import Scores, Walks, along, reaches, strict_to_lenient, surest, walks
from cascade.conformal.promise import Promise
from cascade.table import Floats, Log, Node, Reference
from record.worlds import DELTA, REVIEW_RATE, World

SELECTION = 0.3


class Case(NamedTuple):
    name: str
    promise: Promise
    log: Log
    scores: Scores
    ordered: bool = False
    by_segment: bool = False


def log_of(world: World) -> Log:
    n, horizon, places = world.answer.shape
    shape = n, horizon * places
    nodes = tuple([Node(f"{step}.{place}", step) for step in range(horizon) for place in range(places)])
    bought = np.repeat(np.arange(horizon) < world.steps[:, None], places, axis=1)
    answer = world.answer.reshape(shape)
    cost = np.zeros(shape, dtype=np.int64)
    cost[:, ::places] = world.cost
    right = np.where(world.reference_known, world.reference_right.astype(float), np.nan)
    reference = Reference(right, np.where(world.reference_known, world.reference_cost, -1), world.strategy == "ladder")
    return Log(
        name="world",
        nodes=nodes,
        ids=world.names,
        groups=world.group,
        answer=np.where(bought, answer, -1),
        right=np.where(bought & (answer >= 0), world.correct.reshape(shape), np.nan),
        cost_nano_usd=cost,
        bought=bought,
        complete=world.complete,
        confidence=world.confidence.reshape(shape),
        reference=reference,
        segments=world.segment,
    )


def cases(world: World) -> Iterator[Case]:
    log, alpha, high, sure = log_of(world), world.alpha, world.error_alpha, 1 - DELTA
    places, keep = world.answer.shape[2], world.include[:, :, :-1].reshape(log.answer.shape)
    depth = Scores(np.repeat(world.doubt, places, axis=1), serve=surest(log))
    sets = Scores(np.repeat(world.include[:, :, -1], places, axis=1), keep=keep)
    for name, scores in (("coverage", depth), ("sets", sets)):
        for more, confidence in (("", None), (" delta", sure)):
            promise = Promise("coverage", alpha, confidence)
            yield Case(name + more, promise, log, scores)
            if any(world.segment):
                yield Case(f"{name} segments{more}", promise, log, scores, by_segment=True)
    yield Case("error", Promise("error", high, sure), log, depth, ordered=True)
    yield Case("error strict", Promise("error", high, sure), log, depth)
    if world.strategy == "rounds":
        yield Case("regret", Promise("regret", high, sure), log, depth, ordered=True)
        yield Case("regret strict", Promise("regret", high, sure), log, depth)
        return
    yield Case("regret", Promise("regret", alpha, sure), log, depth)
    same = np.where(log.answers, world.same[:, :, 0], np.nan)
    yield Case("agreement", Promise("agreement", high, sure), replace(log, right=same), depth)
    fine = world.same[:, :, 0] | (world.harmless[:, :, 0] & (world.answer[:, :, 0] >= 0))
    reviewed = replace(log, right=np.where(log.answers, fine, np.nan), drawn=world.drawn)
    yield Case("preference", Promise("preference", high, sure, REVIEW_RATE), reviewed, depth)


def outcome(case: Case, seed: int, order: Callable[[Walks, Case], Floats]) -> dict[str, Any]:
    """Return a case's outcome; `order` puts the points of a path in order, from other requests."""
    walked, rows, about = walks(case.log, case.scores), np.arange(case.log.n), dict[str, Any]()
    points = np.zeros(0)
    if case.ordered:
        names = sorted(set(case.log.groups), key=lambda name: _sha256(f"{seed}|{name}"))
        chosen = set(names[: min(len(names) - 1, max(1, round(SELECTION * len(names))))])
        aside = np.array([name in chosen for name in case.log.groups])
        points = order(walked.take(rows[aside]), case)
        about["path"] = [len(points), digest([(kappa.hex(), "-inf") for kappa in points.tolist()])]
        rows = rows[~aside]
    rows = np.array(_one_a_group(case, rows.tolist(), seed), dtype=np.int64)
    if rows.size < case.log.n:
        about["rows"] = digest(rows.tolist())
    part = walked.take(rows)
    if not case.by_segment:
        about["found"] = [figures(case, part, points)]
        return about
    names = np.array(part.log.segments, dtype=object)
    each = sorted({name for name in part.log.segments if name is not None})
    about["found"] = [[name, *figures(case, part.take(names == name), points)] for name in each]
    return about


def _one_a_group(case: Case, rows: list[int], seed: int) -> list[int]:
    """Return one row of each group, of each segment of it where segments are certified, as the record drew them."""
    chosen: dict[tuple[str | None, ...], tuple[str, int]] = {}
    for row in rows:
        key = (case.log.groups[row], case.log.segments[row] if case.by_segment else None)
        turn = _sha256(f"one of each|{seed}|{case.log.ids[row]}"), row
        chosen[key] = min(chosen.get(key, turn), turn)
    return sorted(row for _, row in chosen.values())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def figures(case: Case, part: Walks, points: Floats) -> list[Any]:
    promise, log = case.promise, part.log
    rules = promise.rules
    at_stop = None if rules.of_set else rules.at_stop(part)
    path = (
        strict_to_lenient(part, rules.jumps(part))
        if at_stop is None or not points.size
        else along(part, at_stop, points)
    )
    certified = certify(path, promise, midway=False)
    if certified is None:
        return [part.log.n, "refused"]
    kappa = certified.kappa
    width, places = log.width, log.width // (int(log.steps[-1]) + 1)
    length = (part.stop(kappa) + 1) // places
    known = bool((case.log.cost_nano_usd >= 0).all())
    cost = int(path.cost_nano_usd[path.kappas.tolist().index(kappa)]) if known else None
    head = [part.log.n, kappa.hex(), int(certified.losses), cost]
    head += [np.bincount(length, minlength=width // places + 1)[1:].tolist(), digest(length.tolist())]
    in_set = reaches(part.keep, kappa) & log.answers
    if rules.of_set:
        size = [len({*answers[some].tolist()}) for answers, some in zip(log.answer, in_set, strict=True)]
        counts = in_set.reshape(log.n, -1, places).sum(axis=(0, 1)).tolist()
        return [*head, np.bincount(size).tolist(), [*counts, int((length - 1).sum())]]
    serve = part.serve[np.arange(log.n), part.stop(kappa)]
    answer = np.where(serve >= 0, log.answer[np.arange(log.n), np.maximum(serve, 0)], -1)
    return [*head, "-inf", digest(answer.tolist())]  # nothing is withheld


def digest(values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:6]
