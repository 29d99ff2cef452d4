"""The simulated worlds fitted to the second reading of the tables: a guide that says yes gives no answer of its own."""

from __future__ import annotations

from collections.abc import Mapping

from published.worlds import worlds

_FITTED: Mapping[str, Mapping[str, float]] = {
    "hotpotqa/llama-2-7b": {
        "exit_base_rounds": 2.55,
        "base_adopts": 0.35,
        "hopeless": 0.217,
        "base_accuracy": 0.357,
        "guide_accuracy": 0.645,
        "guide_repeats": 0.453,
        "alone_accuracy": 0.698,
        "shown_tokens": 5.32,
        "shown_growth": 1.0,
    },
    "hotpotqa/llama-3.2-3b": {
        "exit_base_rounds": 4.0,
        "base_adopts": 0.35,
        "hopeless": 0.283,
        "base_accuracy": 0.333,
        "guide_accuracy": 0.622,
        "guide_repeats": 0.378,
        "alone_accuracy": 0.678,
        "shown_tokens": 1.93,
        "shown_growth": 1.0,
    },
    "mmlu/llama-2-7b": {
        "exit_base_rounds": 3.14,
        "base_adopts": 0.35,
        "hopeless": 0.0674,
        "base_accuracy": 0.519,
        "guide_accuracy": 0.594,
        "guide_repeats": 0.8,
        "alone_accuracy": 0.919,
        "shown_tokens": 2.15,
        "shown_growth": 38.7,
        "false_no": 0.078,
    },
    "mmlu/llama-3.2-3b": {
        "exit_base_rounds": 3.97,
        "base_adopts": 0.35,
        "hopeless": 0.135,
        "base_accuracy": 0.398,
        "guide_accuracy": 0.274,
        "guide_repeats": 0.526,
        "alone_accuracy": 0.881,
        "shown_tokens": 5.11,
        "shown_growth": 16.1,
    },
}

YES_IS_NO_ANSWER = worlds(_FITTED, "simulated, second reading")
"""Second reading: the tables' Random chose nothing right where it chose a guide that had said yes."""
