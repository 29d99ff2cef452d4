"""The error tree: exit codes, what may be retried, what crosses a process border, and no key anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import each

from cascade import errors
from cascade.errors import (
    CascadeError,
    ConfigError,
    MissingExtraError,
    ProviderError,
    from_status,
    quote,
)
from cascade.server.errors import refusal_of

ROOT = Path(__file__).parents[2]
EXIT_CODES = {
    1: {"CascadeError", "StoreError", "WorkersLostError"},
    2: {"ConfigError", "UsageError", "ClosedError", "RefusedFieldError", "NoTracesError"}
    | {"UnfitRowsError", "MissingExtraError", "ModelFileError"},
    3: {"NotCertifiedError"},
    4: {"BudgetExceededError"},
    5: {"BatchError"},
}


def tree(kind: type[CascadeError] = CascadeError) -> Iterator[type[CascadeError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == "cascade.errors":
            yield from tree(child)


def test_every_error_has_the_exit_code_the_retries_and_the_charge_of_the_contract():
    for kind in tree():
        assert issubclass(kind, ProviderError) or kind.__name__ in EXIT_CODES[kind.exit_code], kind
        assert not issubclass(kind, ProviderError) or kind.exit_code == 5, kind
    retryable = {kind.__name__: kind.max_retries for kind in tree(ProviderError) if kind.retryable}
    assert retryable == {"ProviderUnavailableError": 2, "RateLimitedError": 2, "BadResponseError": 1}
    billed = {kind.__name__: kind.billed for kind in tree(ProviderError) if kind.billed != "no"}
    assert billed == {
        "ProviderTimeoutError": "maybe",
        "BadResponseError": "maybe",
        "EmptyCompletionError": "yes",
        "RefusedError": "yes",
        "StreamInterruptedError": "maybe",
    }


def test_a_config_error_lists_every_problem_and_where():
    error = ConfigError(iter(["a: wrong", "b: wrong"]), "cascade.yaml")
    assert error.problems == ("a: wrong", "b: wrong")
    assert str(error) == "2 problems in cascade.yaml:\n  - a: wrong\n  - b: wrong"
    assert str(ConfigError(["a: wrong"])) == "1 problem:\n  - a: wrong"


def test_a_missing_package_comes_with_the_pip_command():
    assert str(MissingExtraError("litellm", "provider: litellm")).endswith('pip install "certified-cascade[litellm]"')
    assert str(MissingExtraError("xllamacpp", "provider: local")).endswith('pip install "certified-cascade[local]"')
    assert str(MissingExtraError("other", "a matcher of your own")).endswith("with: pip install other")


def test_the_pip_command_names_the_distribution_that_is_installed(tmp_path, monkeypatch):
    """The other one would be installed over its files."""
    folder = tmp_path / "certified_cascade_core-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: certified-cascade-core\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert errors.install_command("litellm") == 'pip install "certified-cascade-core[litellm]"'


def test_each_extra_that_is_named_has_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for package, extra in errors.EXTRAS.items():
        assert any(re.match(rf"{package}\b", requirement) for requirement in extras[extra]), (package, extra)


def test_a_quote_is_short_on_one_line_and_without_keys():
    quoted = quote("a\n\tb   sk-abcdefgh12345678 " + "x" * 500)
    assert quoted.startswith("a b [redacted] x")
    assert len(quoted) == 200


@pytest.mark.parametrize("blanks", [0, 150, 185, 780, 795, 5_000])
def test_no_cut_leaves_a_piece_of_a_key(blanks):
    assert "sk-" not in quote(" " * blanks + "y" * 180 + " sk-abcdefgh12345678")


TOO_LONG = [
    "This model's maximum context length is 4096 tokens", "exceed_context_size_error", "too many tokens",
    "the request exceeds the available context size",
]  # fmt: skip
FILTERED = [
    "The prompt triggers Azure OpenAI's content management policy. (content_filter)",
    "Your request was rejected by the safety system. (invalid_request_error, content_policy_violation)",
    "ContentPolicyViolationError: litellm.BadRequestError: rejected",
]


@each(
    "status, text, name",
    [
        *((status, "no", "BadRequestError") for status in (400, 404, 422)),
        *((status, "no", "AuthenticationError") for status in (401, 403)),
        *((status, "no", "ProviderUnavailableError") for status in (500, 503, 599)),
        *((status, "no", "BadResponseError") for status in (302, 418)),
        (408, "no", "ProviderTimeoutError"),
        (413, "no", "ContextTooLongError"),
        (429, "no", "RateLimitedError"),
        *((400, text, "ContextTooLongError") for text in TOO_LONG),
        *((401, text, "AuthenticationError") for text in TOO_LONG),
        *((400, text, "RefusedError") for text in FILTERED),
        (400, "Invalid 'temperature' (invalid_request_error)", "BadRequestError"),
    ],
)
def test_a_status_becomes_the_error_that_says_what_to_do(status, text, name):
    error = from_status(status, text, model="small", retry_after_s=2.0, request_id="r")
    assert type(error).__name__ == name
    assert (error.model, error.status, error.retry_after_s, error.request_id) == ("small", status, 2.0, "r")
    assert str(error).startswith(f"small answered {status}: {text}. ")
    assert str(error).removeprefix(f"small answered {status}: {text}. ")  # a next action is named
    if name == "RefusedError":
        assert (error.billed, error.retryable) == ("no", False)
        assert refusal_of(error).body["error"]["code"] == "content_filter"


def test_a_status_error_holds_no_secret():
    error = from_status(401, "your key hunter2 is wrong", secrets=("hunter2",))
    assert "hunter2" not in str(error) + repr(vars(error))


def test_errors_need_no_other_package():
    code = "import sys, cascade.errors; print(sorted({'aiohttp', 'pydantic', 'litellm', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_misspelt_field_is_refused():
    with pytest.raises(TypeError, match="biled"):
        errors.ProviderTimeoutError("late", biled="no")
