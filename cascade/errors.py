"""The errors that `cascade` raises: one tree, whose classes have the exit codes of the command line.

Every error can be pickled without loss, and none contains a key. Texts pass through `redact`. Foreign exceptions are
never chained, since they hold request headers; `from None` only hides them, so `CascadeError` also drops the reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from logging import getLogger
from typing import Any, ClassVar

from cascade.safety import redact

logger = getLogger("cascade")
"""What the package logs goes here."""
_MAX_QUOTED = 200
"""The maximum number of characters of a foreign text that an error quotes (F12)."""
_LOOKED_AT = 20_000


def quote(text: object, secrets: Iterable[str] = ()) -> str:
    """Return the first 200 characters of a foreign text, or of an error's text, redacted and on one line."""
    try:
        text = str(text)
    except Exception:  # noqa: BLE001 - a foreign error's `__str__` may fail
        text = "it has no text"
    # Blanks go first and the cut comes last, so that no cut leaves a piece of a key too short to recognise.
    flat = " ".join(text[:_LOOKED_AT].split())
    return redact(flat, secrets)[:_MAX_QUOTED]


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, at most 20 errors in all."""
    cause: BaseException | None = error
    for _ in range(20):
        if cause is not None:
            yield cause
            cause = cause.__cause__ or cause.__context__


def _link(name: str) -> Any:
    """Return a property for `__cause__` or `__context__` that drops exceptions of other trees."""
    slot = vars(BaseException)[name]

    def own(error: CascadeError) -> BaseException | None:
        linked: BaseException | None = slot.__get__(error)
        if linked is None or isinstance(linked, CascadeError):
            return linked
        slot.__set__(error, None)
        return None

    return property(own, slot.__set__)


class CascadeError(Exception):
    """The root of the tree. `exit_code` is the exit code of the command line.

    Its chain (`__cause__`, `__context__`) holds only errors of this tree: an exception of a library may hold a key.
    """

    exit_code: ClassVar[int] = 1
    __cause__ = _link("__cause__")
    __context__ = _link("__context__")

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        unknown = [name for name in fields if not hasattr(type(self), name)]
        if unknown:  # a misspelt field would be ignored silently, although it decides about money
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)}")
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by class, message and fields, so that no field is lost between processes (F46)."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[CascadeError], args: tuple[Any, ...], fields: dict[str, Any]) -> CascadeError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigError(CascadeError):
    """A configuration that cannot be used. `problems` lists all problems as "path: problem"; `source` is the file.

    Everything that looks like a key is removed from the problems: a key may have been pasted into any setting.
    """

    exit_code = 2
    problems: tuple[str, ...] = ()
    source: str | None = None

    def __init__(self, problems: Iterable[str], source: str | None = None) -> None:
        listed = tuple(redact(problem) for problem in problems)
        file = f" in {source}" if source else ""
        count = "1 problem" if len(listed) == 1 else f"{len(listed)} problems"
        lines = "".join(f"\n  - {problem}" for problem in listed)
        super().__init__(f"{count}{file}:{lines}", problems=listed, source=source)


class UsageError(CascadeError):
    """A call with invalid arguments or at the wrong time; the message says what to do instead."""

    exit_code = 2


class ClosedError(UsageError):
    """The question was stopped while it was answered: the orchestrator was closed, or `many` interrupted.

    The running call was cancelled and may be billed. Earlier answers are in the traces.
    """


class RefusedFieldError(UsageError):
    """A chat request has fields that are passed on to no model. `fields` names all of them."""

    fields: tuple[str, ...] = ()


EXTRAS: Mapping[str, str] = {
    "litellm": "litellm",
    "duckdb": "logs",
    "httptools": "server",
    "jinja2": "server",
    "math-verify": "math",
    "opentelemetry": "otel",
    "orjson": "server",
    "psycopg": "sql",
    "ray": "ray",
    "starlette": "server",
    "torch": "train",
    "uvicorn": "server",
    "uvloop": "server",
    "xllamacpp": "local",
}
"""The extra of pyproject.toml that contains a package."""

DISTRIBUTION = "certified-cascade"
"""The name of this package for pip. `cascade`, the name to import, is another project on the package index."""
CORE_DISTRIBUTION = "certified-cascade-core"
"""The same package without litellm (`design/packaging.md`)."""


def distribution() -> str:
    """Return the name of the installed distribution of this package, or the default name."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(CORE_DISTRIBUTION)
    except PackageNotFoundError:
        return DISTRIBUTION
    return CORE_DISTRIBUTION


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra, for an installation from a clone or from an index.

    >>> install_command("logs")
    'pip install "certified-cascade[logs]"'
    """
    return f'pip install "{distribution()}[{extra}]"'


class NoTracesError(UsageError):
    """A store was opened for reading before anything was written to it."""


class UnfitRowsError(UsageError):
    """Rows do not fit the table of episodes; the message lists their problems."""


class StoreError(CascadeError):
    """An operation of a database failed: it is full, unreachable, locked or damaged.

    `retryable`: the same operation may succeed later. `busy`: another connection has locked the database. Under
    `traces.strict`, `answer` is the paid answer that could not be recorded.
    """

    retryable: bool = False
    busy: bool = False
    answer: Any = None


class MissingExtraError(CascadeError):
    """A package is not installed. The message holds the pip command.

    The command installs the extra that contains the package, or the package itself if no extra does (a matcher of your
    own).
    """

    exit_code = 2

    def __init__(self, package: str, needed_for: str) -> None:
        extra = EXTRAS.get(package)
        command = f"pip install {package}" if extra is None else install_command(extra)
        super().__init__(f"{needed_for} needs the package {package}. Install it with: {command}")


class WorkersLostError(CascadeError):
    """The processes of a study died repeatedly, or its Ray cluster was lost. Nothing was written."""


class ModelFileError(CascadeError):
    """A model file is missing, cut short, or not the file whose hash is pinned."""

    exit_code = 2


class NotCertifiedError(CascadeError):
    """The promise cannot be kept with this data, or was not certified."""

    exit_code = 3


class BudgetExceededError(CascadeError):
    """The next call could exceed the cap, so it was not made. `calls` has the calls already paid for.

    `cap` names a cap that many requests share: "unsettled_per_key", or its scope and window ("key day"). `spent` is
    true if the call alone would fit under the cap, but earlier calls have used it up; `retry_after_s` is the time to
    the end of the cap's day or month, if it has one. `public` is a text for clients, without what others spent.
    """

    exit_code = 4
    calls: tuple[Any, ...] = ()
    public: str | None = None
    cap: str | None = None
    spent: bool = False
    retry_after_s: float | None = None


class BatchError(CascadeError):
    """Some questions of a batch failed; the other answers are kept.

    `results` has one entry per question, in order: its Answer or its error.
    """

    exit_code = 5
    results: tuple[Any, ...] = ()


class ProviderError(CascadeError):
    """One call to one model failed.

    `model` and `status` identify the call, `retryable` is whether it may be made again, `retry_after_s` when, `billed`
    whether the provider may charge for it, `maybe_billed` for how many tries, `usage` the reported tokens, if any.
    `shown`: a client already has a part of the reply, so that no other reply can be served. `advice`: what to do next.
    `deployment` names the deployment of the model that failed last.
    """

    exit_code = 5
    advice: ClassVar[str] = "Ask the provider."
    retryable: ClassVar[bool] = False
    max_retries: ClassVar[int] = 2
    model: str | None = None
    deployment: str | None = None
    status: int | None = None
    request_id: str | None = None
    retry_after_s: float | None = None
    billed: str = "no"
    maybe_billed: int = 0
    usage: Any = None
    shown: bool = False
    calls: tuple[Any, ...] = ()

    @property
    def another_may_answer(self) -> bool:
        """Whether the error is about the server or the account, not the request, so that another model may answer."""
        lost = AddressError | ProviderTimeoutError | AuthenticationError | QuotaError | StreamInterruptedError
        return (self.retryable or isinstance(self, lost)) and not self.shown


def refused_for_good(name: str) -> bool:
    """Return whether an error class of this name is about the request, not the server, so that retrying is useless.

    >>> refused_for_good("RefusedError"), refused_for_good("RateLimitedError"), refused_for_good("Strange")
    (True, False, False)
    """
    kind = globals().get(name)
    return isinstance(kind, type) and issubclass(kind, ProviderError) and not kind("").another_may_answer


class ProviderUnavailableError(ProviderError):
    """The provider answered 5xx or could not be reached.

    `billed` is "maybe" if the provider may have done the work: the connection broke after the request was sent, or a
    gateway (502, 504, 520, 524) lost the answer of the server behind it.
    """

    advice = "Try again later, or configure another model."
    retryable = True


class AddressError(ProviderError):
    """The server at the address cannot be used: its certificate cannot be verified, or it speaks only TLS."""


class RateLimitedError(ProviderError):
    """The provider answered 429."""

    advice = "Lower the concurrency or ask the provider for a higher limit."
    retryable = True


class QuotaError(RateLimitedError):
    """The provider answered 429 because the account has no credit left; waiting does not help."""

    advice = "The account behind the key has no credit left: check its plan and billing."
    retryable = False


class ProviderTimeoutError(ProviderError):
    """The call or the question ran out of time. The provider may have done, and billed, the work."""

    advice = "Raise timeouts.per_call_s or use a faster model."
    billed = "maybe"


class AuthenticationError(ProviderError):
    """The provider refused the key (401, 403). Check the variable that the configuration names."""

    advice = "Check the environment variable that holds this provider's key."


class BadRequestError(ProviderError):
    """The provider refused the request (400, 404, 422): a parameter or the model's name."""

    advice = "Check the model's name and its options."


