"""Learn a policy from a log, look at how it was chosen, and answer fresh questions with it, under its certificate.

    python examples/fit_log.py

The log ships with the package: two real local models. It is read as a ladder, the base outright, then the guide
outright. Three quarters of the questions make the policy and its certificate, the rest are new to both. So it runs
offline. On the command line it is `cascade fit`, and `policy: ./policy` in the configuration.
"""

import tempfile
from pathlib import Path

import numpy as np

from cascade.evaluation.evaluate import evaluate
from cascade.evaluation.logs import open_log
from cascade.evaluation.report.card import card_files, facts_of
from cascade.factory import read_policy
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import statement
from cascade.policies.artifact import write
from cascade.training.fitting import fit_policy


def main() -> None:
    """Write a policy directory, read it again, and play it on questions that it has not seen."""
    (table,) = open_log("demo-ladder").tables
    fresh = np.arange(table.n) % 4 == 0
    fitted = fit_policy([table.take(~fresh)], Guarantee("coverage", alpha=0.1))
    for one in fitted.choice.judged:
        cost = "-" if one.matched is None else f"${one.matched / 1e6:.3f}"
        print(f"{'*' if one.chosen else ' '} {one.name:36} {cost:>7} per 1,000 questions: {one.why}")
    print(statement(fitted.artifact.certificates[0]))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "policy")
        write(directory, fitted.artifact, files=card_files(facts_of(fitted, {}), plot=None))
        print(f"written: {', '.join(sorted(one.name for one in directory.iterdir()))}")
        found = evaluate(table.take(fresh), read_policy(directory).deciding)
    low, high = found.intervals["coverage"]
    print(f"on {found.n} fresh questions it covers {found.mean.coverage:.3f} ({low:.3f} to {high:.3f}),")
    print(f"for ${(found.mean.cost_usd or 0) * 1_000:.3f} per 1,000; the guide alone costs", end=" ")
    print(f"${table.walks['last model only'].cost.mean() / 1e6:.3f}")


if __name__ == "__main__":
    main()
