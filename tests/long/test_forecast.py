"""Asked for N logged questions, given N: the whole of fit certifies in about the stated share of runs."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import WORLDS, simulate

from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import fit_policy

LOGGED, MOST, RUNS = 60, 3_000, 48

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def simulated(n: int, seed: int) -> EpisodeTable:
    """Return a log of a world in which all steps together err on 27 % of the questions."""
    return simulate(WORLDS["mmlu/llama-2-7b"], n, seed=seed)


def refused(table: EpisodeTable, guarantee: Guarantee) -> NotCertifiedError | None:
    """Return why nothing is certified; None where something is."""
    try:
        fit_policy([table], guarantee)
    except NotCertifiedError as error:
        return error
    return None


def test_a_log_of_the_size_asked_for_is_certified_in_about_the_stated_share_of_runs() -> None:
    """The bounds lie on both sides of what can be reached, so that some of the numbers asked for cannot do."""
    stated, came = [], []
    for seed, alpha in enumerate(np.linspace(0.18, 0.40, RUNS)):
        asked = Guarantee("error", round(float(alpha), 3), 0.1)
        error = refused(simulated(LOGGED, seed), asked)
        if error is None or error.needed_n is None or error.needed_n > MOST:
            continue
        assert error.chance is not None
        stated.append(error.chance)
        came.append(refused(simulated(error.needed_n, 1_000 + seed), asked) is None)
    assert len(stated) >= 15
    gap = abs(float(np.mean(stated)) - float(np.mean(came)))
    assert gap < 0.25, f"stated {np.mean(stated):.2f}, came {np.mean(came):.2f} of {len(stated)}"
    assert 0 < sum(came) < len(came)
