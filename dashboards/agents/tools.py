"""The tools: what each is called, what it takes and what it answers. No protocol in here.

Arguments are structs: from them come both the schema that an agent sees and the check of what it
sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from dashboards.agents.reader import DebugReader, ErrorKind, ToolFailed
from dashboards.agents.record import By, RecordCache
from telemetry.facts.clock import Clock

Answer = dict[str, Any]
_LONGEST_ID = 256


class NoArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing."""


class OneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to explain."""

    request_id: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=_LONGEST_ID,
            description="the x-request-id of its response, or an id from another tool",
        ),
    ]


class Slowest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests, and by what."""

    by: Annotated[By, msgspec.Meta(description="the latency to rank by")] = By.TTFT
    count: Annotated[int, msgspec.Meta(ge=1, le=100, description="how many")] = 10
    slo_class: Annotated[str | None, msgspec.Meta(description="only of this SLO class")] = None
    tenant: Annotated[str | None, msgspec.Meta(description="only of this tenant")] = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; `call` takes its arguments as `kind`."""

    name: str
    about: str
    kind: type[msgspec.Struct]
    call: Callable[[Any], Answer]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments, without references."""
        schema = msgspec.json.schema(self.kind)
        definitions = schema.get("$defs", {})
        found: dict[str, Any] = definitions.pop(self.kind.__name__)
        for field in found.get("properties", {}).values():
            reference = field.pop("$ref", "")
            if reference:
                meant = definitions[reference.rpartition("/")[2]]
                field |= {key: value for key, value in meant.items() if key not in field}
        return found


class Tools:
    """All tools over one server. Calls block: they are to be made on a thread."""

    def __init__(self, reader: DebugReader, clock: Clock) -> None:
        self._reader = reader
        self._record = RecordCache(reader, clock)
        self.tools = {tool.name: tool for tool in self._all()}

    def call(self, name: str, arguments: dict[str, Any]) -> Answer:
        """Raises ToolFailed."""
        tool = self.tools.get(name)
        if tool is None:
            raise ToolFailed(ErrorKind.BAD_ARGUMENT, f"there is no tool {name!r}")
        try:
            checked = msgspec.convert(arguments, tool.kind)
        except msgspec.ValidationError as error:
            raise ToolFailed(ErrorKind.BAD_ARGUMENT, f"{name}: {error}") from error
        return tool.call(checked)

    def _all(self) -> list[Tool]:
        def route(name: str, path: str, about: str) -> Tool:
            return Tool(name, about, NoArguments, lambda _: dict(self._reader.get(path)))

        return [
            Tool("health", "Whether it answers and takes requests.", NoArguments, self._health),
            Tool(
                "snapshot",
                "The state of the service now: batch, queue, KV cache, rates and latency "
                "percentiles of the last minute, SLO and burn.",
                NoArguments,
                self._snapshot,
            ),
            route(
                "diagnosis", "/debug/diagnosis",
                "What is wrong now, if anything: causes ranked by requests' lost time, with "
                "evidence, what was ruled out, culprits, victims and the runbook of each.",
            ),
            route(
                "root_cause", "/debug/root",
                "The last root cause analysis by replay: what would have helped, by how much, and "
                "which settings would meet the SLOs. Empty while nothing is wrong.",
            ),
            Tool(
                "incidents",
                "The incidents of the last minutes, the newest first: when they began and ended, "
                "and their causes at the worst moment.",
                NoArguments,
                lambda _: {"incidents": self._record.view().incidents()},
            ),
            Tool(
                "explain_request",
                "Where the time of one request went, to the nanosecond, and which requests took "
                "it: phases, exact ledger, late tokens with their culprits.",
                OneRequest,
                lambda one: dict(self._explained(one.request_id)),
            ),
            Tool(
                "slowest_requests",
                "The slowest requests of the last minutes, with the ids that explain_request "
                "takes. Those in flight are among them.",
                Slowest,
                self._slowest,
            ),
            route(
                "limits", "/debug/limits",
                "The limits in force, what they were at the start, and who changed them and why. "
                "This tool changes none.",
            ),
            route("slo", "/debug/slo", "SLO classes, their targets, goodput and burn rates."),
            route(
                "harm", "/debug/harm",
                "Time that requests took from others, by request, tenant and class: direct, so no "
                "root cause.",
            ),
        ]  # fmt: skip

    def _health(self, _: NoArguments) -> Answer:
        self._reader.get("/health")
        status, body = self._reader.status("/ready")
        return {"url": self._reader.name, "live": True, "ready": status == 200,
                "why_not_ready": body.get("reason")}  # fmt: skip

    def _snapshot(self, _: NoArguments) -> Answer:
        """Without the batch grid, which is a picture."""
        found = dict(self._reader.get("/debug/snapshot"))
        found.pop("grid", None)
        return found

    def _explained(self, request_id: str) -> Any:
        return self._reader.get("/debug/requests", request_id)

    def _slowest(self, asked: Slowest) -> Answer:
        view = self._record.view()
        return {"requests": view.slowest(asked.by, asked.count, asked.slo_class, asked.tenant)}