class ContextTooLongError(BadRequestError):
    """The prompt does not fit into the model's context."""

    advice = "Use a model with a longer context, raise its server's limit, or shorten the context."


class HistoryRefusedError(BadRequestError):
    """The model refused the thinking in an earlier request of the same conversation, so it was not asked again."""

    advice = "Begin a new conversation, or leave out the thinking of earlier turns."


class BadResponseError(ProviderError):
    """The reply is not a completion: HTML, cut JSON, no choices field, a wrong content type."""

    advice = "Check the address: something other than a model answered."
    retryable = True
    max_retries = 1
    billed = "maybe"


class EmptyCompletionError(BadResponseError):
    """A completion without a choice, as content filters and token limits produce. It is charged nevertheless."""

    retryable = False
    billed = "yes"


class RefusedError(ProviderError):
    """The model or its filter declined to answer. Never served as an empty answer."""

    advice = "The provider's filter declined the prompt: change it, or ask a provider that takes it."
    billed = "yes"


class StreamInterruptedError(ProviderError):
    """A stream broke off before its end. `partial` holds the text so far."""

    billed = "maybe"
    partial: str = ""


_BY_STATUS: Mapping[int, type[ProviderError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: BadRequestError,
    408: ProviderTimeoutError,
    413: ContextTooLongError,
    422: BadRequestError,
    429: RateLimitedError,
}
LOST_BY_A_GATEWAY = frozenset({502, 504, 520, 524})
"""Status codes of a gateway that got no good answer from the server behind it, which may have done the work. 520 and
524 are Cloudflare's. A server that answers 500 or 503 itself says that it failed."""
_TOO_LONG = re.compile(
    r"context.{0,24}(?:length|size|window)|exceed_context|maximum context|too many tokens", re.IGNORECASE
)


_FILTERED = re.compile(r"content_?filter|content_?policy_?violation|content management policy", re.IGNORECASE)
"""The words with which Azure, OpenAI and litellm say, with status 400, that a filter refused the prompt unread."""


_QUOTA = re.compile(r"insufficient_quota|exceeded your current quota|credit balance|billing", re.IGNORECASE)
"""The words with which providers say, with status 429, that no credit is left."""


def from_status(
    status: int,
    text: str,
    *,
    model: str | None = None,
    secrets: Iterable[str] = (),
    retry_after_s: float | None = None,
    request_id: str | None = None,
) -> ProviderError:
    """Map an HTTP status, or a code inside an error object, to the error that says what to do next."""
    kind = _BY_STATUS.get(status, ProviderUnavailableError if status >= 500 else BadResponseError)
    if kind is BadRequestError and _TOO_LONG.search(text):
        kind = ContextTooLongError
    elif kind is BadRequestError and _FILTERED.search(text):
        kind = RefusedError
    elif kind is RateLimitedError and _QUOTA.search(text):
        kind = QuotaError
    return kind(
        f"{model or 'the provider'} answered {status}: {quote(text, secrets)}. {kind.advice}",
        model=model,
        status=status,
        billed="maybe" if status in LOST_BY_A_GATEWAY else "no" if kind is RefusedError else kind.billed,
        retry_after_s=retry_after_s,
        request_id=request_id,
    )
