"""The HTTP side: where it listens, keys, streams, bodies, and how long things may take."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from service.config.http_settings import HttpConfig
from service.config.setting import ConfigError, Group, Unit, check_fields, setting

ANY_ADDRESS = ("0.0.0.0", "::")
LEAST_ENGINE_DEADLINE_S = 3.0
Compat = Literal["all", "openai", "vllm", "sglang", "off"]
DEFAULT_COMPAT: Compat = "all"


class KeysSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The file of API keys; `service.config.tenant_keys` reads it into `GatewayConfig`."""

    tenant_keys: Annotated[
        str | None,
        setting(
            "--tenant-keys",
            Group.ACCESS,
            "file of API keys that name their tenant, one 'TENANT KEY [BEST-PRIORITY]' a line",
            metavar="FILE",
            unset="no keys of tenants",
            min_length=1,
        ),
    ] = None


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the gateway. Keys None: the routes they guard are open. `tenant_keys` maps API
    keys to their tenants."""

    host: Annotated[str, setting("--host", Group.HTTP, "address to listen on", min_length=1)] = (
        "127.0.0.1"
    )
    port: Annotated[
        int,
        setting(
            "--port",
            Group.HTTP,
            "port to listen on",
            unit=Unit.PORT,
            hint="0 takes any free port",
            ge=0,
            le=65_535,
        ),
    ] = 8000
    max_body_bytes: Annotated[
        int,
        setting("--max-body", Group.HTTP, "largest request body", unit=Unit.BYTES, ge=0),
    ] = 8 * 1024 * 1024
    pooling: Annotated[
        Literal["auto", "off", "last", "mean", "cls"],
        setting(
            "--pooling",
            Group.MODEL,
            "how /v1/embeddings makes a vector of a text's final states: of its last token, the "
            "mean over all, or of its first; auto does what the model's files state "
            "(modules.json), and refuses embeddings where they state nothing",
        ),
    ] = "auto"
    request_timeout_s: Annotated[
        float | None,
        setting(
            "--request-timeout",
            Group.HTTP,
            "longest time from arrival to end of a request; its own timeout may only be shorter",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            unset="no limit",
            gt=0,
        ),
    ] = None
    api_key: Annotated[
        str | None,
        setting(
            "--api-key",
            Group.HTTP,
            "key that /v1/* asks for, and what other servers have outside it (/tokenize, "
            "/detokenize, /server_info, /model_info, /loads); without a --debug-key also what "
            "changes something under /debug/",
            unset="they are open",
            secret=True,
        ),
    ] = None
    slow_client: Annotated[
        Literal["pause", "drop"],
        setting(
            "--slow-client",
            Group.HTTP,
            "what happens to a stream whose reader falls behind by --stream-buffer tokens",
        ),
    ] = "pause"
    stream_buffer_tokens: Annotated[
        int,
        setting(
            "--stream-buffer",
            Group.HTTP,
            "unread tokens of a stream at which --slow-client applies",
            unit=Unit.TOKENS,
            metavar="TOKENS",
            ge=2,
        ),
    ] = 256
    slow_client_timeout_s: Annotated[
        float,
        setting(
            "--slow-client-timeout",
            Group.HTTP,
            "drop a stream when one write to it has been waiting for so long",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            gt=0,
        ),
    ] = 120.0
    stream_heartbeat_s: Annotated[
        float,
        setting(
            "--stream-heartbeat",
            Group.HTTP,
            "how often a stream that waits for its first token gets an SSE comment; 0: never",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            hint="0 turns it off",
            ge=0,
        ),
    ] = 10.0
    gateways: Annotated[
        int,
        setting(
            "--gateways",
            Group.HTTP,
            "processes that serve clients; with several, one more supervises them, and has all "
            "telemetry",
            unit=Unit.PROCESSES,
            ge=1,
            le=64,
        ),
    ] = 1
    compat: Annotated[
        Compat,
        setting(
            "--compat",
            Group.HTTP,
            "whose fields requests may have besides this server's own: OpenAI's, and vLLM's or "
            "SGLang's or both; those that cannot be obeyed are refused in any case",
        ),
    ] = DEFAULT_COMPAT
    ingest_workers: Annotated[
        int,
        setting(
            "--ingest-workers",
            Group.HTTP,
            "processes that read bodies too large for the event loop",
            unit=Unit.PROCESSES,
            ge=1,
            le=64,
        ),
    ] = 2
    drain_timeout_s: Annotated[
        float,
        setting(
            "--drain-timeout",
            Group.HTTP,
            "how long running requests may go on after SIGTERM",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            ge=0,
        ),
    ] = 30.0
    engine_deadline_s: Annotated[
        float,
        setting(
            "--engine-deadline",
            Group.HTTP,
            "replace an engine process without a heartbeat for so long, and end its requests with "
            "an error; must be longer than the longest step; 0: never",
            unit=Unit.SECONDS,
            metavar="SECONDS",
            hint=f"from {LEAST_ENGINE_DEADLINE_S:g}, or 0 to replace none",
            ge=0,
        ),
    ] = 30.0
    debug_key: Annotated[
        str | None,
        setting(
            "--debug-key",
            Group.HTTP,
            "key that /debug/*, /metrics, and loading and unloading of adapters ask for",
            unset="/debug/* and /metrics can be read by all; changes, and adapters, ask for "
            "--api-key",
            secret=True,
        ),
    ] = None
    tenant_keys: dict[str, str] = {}
    http: HttpConfig = HttpConfig()

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        check_fields(self)
        for flag, key in (("--api-key", self.api_key), ("--debug-key", self.debug_key)):
            if key is not None and not key.strip():
                raise ConfigError(
                    f"{flag} is empty: give a key, or leave it (and its variable) out"
                )
        if self.engine_deadline_s and self.engine_deadline_s < LEAST_ENGINE_DEADLINE_S:
            raise ConfigError(
                f"--engine-deadline must be at least {LEAST_ENGINE_DEADLINE_S:g} s: an engine is "
                "reported as hung after two; 0 replaces none"
            )
        self.http.validate()
