"""Which published marginals the simulated worlds have, which they have not, and why.

    python benchmarks/simulated_worlds.py                      about 15 seconds of one core
    python benchmarks/simulated_worlds.py --questions 20000 --markdown

Money is in cents for 200 questions. "1st" and "2nd" are the two readings of `design/paper.md`: after a yes the
guide's answer is the base's; or the tables' Random found nothing right in a guide that had said yes. A figure with "!"
is further from the printed one than its tolerance: one standard error on 200 questions, 3 % of an amount of money.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from published.marginals import PUBLISHED, TEST_QUESTIONS, Published, marginals
from published.second_reading import YES_IS_NO_ANSWER
from published.worlds import HIGH, LOW, MEDIUM, WORLDS, World, simulate

from cascade.calibration.samples import doubt_of
from cascade.conformal.arrays import ScoreArrays, levels
from cascade.conformal.frontier import Frontier, clairvoyant, frontier
from cascade.episodes.table import EpisodeTable

READINGS = (WORLDS, YES_IS_NO_ANSWER)
_THREE_TIMES = "printed as .805, .839 and .860 after one round; the outer two lie more than two tolerances apart."
REASONS = {
    ("LLM-exit, base coverage", None): (
        "1st: does not go with Random and UALA. Random is about u + (B + G) / 2 and UALA in one round u + G, with u the"
        " unsolvable, B and G the rights of base and guide. So u + B is about 2 Random - UALA: .31, .38, .20 and .38 in"
        " the four worlds. With the u and B fitted, even tries independent of one another would reach .47, .72, .41 and"
        " .58 (printed: .653, .718, .790, .840), and a model's tries are not. 2nd: all three fit."
    ),
    ("UALA 2 cents", 8.012): (
        "impossible beside 13.25 for three rounds and 4.449 to 4.655 for one: round 2 would cost 3.4 to 3.6 and round 3"
        " 5.2, of one and the same prompt."
    ),
    ("Random cents", 1.411): "impossible: less than a third of one round (4.449), at a length of 1.51. A misprint.",
    ("Random cents a round", 1.411 / 1.51): "the same misprint.",
    ("Random length", 1.55): (
        "impossible: three actions with the same probability and four rounds make 40/27 = 1.48 in every world; the row"
        " is one draw of 200 questions, 1.2 standard errors off."
    ),
    ("Random cents", 12.99): "follows the row's own draw of the length (1.53, expected 1.48); a round of it matches.",
    ("Random cents", 12.74): "follows the row's own draw of the length (1.55, expected 1.48); a round of it matches.",
    ("one round cents", 7.121): (
        "contradicts 7.755 for the same round: 8.5 % less. Other rows of Table 9 have 7.620 to 7.767."
    ),
    ("one round cents", 4.655): (
        "printed as 4.449 and 4.655 for the same round, and as 13.25 = 3 x 4.417 for three: no cost is within 3 % of"
        " all with room to spare."
    ),
    ("UALA 1 coverage", 0.805): _THREE_TIMES,
    ("UALA 1 coverage", 0.860): _THREE_TIMES,
    ("UALA 2 coverage", 0.920): (
        "a second round that adds only .03 to .889 needs a guide that hardly ever changes its mind; then more questions"
        " stay unsolvable than Random's .545 allows. The fit splits the difference."
    ),
    ("both 1 coverage", 0.920): (
        "1st: the base is right so rarely that keeping its answer too adds next to nothing. The row is CCPO's, at a"
        " length of 1.08, so an upper bound besides."
    ),
}
"""By marginal and printed value; None stands for any value."""


def table_lines(name: str, found: Sequence[dict[str, float]], *, markdown: bool) -> list[str]:
    """Return one world's lines: each printed figure beside the simulated ones."""
    lines = [_line("marginal", "printed", "+-", "1st", "2nd", "printed in", markdown=markdown)]
    if markdown:
        lines.append("|---|---|---|---|---|---|")
    for row in PUBLISHED[name]:
        shown = [f"{figures[row.marginal]:.3f}{' ' if row.matches(figures) else '!'}" for figures in found]
        cells = (row.marginal, f"{row.value:.3f}", f"{row.tolerance:.3f}", *shown, row.source)
        lines.append(_line(*cells, markdown=markdown))
    return lines


