"""The router: takes what is known of engines, and says where a request goes.

    router = Router(RoutingSettings(), record, now_ns)
    router.joined("a", incarnation, block_tokens=16, now_ns)
    router.report(EngineReported(...))
    routed = router.choose(request, now_ns)      # a fact, or RouteRefused
    router.sent(routed)                          # just before the frame is written
    router.choice_ended(request_id, now_ns)      # one of several sequences
    router.ended(request_id, output_tokens, now_ns)

`choose` changes nothing; whoever does not send need not take anything back. Each call that changes
something leaves a fact, in the order of the calls, so that `decision_replay` can repeat them.
Nothing here fails by what an engine sends: a report that cannot be used is answered with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable

from service.fleet.routing.engine_view import EngineView, Sent
from service.fleet.routing.policies import policy_of
from service.fleet.routing.prediction import Predicted, candidates
from service.fleet.routing.reports import ReportStatus, is_usable
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.router_state import RouterState
from service.fleet.routing.settings import (
    MAX_CANDIDATES,
    MAX_ENGINES,
    MAX_EXCLUDED,
    RoutingSettings,
)
from telemetry.facts.engine_records import EngineStarted
from telemetry.facts.fleet.routing_records import (
    EngineDrainBegan,
    EngineJoined,
    EngineLeft,
    EngineReported,
    LeaveReason,
    RequestRouted,
    RouteChoiceEnded,
    RouteEnded,
    RouteRefusal,
    RouteRefused,
    RouterStarted,
)

FleetFact = (
    RouterStarted
    | EngineJoined
    | EngineDrainBegan
    | EngineLeft
    | EngineReported
    | RequestRouted
    | RouteRefused
    | RouteChoiceEnded
    | RouteEnded
)

_NO_ENGINE = frozenset[int]()


class FleetFull(Exception):
    """More engines than a router keeps."""


class Router:
    """One gateway's routing decisions. Not thread-safe: it belongs to one event loop."""

    def __init__(
        self, settings: RoutingSettings, record: Callable[[FleetFact], None], now_ns: int
    ) -> None:
        self.settings = settings
        self._record = record
        self._book = RouterState(settings)
        self._policy = policy_of(settings.policy, self._book)
        self._engine_of: dict[str, EngineView] = {}
        self.last_excluded: tuple[str, ...] = ()  # of the request that was sent last
        record(settings.started(now_ns))

    @property
    def engines(self) -> list[str]:
        """Names of those that have joined and not left, those that drain too."""
        return list(self._book.by_name)

    @property
    def eligible(self) -> int:
        """How many may be chosen."""
        return len(self._book.order)

    def outstanding(self, engine: str) -> list[str]:
        """Requests that were sent to an engine and have not ended, oldest first."""
        view = self._book.by_name.get(engine)
        return [] if view is None else list(view.outstanding)

    def is_outstanding(self, request_id: str) -> bool:
        """Whether a request was sent and has not ended."""
        return request_id in self._engine_of

    def joined(
        self,
        engine: str,
        incarnation: int,
        block_tokens: int,
        now_ns: int,
        role: str = "",
        started: EngineStarted | None = None,
    ) -> list[str]:
        """An engine may be chosen. If another incarnation had its name, that one left: returns its
        requests, which are over. `role` and `started` are only recorded. Raises FleetFull."""
        old = self._book.by_name.get(engine)
        lost = [] if old is None else self.left(engine, LeaveReason.REPLACED, now_ns)
        if len(self._book.by_name) >= MAX_ENGINES:  # never where one was replaced
            raise FleetFull(f"{engine!r} cannot join: a router keeps {MAX_ENGINES} engines")
        self._record(EngineJoined(now_ns, engine, incarnation, block_tokens, role, started))
        self._policy.joined(self._book.add(engine, incarnation, block_tokens, now_ns))
        return lost

    def drain(self, engine: str, now_ns: int) -> None:
        """Send an engine no more; one that is unknown or drains already is left alone. It comes
        back by joining again."""
        view = self._book.by_name.get(engine)
        if view is not None and not view.draining:
            self._record(EngineDrainBegan(now_ns, engine))
            view.draining = True
            self._book.changed(view, now_ns)

    def left(self, engine: str, reason: LeaveReason, now_ns: int) -> list[str]:
        """An engine serves no more; returns the requests that were there, which are over. `ended`
        is not called for them."""
        view = self._book.by_name.get(engine)
        if view is None:
            return []
        lost = list(view.outstanding)
        self._record(EngineLeft(now_ns, engine, reason, len(lost)))
        for request_id in lost:
            del self._engine_of[request_id]
        self._policy.left(view)
        self._book.drop(view)
        return lost

    def report(self, report: EngineReported) -> ReportStatus:
        """An engine's load has come. Only a report that is taken becomes a fact."""
        view = self._book.by_name.get(report.engine)
        if view is None:
            return ReportStatus.UNKNOWN_ENGINE
        if view.incarnation != report.incarnation:
            return ReportStatus.OLD_INCARNATION
        if view.report is not None and view.report.number >= report.number:
            return ReportStatus.OUT_OF_ORDER
        if not is_usable(report) or view.goes_back(report):
            return ReportStatus.NOT_USABLE
        self._record(report)
        view.take_report(report)
        if report.prefixes is not None:
            self._book.take_prefixes(view, report.prefixes)
        self._book.changed(view, report.at_ns)
        return ReportStatus.TAKEN

    def choose(self, request: RouteRequest, now_ns: int) -> RequestRouted | RouteRefused:
        """Where to send a request, with all that was weighed; or why nowhere."""
        book = self._book
        excluded = self._excluded(request)
        eligible = len(book.order) - len(excluded)
        if eligible <= 0:
            return RouteRefused(now_ns, request.request_id, self._refusal(), len(book.by_name))
        weighed = self._policy.choose(request, now_ns, excluded)
        return _routed(request, weighed[:MAX_CANDIDATES], eligible, now_ns)

    def refused(self, refusal: RouteRefused) -> None:
        """A request got this answer and no other."""
        self._record(refusal)

    def sent(self, routed: RequestRouted) -> None:
        """The request goes where `choose` said; nothing happened in between."""
        view, best = self._book.by_name[routed.engine], routed.candidates[0]
        assert routed.request_id not in self._engine_of, f"{routed.request_id} was sent already"
        assert routed.ordinal == view.sent_count + 1, f"{routed.ordinal} after {view.sent_count}"
        self._record(routed)
        if routed.excluded is not None:
            self.last_excluded = routed.excluded
        self._engine_of[routed.request_id] = view
        sent = Sent(
            routed.request_id,
            routed.ordinal,
            routed.at_ns,
            routed.prompt_tokens * routed.prompts - best.cached_tokens,
            routed.prompt_tokens,
            routed.anchors,
            routed.sequences,
            routed.sequences,
            routed.prompts,
        )
        self._book.sent(view, sent)
        self._policy.sent(view)

    def choice_ended(self, request_id: str, now_ns: int) -> bool:
        """The engine's end of one of a request's sequences has come, and others go on or will come.
        False: the request is not outstanding, or no other is known of."""
        view = self._engine_of.get(request_id)
        if view is None or not view.has_further(request_id):
            return False
        self._record(RouteChoiceEnded(now_ns, request_id))
        self._book.choice_ended(view, request_id, now_ns)
        return True

    def ended(self, request_id: str, output_tokens: int | None, now_ns: int) -> bool:
        """The engine's end of a request has come. `output_tokens` None: it is over without one.
        False: it is not outstanding, as after its engine left."""
        view = self._engine_of.pop(request_id, None)
        if view is None:
            return False
        self._record(RouteEnded(now_ns, request_id, output_tokens))
        self._book.ended(view, request_id, output_tokens, now_ns)
        return True

    def check(self) -> None:
        """Walk all state; raises AssertionError."""
        self._book.check()
        assert len(self._engine_of) == self._book.outstanding

    def _excluded(self, request: RouteRequest) -> frozenset[int]:
        excluded = request.excluded
        named = self.last_excluded if excluded is None else excluded[:MAX_EXCLUDED]
        if not named:
            return _NO_ENGINE
        order, views = self._book.order, map(self._book.by_name.get, named)
        return frozenset(v.index for v in views if v is not None and v.index in order)

    def _refusal(self) -> RouteRefusal:
        if not self._book.by_name:
            return RouteRefusal.NO_ENGINE
        return RouteRefusal.ALL_TRIED if len(self._book.order) else RouteRefusal.ALL_DRAIN


def _routed(
    request: RouteRequest, weighed: list[Predicted], eligible: int, now_ns: int
) -> RequestRouted:
    view = weighed[0].view
    return RequestRouted(
        now_ns,
        request.request_id,
        view.name,
        view.incarnation,
        view.sent_count + 1,
        request.prompt_tokens,
        request.max_tokens,
        request.itl_target_ns,
        request.ttft_target_ns,
        request.anchors,
        None if request.excluded is None else request.excluded[:MAX_EXCLUDED],
        candidates(weighed, now_ns),
        eligible - len(weighed),
        request.sequences,
        request.prompts,
    )
