"""`cascade`: most of a strong language model's quality at a fraction of its cost, with a number on the risk.

    from cascade import Orchestrator

    orchestrator = Orchestrator.from_config("cascade.yaml")
    answer = orchestrator.ask("Which river runs through Vienna?")

Names are loaded when they are first used; importing the package runs nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cascade._version import __version__

if TYPE_CHECKING:
    from cascade.chat import ChatRequest
    from cascade.config import CascadeConfig
    from cascade.errors import (
        BatchError,
        BudgetExceededError,
        CascadeError,
        ConfigError,
        MissingExtraError,
        ModelFileError,
        NotCertifiedError,
        ProviderError,
        UsageError,
    )
    from cascade.money import Price, PriceTable, Usage
    from cascade.orchestrator import Orchestrator
    from cascade.types import Answer, Candidate, Certificate, Question, Step, TextDelta

_HOMES = {
    "Answer": "types",
    "BatchError": "errors",
    "BudgetExceededError": "errors",
    "Candidate": "types",
    "CascadeConfig": "config.loading",
    "CascadeError": "errors",
    "Certificate": "types",
    "ChatRequest": "chat",
    "ConfigError": "errors",
    "MissingExtraError": "errors",
    "ModelFileError": "errors",
    "NotCertifiedError": "errors",
    "Orchestrator": "orchestrator",
    "Price": "money",
    "PriceTable": "money",
    "ProviderError": "errors",
    "Question": "types",
    "Step": "types",
    "TextDelta": "types",
    "Usage": "money",
    "UsageError": "errors",
}

__all__ = [
    "Answer",
    "BatchError",
    "BudgetExceededError",
    "Candidate",
    "CascadeConfig",
    "CascadeError",
    "Certificate",
    "ChatRequest",
    "ConfigError",
    "MissingExtraError",
    "ModelFileError",
    "NotCertifiedError",
    "Orchestrator",
    "Price",
    "PriceTable",
    "ProviderError",
    "Question",
    "Step",
    "TextDelta",
    "Usage",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cascade' has no attribute {name!r}")
    value = getattr(import_module(f"cascade.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
