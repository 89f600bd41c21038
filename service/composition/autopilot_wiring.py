"""Builds the autopilot and its worker; part of the composition root."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from diagnosis.autopilot.books import BY
from diagnosis.autopilot.bounds import KNOWN, Bounds, BoundsError, bounds_of
from diagnosis.autopilot.pilot import Pilot
from diagnosis.autopilot.proposal import Values
from diagnosis.verdicts.classifier import Diagnoser
from service.composition.autopilot_worker import AutopilotWorker
from service.composition.replay_child import ReplayChild
from service.composition.root_cause_wiring import current_diagnosis
from service.config.settings import ConfigError, ServeConfig
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.runtime_limits import CONFIRM_S
from telemetry.facts.clock import Clock
from telemetry.journal.flight_recorder import FlightRecorder
from telemetry.pump.pump import Pump
from telemetry.requests.slo_policy import SloPolicy

log = logging.getLogger("phasescope.autopilot")

_ANSWER_S = CONFIRM_S + 2.0


def why_off(config: ServeConfig) -> str:
    """Why there is no autopilot; empty where there is one."""
    if config.autopilot.mode == "off":
        return "--autopilot off"
    return "" if config.recorder.journal_bytes else "there is no flight recorder to replay"


def search_arguments(bounds: Bounds, slo_file: str | None) -> list[str]:
    """The arguments of `phasescope diagnose` for a search: what the autopilot may not touch at all
    is not tried, since a change with that in it would be refused as a whole."""
    found = ["--settings", "--only-runtime", "--json"]
    if untouched := [name for name in KNOWN if name not in bounds]:
        found += ["--without", ",".join(untouched)]
    return found if slo_file is None else [*found, "--slo-file", slo_file]


def build_autopilot(
    config: ServeConfig,
    clock: Clock,
    pump: Pump,
    diagnoser: Diagnoser,
    recorder: FlightRecorder | None,
    client: EngineClient,
    policy: SloPolicy,
) -> AutopilotWorker | None:
    """The autopilot's worker; None where it is off, or has nothing to replay. To be called on the
    event loop, which owns the limits. Raises ConfigError."""
    if recorder is None or why_off(config):
        if config.autopilot.mode == "advise":
            log.warning("no autopilot: %s", why_off(config))
        return None
    try:
        bounds = bounds_of(config.autopilot.bounds_file)
    except BoundsError as error:
        raise ConfigError(f"--autopilot-bounds {error}") from error
    loop, mode = asyncio.get_running_loop(), config.autopilot.mode
    arguments = search_arguments(bounds, config.metrics.slo_file)

    def put(values: Values, why: str) -> None:
        change = client.limits.change(values, BY, why)
        asyncio.run_coroutine_threadsafe(change, loop).result(_ANSWER_S)

    return AutopilotWorker(
        clock,
        pump,
        Pilot(policy, bounds, acts=mode == "act"),
        mode,
        bounds,
        lambda: current_diagnosis(pump, diagnoser).verdict,
        put,
        ReplayChild(partial(recorder.frames, "autopilot")),
        arguments,
    )
