"""Formulas: the same from every thread, killed when too slow, never run as code. F29: no answer holds a matcher up."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cases import each
from patience import PATIENCE_S, lives, until
from steps import superlinear

from cascade.errors import MissingExtraError, UsageError
from cascade.identity import plain
from cascade.matching import Matcher, get_matcher, maths, registry, text
from cascade.matching.judge import read_verdict
from cascade.matching.maths import MAX_FORMULA_CHARS, FormulaWorker, MathMatcher, as_latex
from cascade.safety import defuse, holds_key, redact

needs_math_verify = pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")
PATHOLOGICAL = "9^{9^{9^{9^{9}}}}"

SAME = [
    ("12", "12.0"), ("1/2", "0.5"), ("$\\frac{1}{2}$", "0.5"), ("\\frac12", "0.5"), ("3 1/2", "7/2"),
    ("50%", "0.5"), ("1,000", "1000"), ("0.333333", "1/3"), ("2^{10}", "1024"),
    ("x^2+1", "1+x^2"), ("x¹⁰", "x^{10}"), ("(x+1)^2", "x^2+2x+1"), ("2*sqrt(3)", "\\sqrt{12}"), ("√12", "2√3"),
    ("sin(x)^2+cos(x)^2", "1"), ("pi/2", "\\frac{\\pi}{2}"), ("x <= 5", "x \\le 5"), ("x=5", "5"),
    ("{1,2}", "\\{2,1\\}"), ("(1,2)", "(1, 2)"), ("[1,2)", "[1, 2)"), ("inf", "\\infty"), ("\\boxed{12}", "12"),
    ("The answer is $\\frac{1}{2}$.", "0.5"), ("It has 12 sides in all.", "12"), ("even", "\\text{even}"),
    ("At first it was $5$. Now it is $6$.", "6"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "$\\begin{pmatrix}1\\\\2\\end{pmatrix}$"),
]  # fmt: skip
DIFFERENT = [
    ("", "5"), ("I do not know this", "5"), ("5", "-5"), ("x^2+2", "1+x^2"), ("x+1", "1"), ("0.333", "1/3"),
    ("$5$ or $6$", "5"), ("x=6", "x=5"), ("[1,2]", "[1,2)"), ("odd", "even"), ("hello", "olleh"),
    ("5 and not 6 but then 7", "5"), ("(" * 5_000, "5"),
]  # fmt: skip


@pytest.fixture(scope="module")
def matcher() -> Iterator[MathMatcher]:
    patient = MathMatcher(timeout_s=PATIENCE_S)
    yield patient
    patient._worker.close()


@needs_math_verify
@each(
    "answer, gold, right",
    [
        *(("5", gold, None) for gold in ([], [""], ["\\frac{"], ["it is not known yet"])),
        ("0.5", ["\\frac{", "1/2"], True),
        (" \\frac{ ", ["\\frac{"], True),  # the same text
    ],
)
def test_what_is_accepted(matcher, answer, gold, right):
    assert matcher.matches(answer, gold) is right


@needs_math_verify
def test_formulas_are_the_same_or_not_in_the_main_thread_in_others_and_in_a_crowd(matcher):
    cases = SAME + DIFFERENT
    here = [matcher.matches(answer, [gold]) for answer, gold in cases]
    assert list(zip(cases, here, strict=True)) == [
        *((case, True) for case in SAME),
        *((case, False) for case in DIFFERENT),
    ]
    for threads in (1, 8):
        matcher._compare.cache_clear()
        with ThreadPoolExecutor(threads) as executor:
            there = list(executor.map(lambda case: matcher.matches(case[0], [case[1]]), cases))
        assert there == here


@needs_math_verify
def test_a_pathological_formula_costs_its_time_once_and_nothing_else():
    matcher = MathMatcher(timeout_s=0.5)
    with contextlib.closing(matcher._worker):
        assert [matcher.matches(PATHOLOGICAL, ["5"]) for _ in range(100)] == [None] * 100
        assert matcher._compare.cache_info().misses == 1
        with ThreadPoolExecutor(1) as executor:
            assert executor.submit(matcher.matches, PATHOLOGICAL, ["6"]).result() is None
        matcher._worker.timeout_s = PATIENCE_S
        assert matcher.matches("1/2", ["0.50"]) is True  # a new worker is there


@needs_math_verify
@pytest.mark.long
def test_an_alarm_does_not_end_a_worker_that_has_replied():
    matcher = MathMatcher(timeout_s=3)
    with contextlib.closing(matcher._worker):
        assert matcher.matches("", ["5"]) is False
        with pytest.raises(subprocess.TimeoutExpired):
            process_of(matcher._worker).wait(timeout=4)


@needs_math_verify
def test_our_signals_are_left_alone(matcher):
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: seen.append(number))
    handler = signal.getsignal(signal.SIGALRM)
    try:
        assert matcher.matches("x^2-1", ["(x-1)(x+1)"]) is True
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == []


@needs_math_verify
def test_no_text_is_run_as_code(matcher, tmp_path):
    target = tmp_path / "made"
    attacks = [
        f"__import__('os').mkdir('{target}')",
        f"$__import__('os').mkdir('{target}')$",
        f"5+__import__('os').mkdir('{target}')",
        f"\\boxed{{__import__('os').mkdir('{target}')}}",
        f"lambda: open('{target}', 'w')",
        'exec("import os")',
    ]
    for attack in attacks:
        assert matcher.matches(attack, ["5"]) is not True
    assert not target.exists()


@needs_math_verify
def test_a_worker_inherits_no_key_and_ends_with_its_input(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-abcdefghijklmnop")
    worker = FormulaWorker(PATIENCE_S)
    worker.ask("$5$", ("$5$",))
    process = process_of(worker)
    environment = Path(f"/proc/{process.pid}/environ")
    if environment.exists():  # not every system shows it
        assert b"API_KEY" not in environment.read_bytes()
    process.communicate(timeout=PATIENCE_S)  # it closes the input
    assert process.returncode == 0


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(maths, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[math\]"):
        get_matcher("math")


def process_of(worker: FormulaWorker) -> subprocess.Popen[str]:
    assert worker.process is not None
    return worker.process


def worker_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    script = tmp_path / "worker.py"
    script.write_text(code)
    monkeypatch.setattr(maths, "_SCRIPT", script)


HALF = "import sys; print('{}', flush=True); sys.stdin.readline(); print('{', end='')"


@pytest.mark.parametrize(
    ("code", "executable", "error"),
    [
        ('print(\'{"missing": "No module named antlr4"}\')', sys.executable, MissingExtraError),
        ("", sys.executable, UsageError),
        ("", "/no/such/python", UsageError),
        ("", "", UsageError),
        (HALF, sys.executable, None),
    ],
)
def test_a_worker_that_does_not_start_is_an_error_and_half_a_reply_is_unknown(
    code, executable, error, tmp_path, monkeypatch
):
    worker_script(tmp_path, monkeypatch, code)
    monkeypatch.setattr(sys, "executable", executable)
    if error is None:
        assert FormulaWorker(PATIENCE_S).ask("$5$", ("$5$",)) is None
        return
    with pytest.raises(error):
        FormulaWorker(PATIENCE_S).ask("$5$", ("$5$",))


COUNTING = """
import sys, json, os
print('{}', flush=True)
for line in sys.stdin:
    print(json.dumps({"correct": [os.getpid(), json.loads(line)["answer"]]}), flush=True)
