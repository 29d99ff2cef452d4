"""`cascade`: most of a strong language model's quality at a fraction of its cost, with a number on the risk.

    from cascade import Orchestrator

    orchestrator = Orchestrator.from_config("cascade.yaml")
    answer = orchestrator.ask("Which river runs through Vienna?")

Commands are also functions: `collect`, `compare`, `evaluate`, `prove`, `fit` and `verify` return objects that print
what the command prints.

    import cascade

    done = cascade.fit("episodes.parquet", cascade.Promise("regret", risk=0.05, confidence=0.9))
    print(done)
    done.save("policy")

Names are loaded when they are first used; importing the package runs nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cascade._version import __version__

if TYPE_CHECKING:
    from cascade.api.collecting import collect
    from cascade.api.fitting import fit
    from cascade.api.logs import open_log
    from cascade.api.onboarding import onboard
    from cascade.api.study import compare, evaluate, prove, verify
    from cascade.chat import ChatRequest
    from cascade.collection.collector import CollectSettings
    from cascade.config import CascadeConfig
    from cascade.conformal.certificate import Certificate
    from cascade.conformal.promise import Promise
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
    from cascade.fitting.fit import FitSettings
    from cascade.money import Price, PriceTable, Usage
    from cascade.orchestrator import Orchestrator
    from cascade.policies.directory import PolicyDirectory
    from cascade.providers.fake import FakeProvider
    from cascade.types import Answer, Candidate, Question, Step, TextDelta

_HOMES = {
    "api.collecting": "collect",
    "api.fitting": "fit",
    "api.logs": "open_log",
    "api.onboarding": "onboard",
    "api.study": "compare evaluate prove verify",
    "chat": "ChatRequest",
    "collection.collector": "CollectSettings",
    "config": "CascadeConfig",
    "conformal.promise": "Promise",
    "errors": "BatchError BudgetExceededError CascadeError ConfigError "
    "MissingExtraError ModelFileError NotCertifiedError ProviderError UsageError",
    "conformal.certificate": "Certificate",
    "fitting.fit": "FitSettings",
    "money": "Price PriceTable Usage",
    "orchestrator": "Orchestrator",
    "policies.directory": "PolicyDirectory",
    "providers.fake": "FakeProvider",
    "types": "Answer Candidate Question Step TextDelta",
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
    "CollectSettings",
    "ConfigError",
    "FakeProvider",
    "FitSettings",
    "MissingExtraError",
    "ModelFileError",
    "NotCertifiedError",
    "Orchestrator",
    "PolicyDirectory",
    "Price",
    "PriceTable",
    "Promise",
    "ProviderError",
    "Question",
    "Step",
    "TextDelta",
    "Usage",
    "UsageError",
    "__version__",
    "collect",
    "compare",
    "evaluate",
    "fit",
    "onboard",
    "open_log",
    "prove",
    "verify",
]

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = loaded = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return loaded


def __dir__() -> list[str]:
    return sorted(__all__)
