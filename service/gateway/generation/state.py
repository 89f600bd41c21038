"""What the routes and requests of a server with an engine of its own share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.config.adapter_settings import AdapterSettings
from service.config.settings import SamplingDefaults
from service.gateway.engine_client.client import EngineClient
from service.gateway.errors import model_not_found
from service.gateway.generation.tool_results import CallTable
from service.gateway.ingest.pool import IngestPool
from service.gateway.server_state import ServerState
from service.model_files.embedding_files import EmbeddingModel
from service.text.reasoning import ReasoningFormat
from service.text.tokenizer import Tokenizer
from telemetry.facts.recorder import Lane
from telemetry.facts.stages import StartReport
from telemetry.requests.slo_policy import DEFAULT_POLICY, SloPolicy

_NO_ADAPTERS = AdapterSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState(ServerState):
    """What a route may use. `number` is that of one of several gateway processes."""

    lane: Lane
    engine: EngineClient
    tokenizer: Tokenizer
    ingest: IngestPool
    model: str
    sampling_defaults: SamplingDefaults
    created_unix_s: int
    retry_after_s: Callable[[], int]
    calls: CallTable
    start_report: Callable[[], StartReport | None]
    slo: SloPolicy = DEFAULT_POLICY
    number: int = 0
    reasoning: ReasoningFormat | None = None
    embedding: EmbeddingModel | None = None
    adapters: AdapterSettings = _NO_ADAPTERS

    def adapter_of(self, model: str | None) -> int:
        """The number of the adapter that a request names as its model, 0 for the base model. Raises
        ApiError; one to be tried again where no engine has said yet which adapters it has."""
        if model is None or model == self.model:
            return 0
        adapters = self.engine.adapters
        number = adapters.number_of(model)
        if number is not None:
            return number
        if not self.engine.ready or adapters.is_awaited(model):
            raise self.engine.unavailable_error()
        raise model_not_found(model, self.model, *self.adapter_names)

    @property
    def adapter_names(self) -> list[str]:
        """What clients may name besides the base model."""
        return [known.name for known in self.engine.adapters.listed()]