"""


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a worker that replies with its process and the answer."""
    worker_script(tmp_path, monkeypatch, COUNTING)
    worker = FormulaWorker(PATIENCE_S)
    yield worker
    worker.close()


def test_a_crowd_gets_each_its_own_reply_from_one_process(counting):
    with ThreadPoolExecutor(16) as executor:
        replies = list(executor.map(lambda n: counting.ask(str(n), ()), range(300)))
    assert [answer for _, answer in replies] == list(map(str, range(300)))
    assert len({pid for pid, _ in replies}) == 1


def test_a_worker_that_was_killed_from_outside_is_replaced(counting):
    pid, _ = counting.ask("1", ())
    process_of(counting).kill()
    process_of(counting).wait()
    other, answer = counting.ask("2", ())
    assert (other != pid, answer) == (True, "2")


def test_an_interrupted_worker_is_not_asked_again(counting, monkeypatch):
    counting.ask("1", ())
    process = process_of(counting)

    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(process.stdout, "readline", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        counting.ask("2", ())
    assert process.poll() is not None
    assert counting.ask("3", ())[1] == "3"


def test_a_forked_child_uses_no_worker_of_its_parent(counting):
    pid, _ = counting.ask("1", ())
    parents = process_of(counting)
    counting._in_child()
    assert counting.ask("2", ())[0] != pid
    assert parents.poll() is None
    parents.kill()
    parents.communicate()


@needs_math_verify
# It collects garbage, and with it sockets that litellm left open in an earlier test.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.usefixtures("counting")
def test_workers_end_with_the_matcher_closed_or_forgotten(forget):
    matcher = MathMatcher(60)
    reply: Any = matcher._worker.ask("1", ())
    if not forget:
        matcher._worker.close()
    del matcher
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(reply[0], 0)


@each(
    "text, latex",
    [
        ("x", "$x$"),
        ("$5", "$5$"),
        ("\\$5", "$5$"),
        ("x >= 3", "$x >= 3$"),
        ("alpha + 2", "$\\alpha + 2$"),
        ("\\alpha + 2", "$\\alpha + 2$"),
        ("sqrt(x+1)", "$\\sqrt{x+1}$"),
        ("x1e3", "$x1e3$"),
        ("\\(x+1\\)", "\\(x+1\\)"),
        ("Answer: x+1", "$x+1$"),
        ("", None),
        ("$$", None),
        ("no number at all here", None),
        ("x" * (MAX_FORMULA_CHARS + 1), None),
        ("x" * 50_000, None),
    ],
)
def test_plain_notation_becomes_latex(text, latex):
    assert as_latex(text) == latex


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
def test_code_and_tests(answer, test, right):
    assert get_matcher("code").matches(answer, [test]) is right


def test_endless_code_and_what_it_starts_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    answer = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100_000)'])\n"
        f"open({str(pid_file)!r} + '.new', 'w').write(str(child.pid))\n"
        f"os.rename({str(pid_file)!r} + '.new', {str(pid_file)!r})\n"
        "while True: pass"
    )
    limit_s = 0.3
    while not pid_file.exists():  # a busy machine may take longer to start it
        assert get_matcher(f"code:timeout_s={limit_s}").matches(answer, ["pass"]) is False
        limit_s *= 2
    until(lambda: not lives(int(pid_file.read_text())))


