"""Warnings about replies without log-probs. A policy that decides by them then asks the next model, and pays more."""

from __future__ import annotations

from collections.abc import Sequence

from cascade.types import Step


def missing_logprobs(step: Step, reads: Sequence[str]) -> tuple[str, ...]:
    """Return a warning for each model whose reply lacks log-probs that the policy decides by.

    Args:
        step: the step that is decided, with its calls.
        reads: the signals that the policy looks at.
    """
    missing = [name for name in reads if "logprob" in name and step.signals.get(name) is None]
    if not missing:
        return ()
    silent = dict.fromkeys(call.request.model for call in step.calls if call.lacks_logprobs)
    return tuple(
        f"{model} sent no log-probs at step {step.number}, so the policy decided without {' and '.join(missing)}"
        for model in silent
    )
