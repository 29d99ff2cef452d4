"""Code is right where it passes the tests, and whatever it does, it ends in time."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from cascade.errors import UsageError
from cascade.matching import get_comparator, get_matcher

DOUBLE = "def double(x):\n    return 2 * x"


@pytest.mark.parametrize(
    ("answer", "test", "right"),
    [
        (DOUBLE, "assert double(2) == 4", True),
        (DOUBLE, "assert double(2) == 5", False),
        (f"Here it is:\n```python\n{DOUBLE}\n```\nIt doubles.", "assert double(0.5) == 1", True),
        ("```python\nx = 1\n```\nor better\n```python\nx = 2\n```", "assert x == 2", True),
        ("def double(x:", "assert True", False),
        ("", "assert True", True),
        ("I cannot write that.", "assert True", False),
        ("import sys\nsys.exit(1)", "", False),
        ("raise SystemExit(0)", "assert False", True),
        ("import os\nos.kill(os.getpid(), 9)", "assert True", False),
        ("print('x' * 10_000_000)", "assert True", True),
        ("s = 'ä\ud800'", "assert True", True),
    ],
)
def test_code_and_tests(answer: str, test: str, right: bool) -> None:
    assert get_matcher("code").matches(answer, [test]).correct is right


def test_endless_code_and_what_it_starts_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "alive"
    child = f"import time; time.sleep(0.8); open({str(marker)!r}, 'w').close()"
    answer = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\nwhile True: pass"
    started = time.monotonic()
    assert get_matcher("code:timeout_s=0.3").matches(answer, ["pass"]).correct is False
    assert time.monotonic() - started < 30
    time.sleep(0.9)
    assert not marker.exists()


def test_the_tests_see_no_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    test = "import os\nassert not any('KEY' in name for name in os.environ), sorted(os.environ)"
    assert get_matcher("code").matches("", [test]).correct is True
    assert "OPENAI_API_KEY" in os.environ


def test_outputs_are_the_same_where_both_pass_or_both_fail(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("import runpy, sys\nassert runpy.run_path(sys.argv[1])['double'](3) == 6\n")
    comparator = get_comparator("code", command=f"{shlex.quote(sys.executable)} {check} {{file}}")
    shifted, wrong = "def double(n): return n << 1", "def double(n): return n ** 2"
    assert comparator.same(DOUBLE, shifted).correct is True
    assert comparator.same(DOUBLE, wrong).correct is False
    assert comparator.same(wrong, "no code at all").correct is True


def test_without_tests_or_with_a_command_that_is_none_it_says_so() -> None:
    with pytest.raises(UsageError, match="your tests"):
        get_comparator("code").same("x = 1", "x = 2")
    with pytest.raises(UsageError, match="cannot be run"):
        get_comparator("code", command="/nowhere/at/all {file}").same("x = 1", "x = 2")
    assert get_matcher("code").matches("x = 1", []).correct is None