def test_the_tests_see_no_key_of_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    test = "import os\nassert not any('KEY' in name for name in os.environ), sorted(os.environ)"
    assert get_matcher("code").matches("", [test]) is True
    assert "OPENAI_API_KEY" in os.environ


def test_outputs_are_the_same_where_both_pass_or_both_fail(tmp_path):
    check = tmp_path / "check.py"
    check.write_text("import runpy, sys\nassert runpy.run_path(sys.argv[1])['double'](3) == 6\n")
    matcher = get_matcher("code", command=f"{shlex.quote(sys.executable)} {shlex.quote(str(check))} {{file}}")
    shifted, wrong = "def double(n): return n << 1", "def double(n): return n ** 2"
    assert matcher.same(DOUBLE, shifted) is True
    assert matcher.same(DOUBLE, wrong) is False
    assert matcher.same(wrong, "no code at all") is True


def test_without_tests_or_with_a_command_that_is_none_it_says_so():
    with pytest.raises(UsageError, match="your tests"):
        get_matcher("code").same("x = 1", "x = 2")
    with pytest.raises(UsageError, match="cannot be run"):
        get_matcher("code", command="/nowhere/at/all {file}").same("x = 1", "x = 2")
    assert get_matcher("code").matches("x = 1", []) is None


ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "matching.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_an_example_prints_the_output_below_it(code, printed):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/matching.md", "exec"), {"__name__": "example"})  # noqa: S102 - our own page
    assert out.getvalue() == printed


def test_the_guide_lists_every_matcher_with_its_options():
    rows = {
        name: row for row in GUIDE.splitlines() if (match := re.match(r"\| `(\w+)` \|", row)) for name in [match[1]]
    }
    assert set(rows) == set(registry.MATCHERS.built_in)
    for name in set(rows) - {"function"}:
        for option in set(inspect.signature(registry.MATCHERS.find(name) or object).parameters) - {"args", "kwargs"}:
            assert f"`{option}`" in rows[name], (name, option)


