"""Which kinds of guarantee there are, and what is said of one that cannot be had."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from patience import PATIENCE_S

from cascade import registry
from cascade.errors import UsageError
from cascade.guarantees import ServedAnswer, get
from cascade.guarantees.base import KINDS
from cascade.guarantees.kept_answers import Coverage


class Renamed(Coverage):
    name = "other"


class Incomplete(ServedAnswer):
    name = "incomplete"


POINTS = [
    EntryPoint(name, f"unit.guarantees.test_registry:{value}", "cascade.guarantees")
    for name, value in {"gone": "Gone", "another": "Renamed", "incomplete": "Incomplete", "regret": "Renamed"}.items()
]


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: POINTS if group == "cascade.guarantees" else [])


@pytest.mark.usefixtures("_installed")
def test_an_installed_kind_has_a_name_and_takes_none_of_ours() -> None:
    ours = ("coverage", "regret", "error", "agreement", "preference")
    assert KINDS.names == (*ours, "gone", "another", "incomplete")
    assert get("regret").needs_reference


@pytest.mark.usefixtures("_installed")
def test_what_is_wrong_with_one_is_said_with_its_place() -> None:
    wrong = {
        "gone": r"'gone' \(unit.guarantees.test_registry:Gone\) cannot be found",
        "another": r"'another' calls itself 'other': its class must have name = 'another'",
        "incomplete": "'incomplete' .* does not define against",
        "coverag": "There is no guarantee 'coverag'; did you mean coverage",
    }
    for name, said in wrong.items():
        with pytest.raises(UsageError, match=said):
            get(name)


def test_a_configuration_that_promises_nothing_loads_no_numpy() -> None:
    code = (
        "import sys; from cascade import Orchestrator; "
        "Orchestrator.from_config({'models': {'base': 'a', 'guide': 'b'}, 'provider': 'fake'}); "
        "print('numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert run.stdout.strip() == "False"
