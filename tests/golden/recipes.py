"""What the golden files were made from: two models and three, scripted, and a policy for each kind of guarantee.

Run `python -m golden.recipes` in `tests` to write them anew, after a change of the file formats and for no other reason.
No value here depends on a processor: answers and log-probs come from hashes, and no policy is a regression.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.monitoring import watch
from cascade.calibration.verifying import verify_held
from cascade.collection import collect
from cascade.collection.collector import recorded_baselines
from cascade.config import CascadeConfig, load, policy_section
from cascade.episodes.files import read_rows
from cascade.episodes.questions import AskedQuestion
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.evaluate import evaluate
from cascade.factory import policy_of, read_policy
from cascade.guarantees.base import Guarantee
from cascade.matching import get_matcher
from cascade.orchestrator import Orchestrator
from cascade.policies import levels
from cascade.policies.artifact import write
from cascade.providers.fake import FakeProvider, reply
from cascade.training.fitting import fit_policy
from cascade.training.levels import fit_levels
from cascade.types import Answer, Question, Request

HERE = Path(__file__).parent
POLICIES, DECISIONS = HERE / "policies", HERE / "decisions.json"
TODAY = date(2026, 11, 22)
MANY, CERTIFY, SERVED = 120, 90, 12
"""Questions of a log; how many of them calibrate a policy that is not fitted; how many are asked anew of each."""

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
    walks = recorded_baselines(settings, ["guide only"] if name == "rounds" else [])
    collect(
        settings,
        asked(),
        path,
        baselines=walks,
        providers={"fake": FakeProvider(said)},
        matcher=get_matcher("exact"),
        dataset=name,
        concurrency=1,
    )


def table(name: str) -> EpisodeTable:
    """Return a cascade's log."""
    rows = list(read_rows(log_of(name)))
    (found,) = tables_from_rows(rows)
    return found


def _calibrated(name: str, guarantee: Guarantee) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        section = policy_section({**CONFIGS[name]["policy"], "keep": "both"})
        first = table(name).take(np.arange(CERTIFY))
        done = calibrate_policy(
            [first], policy_of(section), section, guarantee, config=config(name), seed=3, today=TODAY
        )
        write(folder, done.artifact)

    return make


def _fitted(name: str, guarantee: Guarantee, method: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        done = fit_policy([table(name)], guarantee, method=method, config=config(name), seed=3, today=TODAY)
        write(folder, done.artifact)

    return make


def _levels(name: str, guarantee: Guarantee, alphas: Mapping[str, float]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        found = fit_levels([table(name)], guarantee, alphas, method="depth", config=config(name), seed=3, today=TODAY)
        levels.write(folder, {level: one.artifact for level, one in found.items()}, next(iter(alphas)))

    return make


RECIPES: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    "coverage": ("rounds", _calibrated("rounds", Guarantee("coverage", 0.15))),
    "coverage-delta": ("rounds", _calibrated("rounds", Guarantee("coverage", 0.2, 0.2))),
    "coverage-ladder": ("ladder", _calibrated("ladder", Guarantee("coverage", 0.1))),
    "coverage-segments": ("rounds", _calibrated("rounds", Guarantee("coverage", 0.2, by_segment=True))),
    "coverage-fitted": ("rounds", _fitted("rounds", Guarantee("coverage", 0.2), "depth")),
    "coverage-levels": ("rounds", _levels("rounds", Guarantee("coverage"), {"low": 0.3, "high": 0.15})),
    "regret": ("ladder", _calibrated("ladder", Guarantee("regret", 0.1, 0.2))),
    "regret-rounds": ("rounds", _calibrated("rounds", Guarantee("regret", 0.5, 0.2))),
    "regret-fitted": ("ladder", _fitted("ladder", Guarantee("regret", 0.1, 0.2), "auto")),
    "regret-levels": ("ladder", _levels("ladder", Guarantee("regret", delta=0.2), {"low": 0.25, "high": 0.15})),
    "error": ("ladder", _calibrated("ladder", Guarantee("error", 0.35, 0.2))),
    "error-abstain": ("ladder", _calibrated("ladder", Guarantee("error", 0.2, 0.2, abstain=True))),
}
"""By its name, each policy's cascade and what writes its directory."""


def served(folder: Path, name: str) -> list[dict[str, Any]]:
    """Ask some questions of a policy in service, tell the truth about each answer, and return what came of it."""
    watched = {"audit": {"probability": 0.5, "seed": 5}, "monitor": {"level": 0.05}}
    settings = {**CONFIGS[name], "policy": str(folder), "guarantee": watched}
    with Orchestrator.from_config(settings, providers={"fake": FakeProvider(said)}) as orchestrator:
        return [_decision(orchestrator, orchestrator.ask(one.question)) for one in asked()[:SERVED]]


def _decision(orchestrator: Orchestrator, answer: Answer) -> dict[str, Any]:
    number = _number(answer.question)
    truth = orchestrator.record_outcome(answer, gold(number), reference_right=number % 3 > 0)
    return {
        "text": answer.text,
        "answers": list(answer.answers),
        "stopped": answer.stopped,
        "steps": len(answer.steps),
        "cost_nano_usd": answer.cost_nano_usd,
        "certificate": None if answer.certificate is None else answer.certificate.calibration_id,
        "audited": answer.audited,
        "warnings": list(answer.warnings),
        "truth": [truth.missed, truth.counted, truth.reason],
    }


def judged(folder: Path, name: str) -> dict[str, Any]:
    """Return what is said of a policy directory on the whole log: verified, watched and evaluated."""
    held = read_policy(folder)
    log = table(name)
    checks = verify_held(held, [log], TODAY, config(name)).checks
    deciding = held.artifact.calibrated(held.policy)
    found = evaluate(log, deciding, artifact=held.artifact, resamples=2)
    seen = watch(held.artifact, held.policy, [log], {}).watched
    watched = [[one.audits, one.misses, one.monitor is not None and one.monitor.alarmed] for one in seen]
    return {
        "checks": [list(one) for one in checks],
        "watched": watched,
        "promise": None if found.promise is None else asdict(found.promise),
    }


def main() -> None:
    """Write all golden files anew."""
    for name in CONFIGS:
        log_of(name).unlink(missing_ok=True)
        collected(name, log_of(name))
        log_of(name).with_name(f"{log_of(name).name}.journal").unlink(missing_ok=True)
    found = {}
    for policy, (name, make) in RECIPES.items():
        make(POLICIES / policy)
        found[policy] = {"judged": judged(POLICIES / policy, name), "served": served(POLICIES / policy, name)}
    DECISIONS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