GOLD = {
    "exact": "Danube",
    "label": "B",
    "number": "5 km",
    "judge": "Danube",
    "function": "Danube",
}
HUGE = 500_000
HOSTILE = {
    "letters": "x" * HUGE,
    "digits": "1" * HUGE,
    "words": "the answer is B 5 km 5 May 1992 yes " * (HUGE // 36),
    "newlines": "\n" * 100_000,
    "nul": "\x00" * 100_000,
    "blanks": " \t\u00a0\u2028" * 25_000,
    "marks": "\u202e\u200f\u200b\u2066" * 25_000,
    "surrogates": "\ud800" * 100_000,
    "combining": "e\u0301" * 50_000,
    "expanding": "\ufdfa" * 50_000,  # NFKC makes 18 characters of each
}


def matcher_of(name: str) -> Matcher:
    given: dict[str, object] = {}
    if name == "judge":
        given["ask"] = lambda messages: "No"
    if name == "function":
        given["function"] = lambda answer, gold: answer in gold
    return get_matcher(name, **given)


@each("kind", HOSTILE)
@each("name", GOLD)
def test_a_huge_answer_is_wrong_and_does_no_harm(name, kind):
    assert matcher_of(name).matches(HOSTILE[kind], [GOLD[name]]) is False


@each("kind", HOSTILE)
@each("name", GOLD)
def test_a_huge_accepted_answer_does_no_harm(name, kind):
    assert matcher_of(name).matches("Danube", [HOSTILE[kind]]) in {False, None}


@each("name", ["label", "number"])
@each("around", ["\n" * 1_000_000, "\u200f\u202e", "\x00" * 10, " \u00a0\t", "\ufeff"])
def test_what_cannot_be_seen_changes_nothing(name, around):
    assert matcher_of(name).matches(f"{around}{GOLD[name]}{around}", [GOLD[name]]) is True


@pytest.mark.parametrize("name", ["label", "number"])
def test_a_lone_surrogate_is_a_letter_like_others(name):
    assert matcher_of(name).matches("\ud800", ["\ud800"]) is True
    assert matcher_of(name).matches("\ud8005 \udfff", [GOLD[name]]) in {True, False, None}


@each("name", ["exact", "label", "number"])
@each(
    "mark", ["{", "*", "$", "**", "\\boxed{}", "\\boxed{", "answer:", "Answer is", "=", "()", "-", "####", "\\text{}"]
)
def test_marks_without_content_are_texts_like_others(name, mark):
    assert matcher_of(name).matches(mark, [mark]) is True
    assert matcher_of(name).matches(mark, [GOLD[name]]) is False
    assert matcher_of(name).matches("Danube", [mark]) in {False, None}


@pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_huge_formula_never_reaches_the_parser(kind):
    latex = as_latex(HOSTILE[kind])
    assert latex is None or len(latex) <= maths.MAX_FORMULA_CHARS + 2


# Texts that make a regular expression with nested or overlapping repetition try every cut: openings without an end.
PIECES = [
    "1", "1,", "1.", "1 ", "1'", "1/", "1:", "1-", "-", "+", "$", "(", "((", "(1", "[a", "{", "\\frac{1}", "\\boxed{",
    "=", "1=", ", 1=", "and ", "or ", "one ", "one-", "one and ", "twenty ", "hundred ", "half ", "a million ", "minus ",
    "10^", "1e", "1 x 10^", "5 ft ", "5 ft and ", "km", "km ", "$1", "USD ", "1992-", "1992 ",
    "answer", "answer ", "answer is ", "answer: ", "*", "**answer**", "####",
    "A", "A ", "A or ", "A, ", "not A ", "(A) ", "A) ", "A\n", "is ", "\n", " ", "the ", "a ", "yes ", "no ", "\\text{",
    "\u0660", "½", "²", "\u200b", "é", "<", "< ", "%", "5 % ", "per ", "5/h", "√(", "sqrt(", "1 1/", "word ", "x^",
]  # fmt: skip


@pytest.mark.parametrize("name", ["exact", "label", "number", "judge", "reply", "math"])
def test_no_text_takes_quadratic_time(name, monkeypatch):
    monkeypatch.setattr(text, "MAX_ANSWER_CHARS", 10**9)  # the guard is off: the patterns themselves must hold
    monkeypatch.setattr(maths, "MAX_FORMULA_CHARS", 10**9)
    work: Callable[[str], object]
    if name == "reply":
        work = read_verdict
    elif name == "math":
        work = as_latex
    else:
        matcher = matcher_of(name)
        work = lambda piece: matcher.matches(piece, [GOLD[name]])  # noqa: E731
    assert {piece: slow for piece in PIECES if (slow := superlinear(work, piece))} == {}


SENT = [
    *(".", ". ", "?!", "aa.", "eyJaaaaaaaa-", "_eyJaaaaaaaa", "eyJaaaaaaaa.", "secret: ", "token=", "api_key=AAA_"),
    *("://a:b", "-----BEGIN A PRIVATE KEY-----", "bearer ", "bearer" + 50 * " ", "sk-a ", '"A', "<|", "[|", "data:,"),
    *("\u200b", "\u00b2", "\u00e9", "1" * 18 + " ", "-ghp_aaaa", "authorization: basic ", '"\\"'),
]  # fmt: skip


@pytest.mark.parametrize("work", [plain, holds_key, redact, defuse], ids=lambda work: work.__name__)
def test_what_a_client_sends_is_read_in_linear_time(work):
    """80,000 full stops and a letter held up a gateway for 15 s."""
    assert {piece: slow for piece in SENT for end in "!x" if (slow := superlinear(work, piece, end))} == {}


@pytest.mark.parametrize(
    ("pattern", "piece", "slow"),
    [
        (r"\s*\n\S", " ", True),
        (r"(\d+,?)+x", "1", True),
        (r"(?:a|b)*?c", "ab", True),
        (r"\d{1,50}x", "1", False),
        (r"(?<!\d)\d+x", "1", False),
    ],
)
def test_the_check_itself_finds_quadratic_time(pattern, piece, slow, monkeypatch):
    monkeypatch.setattr(text, "_MARKER", re.compile(pattern))
    assert superlinear(lambda pieces: list(text._MARKER.finditer(pieces)), piece) == ([pattern] if slow else [])
