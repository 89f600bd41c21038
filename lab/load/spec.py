"""The specification of a bench: frozen, checked once, for the command line and for scripts."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from service.config.settings import ConfigError
from telemetry.facts.credentials import KeyUnusable, bearer


class Endpoint(StrEnum):
    """The two generation routes of the OpenAI API."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class PromptForm(StrEnum):
    """How a prompt is sent: as exact token ids, or as text of a length in tokens."""

    IDS = "ids"
    TEXT = "text"


class Poisson(msgspec.Struct, frozen=True, tag="poisson"):
    """`rate_per_s` requests a second at independent times, `burst` of them at each."""

    rate_per_s: float
    burst: int = 1


class Interval(msgspec.Struct, frozen=True, tag="interval"):
    """`burst` requests every `interval_s` seconds, the first after one interval."""

    interval_s: float
    burst: int = 1


class Trace(msgspec.Struct, frozen=True, tag="trace"):
    """The arrivals of a file of JSON lines (see `arrivals.read_trace`)."""

    path: str


class Users(msgspec.Struct, frozen=True, tag="users"):
    """Closed loop: `users` clients, each sends `pause_s` after its last reply is complete."""

    users: int
    pause_s: float = 0.0


Arrivals = Poisson | Interval | Trace | Users


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """Every request has the same two lengths, in tokens."""

    prompt: int
    output: int


class Uniform(msgspec.Struct, frozen=True, tag="uniform"):
    """Both lengths uniform between inclusive bounds, independent of each other."""

    prompt_low: int
    prompt_high: int
    output_low: int
    output_high: int


class ShareGpt(msgspec.Struct, frozen=True, tag="sharegpt"):
    """Conversation-like lengths (see `sharegpt.py`), cut at the two maxima."""

    prompt_max: int = 1024
    output_max: int = 1024


class SharedPrefix(msgspec.Struct, frozen=True, tag="shared-prefix"):
    """Prompts of the class begin with the same `prefix` tokens; `suffix` tokens are their own."""

    prefix: int
    suffix: int
    output: int


class TailShape(StrEnum):
    """How quickly long lengths become rare."""

    LOGNORMAL = "lognormal"
    PARETO = "pareto"


class LongTail(msgspec.Struct, frozen=True, tag="long-tail"):
    """Most lengths near the lower bound, a few near the upper one (see `lengths.py`)."""

    shape: TailShape
    prompt_low: int
    prompt_high: int
    output_low: int
    output_high: int


Lengths = Fixed | Uniform | ShareGpt | SharedPrefix | LongTail


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Targets that a request must meet to count as good; None: no target.

    `itl_ms` is the request's own 99th percentile of gaps (nearest rank, so the largest of
    fewer than a hundred), `tpot_ms` their mean per token.
    """

    ttft_ms: float | None = None
    itl_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


class ClassSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request. With `arrivals` None it gets a share, by `weight`, of the common ones.

    `requests` ends the class after so many counted requests. `headers` are its requests' own,
    beside those of the bench.
    """

    name: str = "default"
    lengths: Lengths = Fixed(64, 64)
    arrivals: Arrivals | None = None
    weight: float = 1.0
    requests: int | None = None
    slo: Slo = Slo()
    headers: dict[str, str] = {}


class BenchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run against one server.

    `model` None is the first that the server lists. `token_ids` is the half-open range that
    random prompts are drawn from; None: one that the server accepts. Fields of `extra_body`
    replace those of each body, and a None in it removes the field. The first `warmup_requests` and
    those of the first `warmup_s` are sent but not counted. `drain_s` is how long to
    wait for replies after the last request. `seed` fixes arrivals and lengths; `salt` fixes the
    content of prompts, and None draws a new one, so that no earlier run has warmed a prefix cache.
    """

    url: str = "http://127.0.0.1:8000"
    classes: tuple[ClassSpec, ...] = (ClassSpec(),)
    arrivals: Arrivals | None = None
    model: str | None = None
    api_key: str | None = None
    endpoint: Endpoint = Endpoint.COMPLETIONS
    prompt_form: PromptForm = PromptForm.IDS
    tokenizer: str | None = None
    corpus: str | None = None
    token_ids: tuple[int, int] | None = None
    ignore_eos: bool = True
    stream_usage: bool = True
    extra_body: dict[str, Any] = {}
    headers: dict[str, str] = {}
    duration_s: float | None = None
    requests: int | None = None
    warmup_requests: int = 0
    warmup_s: float = 0.0
    timeout_s: float = 600.0
    drain_s: float = 60.0
    seed: int = 0
    salt: int | None = None


def validate(spec: BenchSpec) -> None:
    """Raise ConfigError, with what to write instead, if the spec cannot be run."""
    if not spec.classes:
        raise ConfigError("a bench needs at least one class")
    try:
        bearer(spec.api_key)
    except KeyUnusable as error:
        raise ConfigError(f"--api-key: {error}") from error
    names = [one.name for one in spec.classes]
    if len(set(names)) < len(names):
        raise ConfigError(f"class names must differ, got {', '.join(names)}")
    for one in spec.classes:
        _validate_class(one)
    if spec.arrivals is not None:
        _validate_arrivals("the common arrivals", spec.arrivals)
    _validate_sharing(spec)
    _validate_end(spec)
    if spec.prompt_form is PromptForm.TEXT and spec.tokenizer is None:
        raise ConfigError("--prompt-form text needs --tokenizer FILE_OR_FOLDER to measure lengths")
    if spec.endpoint is Endpoint.CHAT and spec.prompt_form is PromptForm.IDS:
        raise ConfigError("--endpoint chat takes text: add --prompt-form text --tokenizer ...")
    if spec.token_ids is not None and not 0 <= spec.token_ids[0] < spec.token_ids[1]:
        raise ConfigError("--token-ids LOW:HIGH needs 0 <= LOW < HIGH, for instance 200:32000")
    for flag, value in (("--warmup", spec.warmup_s), ("--drain-timeout", spec.drain_s)):
        if value < 0:
            raise ConfigError(f"{flag} must not be negative")
    if spec.warmup_requests < 0 or spec.timeout_s <= 0:
        raise ConfigError("--warmup must not be negative and --timeout must be positive")


def _validate_class(one: ClassSpec) -> None:
    where = f"class {one.name!r}"
    if one.arrivals is not None:
        _validate_arrivals(where, one.arrivals)
    if one.weight <= 0:
        raise ConfigError(f"{where}: weight must be positive")
    if one.requests is not None and one.requests < 1:
        raise ConfigError(f"{where}: requests must be at least 1")
    for name, value in msgspec.structs.asdict(one.slo).items():
        if value is not None and value <= 0:
            raise ConfigError(f"{where}: {name} must be positive")
    numbers = [value for value in msgspec.structs.astuple(one.lengths) if isinstance(value, int)]
    if min(numbers) < 1:
        raise ConfigError(f"{where}: every length must be at least 1 token")
    if isinstance(one.lengths, Uniform | LongTail):
        bounds = one.lengths
        if bounds.prompt_low > bounds.prompt_high or bounds.output_low > bounds.output_high:
            raise ConfigError(f"{where}: write bounds as LOW-HIGH, the lower one first")


def _validate_arrivals(where: str, arrivals: Arrivals) -> None:
    match arrivals:
        case Poisson(rate, burst) if rate <= 0 or burst < 1:
            raise ConfigError(f"{where}: rate must be positive and burst at least 1")
        case Interval(interval_s, burst) if interval_s <= 0 or burst < 1:
            raise ConfigError(f"{where}: interval_s must be positive and burst at least 1")
        case Users(users) if users < 1:
            raise ConfigError(f"{where}: users must be at least 1")
        case Users(_, pause_s) if pause_s < 0:
            raise ConfigError(f"{where}: pause_s must not be negative")
        case _:
            pass


def _validate_sharing(spec: BenchSpec) -> None:
    """Common arrivals must be used by a class, and a class without arrivals needs them."""
    sharing = [one.name for one in spec.classes if one.arrivals is None]
    if sharing and spec.arrivals is None:
        raise ConfigError(
            f"class {sharing[0]!r} has no arrivals: give it users=, rate=, interval_s= or trace=, "
            "or give --users, --rate, --interval or --trace for all"
        )
    if spec.arrivals is not None and not sharing:
        raise ConfigError("every class has arrivals of its own: leave the common ones out")


def _validate_end(spec: BenchSpec) -> None:
    if spec.duration_s is not None and spec.duration_s <= 0:
        raise ConfigError("--duration must be positive")
    if spec.requests is not None and spec.requests < 1:
        raise ConfigError("--requests must be at least 1")
    if spec.duration_s is not None or spec.requests is not None:
        return
    for one in spec.classes:
        arrivals = one.arrivals or spec.arrivals
        if one.requests is None and not isinstance(arrivals, Trace):
            raise ConfigError(
                f"class {one.name!r} would never end: give --duration SECONDS or --requests N"
            )
