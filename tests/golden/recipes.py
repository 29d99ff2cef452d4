"""What the golden logs were made from: two models and three, scripted.

No value here depends on a processor: answers and log-probs come from hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cascade.collection import CollectSettings, collect
from cascade.config import CascadeConfig, load
from cascade.logs.questions import AskedQuestion
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Question, Request

HERE = Path(__file__).parent
POLICIES, DECISIONS = HERE / "policies", HERE / "decisions.json"
MANY, SERVED = 120, 12
"""Questions of a log; how many are asked anew of each."""

_PRICES = {"small": (0.1, 0.4), "middle": (0.5, 2), "large": (2, 8)}
_MODELS = {
    name: {"model": name, "price": {"input": cost[0], "output": cost[1]}, "max_tokens": 64}
    for name, cost in _PRICES.items()
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "ladder": {
        "models": _MODELS,
        "provider": "fake",
        "strategy": {"kind": "ladder", "models": ["small", "middle", "large"]},
        "policy": {"kind": "threshold", "when": "reply_logprob"},
        "budget": {"per_question": 0.006},
    },
    "rounds": {
        "models": {"base": _MODELS["small"], "guide": _MODELS["large"]},
        "provider": "fake",
        "strategy": {"kind": "base_guide", "rounds": 3},
        "policy": {"kind": "threshold", "keep": "both", "when": "p_yes"},
        "budget": {"per_question": 0.006},
    },
}
"""The two cascades: a ladder of three models, and rounds in which the guide judges."""
_MOST = 6_000_000


def _chance(*parts: object) -> float:
    """Return a number in 0..1 that depends on the parts alone."""
    return int(hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:12], 16) / 16**12


def _number(question: Question) -> int:
    return int(question.text.removeprefix("What is the word of number ").removesuffix("?"))


def gold(number: int) -> str:
    """Return the accepted answer of a question: two words, so that another may have half of it."""
    return f"word{number} kind{number % 7}"


def asked() -> list[AskedQuestion]:
    """Return the questions: of three segments, the last of them small, some two of a group."""
    segments = ["law" if n % 2 else "art" if n % 12 else "tax" for n in range(MANY)]
    return [
        AskedQuestion(
            f"q{n}",
            Question(f"What is the word of number {n}?", segment=segment),
            (gold(n),),
            f"pair {n}" if n % 10 else f"pair {n + 1}",
        )
        for n, segment in enumerate(segments)
    ]


def said(request: Request) -> Any:
    """Answer as a model of its size would, surer where it is right."""
    number, size = _number(request.question), request.model
    luck = _chance(size, number, request.step)
    able = {"small": 0.5, "middle": 0.7, "large": 0.85}[size] > 0.6 * _chance("hard", number) + 0.4 * luck
    if request.purpose == "judge":
        return _verdict(number, request.step, right=gold(number) in str(request.messages))
    wrong = f"other{number} kind{number % 7}" if luck < 0.7 else f"none{number % 5} at all"
    sure = -0.05 - 0.6 * _chance("sure", size, number, request.step) - (0.0 if able else 0.35)
    text = gold(number) if able else wrong
    return reply(f"Answer: {text}", logprobs=[round(sure, 3)] * 4, input_tokens=20 + number % 9)


def _verdict(number: int, step: int, *, right: bool) -> Any:
    """Say whether the base is right, mostly rightly; where it is not, sometimes with the right answer."""
    p_yes = round(0.02 + (0.36 if right else 0.0) + 0.6 * _chance("judge", number, step), 3)
    corrected = gold(number) if _chance("mend", number, step) < 0.7 else f"else{number} kind{number % 7}"
    return reply("Yes" if p_yes >= 0.5 else f"No, {corrected}", p_yes=p_yes)


def config(name: str, **changes: Any) -> CascadeConfig:
    """Return a cascade's configuration."""
    return load({**CONFIGS[name], **changes})


def log_of(name: str) -> Path:
    """Return where a cascade's log lies."""
    return HERE / f"{name}.parquet"


def collected(name: str, path: Path) -> None:
    """Ask every model of a cascade every question, and write the log."""
    settings = config(name)
    baselines = ["guide only"] if name == "rounds" else []
    collecting = CollectSettings(concurrency=1, baselines=baselines, matcher="exact", dataset=name)
    collect(settings, asked(), path, collecting, providers={"fake": FakeProvider(said)})
