"""What a cascade is, from its configuration or its log, and which changes make another one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cascade.config import load
from cascade.conformal.certificate import MadeFor, differences, unknown
from cascade.errors import UsageError
from cascade.fitting.certificates import certified_for, of_log
from cascade.plans.presets import LadderConfig
from cascade.serving.conditions import made_for, refuse_other_cascade
from cascade.table import Log, Node

BASE = {"model": "small", "price": {"input": 1.0, "output": 2.0}}
GUIDE = {"model": "large", "price": {"input": 5.0, "output": 15.0}}
SERVER = {"kind": "openai_http", "api_base": "http://one:1/v1"}
LADDER = {"models": {"small": "small", "large": "large"}, "strategy": {"kind": "ladder", "models": ["small", "large"]}}
SWAPPED = {**LADDER, "strategy": {"kind": "ladder", "models": ["large", "small"]}}


def configured(**changes: Any) -> MadeFor:
    """Return a cascade of a configuration, as its certificate keeps it."""
    document = {"models": {"base": BASE, "guide": GUIDE}, "strategy": {"kind": "base_guide", "rounds": 4}} | changes
    return json.loads(json.dumps(made_for(load(document)), allow_nan=False))


def base(**changes: Any) -> dict[str, Any]:
    return {"models": {"base": BASE | changes, "guide": GUIDE}}


def nodes(*listed: dict[str, Any]) -> dict[str, Any]:
    return {"strategy": {"kind": "nodes", "nodes": list(listed)}}


def ladder_log(*names: str | None, **calls: Any) -> MadeFor:
    """Return what the log of a ladder says of its cascade."""
    known = [name for name in names if name is not None]
    facts = {"models": {name: (name,) for name in known}, "step_models": names, "echoes": {}}
    return of_log(log(len(names)), SimpleNamespace(**(facts | calls)))


def rounds_log(**models: tuple[str, ...]) -> MadeFor:
    facts = SimpleNamespace(models=models, step_models=(), echoes={})
    return of_log(log(4), facts)


def log(width: int, n: int = 2) -> Log:
    shape, none = (n, width), np.full((n, width), np.nan)
    return Log(
        "log", tuple([Node(f"step {at}", at) for at in range(width)]), tuple(map(str, range(n))), ("",) * n,
        np.zeros(shape, dtype=np.int64), none, np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=np.bool_),
        np.ones(n, dtype=np.bool_), none, {"p_yes": np.zeros(shape)},
    )  # fmt: skip


FIRST, LAST = {"name": "first", "model": "base"}, {"name": "last", "model": "guide"}
JUDGE = {**LAST, "name": "check", "purpose": "judge", "parents": ["first"]}
SMALL, PLAIN_SERVER = {"small": "a"}, {"provider": SERVER}


@pytest.mark.parametrize(
    ("then", "now", "changes"),
    [
        (configured(), configured(), 0),
        (configured(), configured(**base(model="tiny")), 1),
        (configured(), configured(**base(max_tokens=512)), 1),
        (configured(), configured(**base(temperature=0.7)), 1),
        (configured(), configured(**base(seed=1)), 1),
        (configured(), configured(**base(price={"input": 1.5, "output": 2.0})), 1),
        (configured(), configured(**base(price={"input": 1.0, "output": 2.0, "request": 0.1})), 1),
        (configured(), configured(models={"base": {"model": "small"}, "guide": GUIDE}), 1),  # an unknown price
        (configured(), configured(strategy={"kind": "base_guide", "rounds": 5}), 1),
        (configured(), configured(strategy={"kind": "base_guide", "samples": 2, "rounds": 4}), 1),
        (configured(), configured(strategy={"kind": "exit"}), 2),  # and nothing is base
        (configured(**nodes(FIRST, LAST)), configured(**nodes(LAST, FIRST)), 1),
        (
            configured(**nodes(FIRST, JUDGE, LAST)),
            configured(**nodes(FIRST, {**JUDGE, "purpose": "verify"}, LAST)),
            1,
        ),
        (configured(**LADDER), configured(**SWAPPED), 1),
        # who serves the models
        (configured(**PLAIN_SERVER), configured(**PLAIN_SERVER), 0),
        (configured(**PLAIN_SERVER), configured(provider={**SERVER, "api_base": "http://two:1/v1"}), 2),
        (configured(**PLAIN_SERVER), configured(provider="litellm"), 2),
        (configured(**PLAIN_SERVER), configured(provider="replay:log.jsonl"), 0),
        ({**configured(), "served_by": None}, configured(**PLAIN_SERVER), 0),
        # what does not bear on the answers
        (configured(), configured(**base(price={"input": 1.0, "output": 2.0, "note": "new"})), 0),
        (configured(), configured(timeouts={"per_call_s": 5}, traces="off", budget={"per_question": 1.0}), 0),
        # a log says less than a configuration
        (configured(), rounds_log(base=("small",), guide=("large",)), 0),
        (rounds_log(base=("small",), guide=("large",)), configured(), 0),
        (configured(), rounds_log(), 0),
        (configured(), rounds_log(base=("other",), guide=("large",)), 1),
        (configured(), rounds_log(base=("small", "tiny"), guide=("large",)), 1),
        (configured(), rounds_log(guide=("large",)), 1),
        (configured(), rounds_log(base=("small",), guide=("large",), judge=("third",)), 1),
        (configured(strategy={"rounds": 3}), rounds_log(base=("small",), guide=("large",)), 1),
        # a ladder is known by its models and their order, if both are on record
        (ladder_log("small", "large"), configured(**LADDER), 0),
        (ladder_log("small", "large"), configured(**SWAPPED), 1),
        (ladder_log("small", "large"), ladder_log("large", "small"), 1),
        (ladder_log(None, "large", models={"small": ("small",), "large": ("large",)}), configured(**SWAPPED), 0),
        ({**ladder_log("small", "large"), "step_models": None}, configured(**SWAPPED), 0),
        (ladder_log("small", "large"), ladder_log("tiny", "large"), 1),
        # the names in replies
        (ladder_log("small", echoes={"small": ("a",)}), ladder_log("small", echoes={"small": ("a",)}), 0),
        (ladder_log("small", echoes={"small": ("a",)}), ladder_log("small", echoes={"small": ("a", "b")}), 1),
        (ladder_log("small", echoes={"small": ("a", "b")}), ladder_log("small", echoes={"small": ("b",)}), 0),
        (ladder_log("small"), ladder_log("small", echoes={"small": ("b",)}), 0),
        # one's own files
        ({"own_files": SMALL}, {"own_files": {"small": "b"}}, 1),
        ({"own_files": SMALL}, {"own_files": {"small": None}}, 1),  # it cannot be read
        ({"own_files": {"small": None}}, {"own_files": SMALL}, 0),
        ({"own_files": None}, {"own_files": SMALL}, 0),
    ],
)
def test_what_makes_another_cascade(then, now, changes):
    assert len(differences(then, now)) == changes, differences(then, now)


def test_items_of_one_name_are_compared_as_they_stand():
    once, twice = ({"strategy": {"nodes": [{"name": "a", "n": n}, {"name": "a", "n": 3}]}} for n in (1, 2))
    assert differences(once, twice)


def test_a_configuration_says_what_decides_its_answers():
    facts = configured()
    assert facts["models"]["base"] == {"name": "small", "max_tokens": 256, "temperature": 0.0, "seed": None}
    assert facts["prices"]["small"]["input"] == 1_000_000  # pico-USD
    assert (facts["horizon"], unknown(facts)) == (4, [])


@pytest.mark.parametrize(
    ("cascade", "missing"),
    [
        (rounds_log(base=("small",), guide=("large",)), 5),  # strategy, prices, settings, servers, prompts
        (rounds_log(), 5),  # strategy, prices, models, servers, prompts
        (ladder_log("small", "large"), 5),
        (ladder_log(None, "large", models={"small": ("small",), "large": ("large",)}), 6),  # the order of the models
    ],
)
def test_what_is_not_on_record_is_named(cascade, missing):
    assert len(unknown(cascade)) == missing


def test_a_log_of_another_cascade_is_refused_with_the_way_to_rename_its_models():
    refuse_other_cascade("log", ladder_log("small", "large"), configured(**LADDER))
    with pytest.raises(UsageError, match="--rename a=small --rename b=large"):
        refuse_other_cascade("log", ladder_log("a", "b"), configured(**LADDER))
    with pytest.raises(UsageError) as error:
        refuse_other_cascade("log", ladder_log("large", "small"), configured(**LADDER))
    assert "--rename" not in str(error.value)


def test_a_new_certificate_says_what_its_requests_were_like_and_keeps_what_the_log_does_not_say():
    facts = SimpleNamespace(models={}, step_models=("small", "large"), echoes={})
    plan = replace(log(2), kinds=({}, {}))
    earlier = {**configured(**LADDER), "step_models": None, "requests": None}
    again = certified_for(plan, plan.only([0]), facts, earlier=earlier)
    assert (again["strategy"], again["step_models"]) == (earlier["strategy"], ["small", "large"])
    assert (again["shown"], again["requests"]) == ([{"1": {"of": 2, "signals": {"p_yes": 2}}}], {"of": 2, "kinds": {}})
    other = certified_for(plan, plan, facts, earlier={**earlier, "strategy": None, "horizon": 3})
    assert other["prices"] is None
    assert certified_for(plan, plan, facts, configured())["strategy"]["kind"] == "base_guide"


def test_other_prompts_are_another_cascade(tmp_path):
    strategy = {"kind": "base_guide", "rounds": 4, "prompts": str(tmp_path)}
    assert differences(configured(), configured(strategy=strategy)) == []  # none of its own
    (tmp_path / "answer.txt").write_text("[user]\nShort: {question}", "utf-8")
    assert len(differences(configured(), configured(strategy=strategy))) == 1


CODE = """from cascade.types import Request


