"""The set of actions: nested in kappa, never empty, always with its argmax, never beyond the last step."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from cascade.engine import Actions, actions

SCORE = st.floats(-3, 3) | st.sampled_from([math.inf, -math.inf, math.nan])
SCORES = st.lists(SCORE, max_size=4)
KAPPA = st.floats(-3, 3) | st.sampled_from([math.inf, -math.inf])
LAST = st.booleans()


def taken(found: Actions) -> set[int | str]:
    return set(found.keep) | ({"next"} if found.proceed else set())


@given(SCORES, SCORE, KAPPA, KAPPA, LAST)
def test_the_sets_grow_as_kappa_falls(scores, onward, one, other, last):
    high, low = max(one, other), min(one, other)
    assert taken(actions(scores, onward, high, last=last)) <= taken(actions(scores, onward, low, last=last))


@given(SCORES, st.floats(-3, 3), KAPPA, LAST)
def test_the_argmax_is_in_the_set(scores, onward, kappa, last):
    options = {index: -math.inf if math.isnan(score) else score for index, score in enumerate(scores)}
    if not last:
        options |= {len(scores): onward}
    if not options:
        return
    best = min(options, key=lambda index: (-options[index], index))
    wanted = "next" if best == len(scores) else best
    assert wanted in taken(actions(scores, onward, kappa, last=last))


@given(st.lists(st.floats(-3, 3), max_size=4), st.floats(-3, 3), st.floats(-3, 3), LAST)
def test_what_reaches_kappa_is_in_the_set_and_little_else(scores, onward, kappa, last):
    made = actions(scores, onward, kappa, last=last)
    found = taken(made)
    reaching: set[int | str] = {index for index, score in enumerate(scores) if score >= kappa}
    if not last and (onward >= kappa or not scores):
        reaching.add("next")
    assert reaching <= found
    assert len(found - reaching) <= 1
    assert not (reaching and found - reaching), "only where nothing reaches kappa does the argmax stand alone"
    assert list(made.keep) == sorted(set(made.keep))
