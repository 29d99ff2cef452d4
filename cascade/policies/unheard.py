"""What a policy does not hear of a step since a model sent no log-probs: without them it pays more calls."""

from __future__ import annotations

from collections.abc import Sequence

from cascade.types import Step


def unheard(step: Step, reads: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each model whose reply lacks log-probs that the policy decides by.

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