def answers(request: Request):
    return (yield request)


def passes(question, message):
    return True
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of somebody's own, which can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "somebodys_own", raising=False)
    file = tmp_path / "somebodys_own.py"
    file.write_text(CODE, "utf-8")
    return file


def test_a_change_in_ones_own_files_is_another_cascade(own):
    checked = {"kind": "ladder", "models": ["base", "guide"], "judge": "somebodys_own:passes"}
    ways = [{"strategy": checked}, base(agent="somebodys_own:answers")]
    then = [configured(**way) for way in ways]
    assert [len(each["own_files"]) for each in then] == [1, 1]
    assert [differences(was, configured(**way)) for was, way in zip(then, ways, strict=True)] == [[], []]
    assert [len(differences(*pair)) for pair in ((configured(), then[1]), (then[1], configured()))] == [1, 1]
    own.write_text(CODE + "# mended\n", "utf-8")
    assert [len(differences(was, configured(**way))) for was, way in zip(then, ways, strict=True)] == [1, 1]


class OwnLadder(LadderConfig):
    """A strategy of somebody's own."""


def test_the_file_of_ones_own_strategy_is_on_record_and_ours_is_not():
    assert OwnLadder(kind="ladder", models=("base", "guide")).own_files == {"the strategy ladder": Path(__file__)}
    assert LadderConfig(kind="ladder", models=("base", "guide")).own_files == {}


def test_an_address_holds_no_secret(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:hunter2@example.org/v1/sk-abcdefghijkl?token=t0ken#x")
    assert configured(provider="openai_http")["served_by"]["small"] == {
        "provider": "openai_http",
        "address": "https://example.org/v1/[redacted]",
    }
