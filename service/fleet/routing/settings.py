"""What a router is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.facts.fleet.routing_records import RouterStarted, RoutingPolicy

MAX_ENGINES = 10_000
MAX_CANDIDATES = 8
"""Candidates that a fact has at most."""
MAX_EXCLUDED = 1024
"""Engines that a request may exclude, at least as many as a membership has; more are not looked
at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """`seed` breaks ties; gateways of one fleet should have different ones.

    A nanosecond that a request takes from others there counts as `harm_weight` of its own. Under
    prefix affinity no engine has more than `load_bound` times the mean number of requests.
    `first_output_tokens` is how long outputs are expected to be before any has ended. Under least
    finish, requests that no engine can give their first token in time go together, to engines where
    one waits at most `late_apart_ns` longer than elsewhere; 0: they are spread like the others.
    """

    policy: RoutingPolicy = RoutingPolicy.LEAST_FINISH
    seed: int = 0
    harm_weight: float = 1.0
    load_bound: float = 1.25
    first_output_tokens: int = 200
    late_apart_ns: int = 20_000_000_000

    def __post_init__(self) -> None:
        if self.harm_weight < 0:
            raise ValueError(f"harm_weight must be at least 0, not {self.harm_weight}")
        if self.load_bound < 1:
            raise ValueError(f"load_bound must be at least 1, not {self.load_bound}")
        if self.late_apart_ns < 0:
            raise ValueError(f"late_apart_ns must be at least 0, not {self.late_apart_ns}")
        if self.first_output_tokens < 1:
            raise ValueError(f"first_output_tokens must be at least 1: {self.first_output_tokens}")

    def started(self, at_ns: int) -> RouterStarted:
        """The fact from which the settings can be read again."""
        return RouterStarted(
            at_ns,
            self.policy,
            self.seed,
            self.harm_weight,
            self.load_bound,
            self.first_output_tokens,
            self.late_apart_ns,
        )

    @staticmethod
    def of(fact: RouterStarted) -> RoutingSettings:
        return RoutingSettings(
            policy=fact.policy,
            seed=fact.seed,
            harm_weight=fact.harm_weight,
            load_bound=fact.load_bound,
            first_output_tokens=fact.first_output_tokens,
            late_apart_ns=fact.late_apart_ns,
        )
