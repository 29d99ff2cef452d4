"""Code is right where it passes the tests, and whatever it does, it ends in time."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from patience import lives, until

from cascade.errors import UsageError
from cascade.matching import get_matcher

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
    assert get_matcher("code").matches(answer, [test]) is right


def test_endless_code_and_what_it_starts_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    answer = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100_000)'])\n"
        f"open({str(told)!r} + '.new', 'w').write(str(child.pid))\n"
        f"os.rename({str(told)!r} + '.new', {str(told)!r})\n"
        "while True: pass"
    )
    limit_s = 0.3
    while not told.exists():  # a busy machine may take longer to start it
        assert get_matcher(f"code:timeout_s={limit_s}").matches(answer, ["pass"]) is False
        limit_s *= 2
    until(lambda: not lives(int(told.read_text())))


def test_the_tests_see_no_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    test = "import os\nassert not any('KEY' in name for name in os.environ), sorted(os.environ)"
    assert get_matcher("code").matches("", [test]) is True
    assert "OPENAI_API_KEY" in os.environ


def test_outputs_are_the_same_where_both_pass_or_both_fail(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("import runpy, sys\nassert runpy.run_path(sys.argv[1])['double'](3) == 6\n")
    matcher = get_matcher("code", command=f"{shlex.quote(sys.executable)} {check} {{file}}")
    shifted, wrong = "def double(n): return n << 1", "def double(n): return n ** 2"
    assert matcher.same(DOUBLE, shifted) is True
    assert matcher.same(DOUBLE, wrong) is False
    assert matcher.same(wrong, "no code at all") is True


def test_without_tests_or_with_a_command_that_is_none_it_says_so() -> None:
    with pytest.raises(UsageError, match="your tests"):
        get_matcher("code").same("x = 1", "x = 2")
    with pytest.raises(UsageError, match="cannot be run"):
        get_matcher("code", command="/nowhere/at/all {file}").same("x = 1", "x = 2")
    assert get_matcher("code").matches("x = 1", []) is None
