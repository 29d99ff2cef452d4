"""A threshold with a guarantee for a cascade of your own: it needs only one number per question.

    python examples/calibrate_own.py

The cascade here: a cheap model answers, and if its doubt is at least kappa a strong model answers too. The lower
kappa, the more is kept. So each question has a critical value, the highest kappa at which a right answer is kept, and
`calibrate` needs nothing else. The questions are drawn at random: it runs offline.
"""

import random

from cascade.conformal import calibrate
from cascade.conformal.split import calibrate_segments

ALWAYS = float("inf")


def ask(chance: random.Random) -> tuple[float, float]:
    """Ask a question of both models; return the cheap one's doubt and the question's critical value."""
    hard = chance.random()
    cheap_right, strong_right = chance.random() > hard, chance.random() > hard / 3
    doubt = min(1.0, max(0.0, chance.gauss(hard, 0.2)))
    if cheap_right or not strong_right:  # right at every kappa, or no model is right: counts as covered
        return doubt, ALWAYS
    return doubt, doubt  # the strong model is asked, and right, where kappa is at most the doubt


def main() -> None:
    """Calibrate on 300 questions, then measure the result on 100,000 others."""
    chance = random.Random(7)
    critical = [ask(chance)[1] for _ in range(300)]
    found = calibrate(critical, alpha=0.1)
    print(f"kappa {found.kappa:.3f}, the {found.k}th smallest of {found.n} critical values")
    print(f"a fresh question is covered with probability at least {found.expected_coverage:.3f},")
    print(f"on average over calibrations; one calibration differs by ±{found.coverage_sd:.3f}")

    sure = calibrate(critical, alpha=0.1, delta=0.05)
    print(f"kappa {sure.kappa:.3f} covers 90 % of fresh questions, for 95 % of calibrations")

    fresh = [ask(chance) for _ in range(100_000)]
    for kappa in (found.kappa, sure.kappa):
        covered = sum(kappa <= value for _, value in fresh) / len(fresh)
        asked = sum(doubt >= kappa for doubt, _ in fresh) / len(fresh)
        print(f"kappa {kappa:.3f}: {covered:.3f} covered, the strong model asked on {asked:.3f}")

    few = calibrate(critical[:8], alpha=0.1)
    print(f"of {few.n} questions none may be missed: keep everything; {few.needed_n} are needed")

    tenants = ["acme"] * 200 + ["globex"] * 80 + [f"visitor {number}" for number in range(20)]
    by_tenant = calibrate_segments(critical, tenants, alpha=0.1)
    for name in ("acme", "globex", "visitor 3"):
        found = by_tenant[name]
        if found.keeps_everything:  # ask the strong model instead
            print(f"{name}: no threshold, from {found.n} of the {found.needed_n} questions needed")
        else:
            print(f"{name}: kappa {found.kappa:.3f}, from {found.n} questions")


if __name__ == "__main__":
    main()