def _line(*cells: str, markdown: bool) -> str:
    if markdown:
        return "| " + " | ".join(cell.strip() for cell in cells) + " |"
    marginal, printed, tolerance, first, second, source = cells
    return f"  {marginal:26} {printed:>8} {tolerance:>7} {first:>9} {second:>9}  {source}"


def reason_lines(name: str, found: Sequence[dict[str, float]]) -> list[str]:
    """Return why the figures that do not match do not."""
    missed = [row for row in PUBLISHED[name] if not all(row.matches(figures) for figures in found)]
    return [f"  ! {row.marginal} {row.value:.3f}: {_reason(row)}" for row in missed]


def _reason(row: Published) -> str:
    known = REASONS.get((row.marginal, row.value)) or REASONS.get((row.marginal, None))
    return known or "no contradiction known: the fit could be better."


def limits_line(world: World, word: str, informativeness: float, questions: int, seed: int) -> str:
    """Return what one threshold on the verdict's doubt, all answers kept, costs where the signals tell this much."""
    table = simulate(replace(world, informativeness=informativeness), questions, seed)
    curve = _threshold_frontier(table)
    costs = []
    for target in (0.9, 0.95):
        point = curve.matched(target)
        costs.append("-" if point is None else f"{point.cost * TEST_QUESTIONS * 1e-7:.2f}")
    bound = clairvoyant(table.arrays, 0.1).cost * TEST_QUESTIONS * 1e-7
    return f"  {word:7} {informativeness:4.2f}  {_auroc(table):5.3f}  {costs[0]:>6} {costs[1]:>6}  {bound:6.2f}"


def _threshold_frontier(table: EpisodeTable) -> Frontier:
    doubt = doubt_of(table)
    if doubt is None:
        raise SystemExit("the simulated table has no p_yes")
    kept = np.full(table.arrays.answer.shape, np.inf)
    return frontier(table.arrays, levels(table.arrays, ScoreArrays(kept, doubt.read(table))))


def _auroc(table: EpisodeTable) -> float:
    """Return how often a judged answer that is right has more sureness than one that is wrong, in round 1."""
    sureness = np.abs(table.signals["p_yes"][:, 0] - 0.5)
    right = table.arrays.correct[:, 0, 1]
    ranks = np.empty(table.n)
    ranks[np.argsort(sureness)] = np.arange(1, table.n + 1)
    count = int(right.sum())
    return float((ranks[right].sum() - count * (count + 1) / 2) / (count * (table.n - count)))


def main() -> None:
    """Simulate, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="the tables as Markdown")
    wanted = parser.parse_args()
    began = time.perf_counter()
    for name in PUBLISHED:
        found = [
            marginals(
                simulate(worlds[name], wanted.questions, wanted.seed), yes_is_no_answer=worlds is YES_IS_NO_ANSWER
            )
            for worlds in READINGS
        ]
        matched = [sum(row.matches(figures) for row in PUBLISHED[name]) for figures in found]
        print(f"{name}: {matched[0]} and {matched[1]} of {len(PUBLISHED[name])} figures match")
        print("\n".join(table_lines(name, found, markdown=wanted.markdown)))
        print("\n".join(reason_lines(name, found)))
        print("\n  signals       AUROC  at .90 at .95  clairvoyant .90 (cents; 1st reading; one threshold, all kept)")
        for word, value in (("low", LOW), ("medium", MEDIUM), ("high", HIGH)):
            print(limits_line(WORLDS[name], word, value, wanted.questions, wanted.seed))
        print()
    seconds = time.perf_counter() - began
    print(f"{wanted.questions} questions a world, seed {wanted.seed}, {seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
