"""Tells the router (`service.fleet.routing`) what links know, and asks it where a request goes.

An engine has joined while its incarnation is known and connected. One that hangs, has not been
heard for a while, or drains by the membership, stays joined and is excluded from each choice.

Which engines may be chosen is kept from one change to the next, so that a choice looks at few of
them. Of silence a link tells with its next beat: so the chosen one is looked at again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from msgspec.structs import asdict, replace

from service.engine.inbox import Submit
from service.fleet.membership.members import Role
from service.fleet.routing.anchors import anchors_of
from service.fleet.routing.reports import ReportStatus
from service.fleet.routing.request import RouteRequest
from service.fleet.routing.router import FleetFact, Router
from service.fleet.routing.settings import RoutingSettings
from service.fleet.wire.messages import LoadReport
from service.fleet.wire.open_requests import OpenRequests
from service.gateway.engine_client.packed_ids import ids_of
from service.gateway.fleet.link import EngineLink, LinkState
from telemetry.facts.fleet.routing_records import (
    EngineReported,
    LeaveReason,
    RequestRouted,
    RouteRefused,
    RoutingPolicy,
)


class Routing:
    """One gateway's router. Belongs to the event loop."""

    def __init__(
        self,
        policy: RoutingPolicy,
        key: bytes,
        record: Callable[[FleetFact], None],
        now_ns: int,
    ) -> None:
        self._key = key[:64]
        self._router = Router(
            RoutingSettings(policy=policy, seed=secrets.randbits(62)), record, now_ns
        )
        self.decoding: dict[str, EngineLink] = {}
        """The engines that were ready at their last change, by name, but for `prefilling` ones.
        Other threads may read both."""
        self.prefilling: dict[str, EngineLink] = {}
        self._excluded: tuple[str, ...] | None = ()  # None: it has to be made again
        self._joined: dict[str, int] = {}  # incarnation by name
        self._open: dict[str, OpenRequests] = {}
        self._outputs: dict[tuple[str, str], int] = {}
        self._begun_ns = now_ns

    def changed(self, link: EngineLink, now_ns: int) -> None:
        """The state of an engine may be another."""
        started, name = link.started, link.name
        if link.incarnation == 0 or started is None:
            self.left(name, LeaveReason.DIED, now_ns)
            return
        if self._joined.get(name) != link.incarnation:
            self._forget(name)
            self._router.joined(
                name, link.incarnation, started.block_tokens, now_ns, link.role.value, started
            )
            self._joined[name], self._open[name] = link.incarnation, OpenRequests()
        if link.engine is not None and link.engine.draining:
            self._router.drain(name, now_ns)
        ready = link if _is_ready(link, now_ns) else None
        is_prefilling = link.role is Role.PREFILL
        self._list(name, None if is_prefilling else ready, ready if is_prefilling else None)

    def left(self, name: str, reason: LeaveReason, now_ns: int) -> None:
        """An engine serves no more."""
        if self._joined.pop(name, None) is not None:
            self._list(name, None, None)
            self._forget(name)
            self._router.left(name, reason, now_ns)

    def reported(self, link: EngineLink, report: LoadReport, at_ns: int) -> bool:
        """An engine's load has come; false: it cannot be used."""
        found = self._router.report(
            EngineReported(
                at_ns=at_ns,
                engine=link.name,
                incarnation=report.incarnation,
                number=report.number,
                age_ns=0,  # not known: the clocks of two machines are not compared here
                received=report.received,
                ended=report.ended,
                draining=link.engine is not None and link.engine.draining,
                prefixes=report.prefixes,
                own_sequences=report.own_sequences,
                choices_ended=report.choices_ended,
                **asdict(report.load),
            )
        )
        return found is not ReportStatus.NOT_USABLE

    def choose(
        self, submit: Submit, request_id: str, prompt_tokens: int, links: dict[str, EngineLink],
        now_ns: int, sequences: int = 1, prompts: int = 1,
    ) -> RequestRouted | None:  # fmt: skip
        """Where a request goes, by its first sequence; None, and recorded why, if nowhere. Each of
        several `prompts` has a sequence, and `prompt_tokens` are those of one in the mean."""
        request = RouteRequest(
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            max_tokens=submit.max_tokens,
            sequences=sequences,
            prompts=prompts,
            anchors=self._anchors(submit, links),
            itl_target_ns=submit.itl_target_ns,
            ttft_target_ns=submit.ttft_target_ns,
        )
        found = self._router.choose(self._excluding(request), now_ns)
        if isinstance(found, RouteRefused) or not _is_ready(links[found.engine], now_ns):
            for link in links.values():
                self.changed(link, now_ns)
            found = self._router.choose(self._excluding(request), now_ns)
        if isinstance(found, RequestRouted):
            return found
        self._router.refused(found)
        return None

    def _excluding(self, request: RouteRequest) -> RouteRequest:
        """The request, which is not to go to engines that are not ready, nor to those that compute
        prompts while others are."""
        if self._excluded is None:
            may = self.decoding or self.prefilling
            self._excluded = tuple(name for name in self._joined if name not in may)
        is_known = bool(self._excluded) and self._excluded == self._router.last_excluded
        return replace(request, excluded=None if is_known else self._excluded)

    def is_outstanding(self, request_id: str) -> bool:
        """Whether a request of that id is at some engine."""
        return self._router.is_outstanding(request_id)

    def is_open(self, name: str, request_id: str) -> bool:
        """Whether the request is at that engine; so are its further sequences."""
        return name in self._open and self._open[name].is_open(request_id)

    def begin(self, routed: RequestRouted) -> None:
        """The request goes where `choose` said."""
        self._router.sent(routed)
        self._begun_ns = routed.at_ns

    def sent(self, name: str, request_id: str, sequences: int) -> None:
        """A sequence of a request of so many is sent. Where too many are open, both ends count the
        oldest as ended."""
        given_up = self._open[name].sent(request_id, sequences)
        if given_up is not None:
            outputs = self._outputs.pop((name, given_up), 0)
            self._router.ended(given_up, outputs, self._begun_ns)

    def over(
        self, name: str, request_id: str, outputs: int, was_cancelled: bool, now_ns: int
    ) -> None:
        """A sequence has ended, with so many tokens."""
        if not self.is_open(name, request_id):
            return  # its engine has left, or it counts as ended already
        key = (name, request_id)
        self._outputs[key] = self._outputs.get(key, 0) + outputs
        if self._open[name].over(request_id, was_cancelled):
            self._router.ended(request_id, self._outputs.pop(key), now_ns)
        else:
            self._router.choice_ended(request_id, now_ns)

    def outstanding(self, name: str) -> int:
        """Requests of this gateway there."""
        return len(self._router.outstanding(name))

    def _anchors(self, submit: Submit, links: dict[str, EngineLink]) -> tuple[int, ...]:
        ours = (links[name].started for name in self._joined)
        started = next((one for one in ours if one is not None), None)
        if started is None or not started.prefix_cache or not submit.cache_prefix:
            return ()
        return anchors_of(
            ids_of(submit.prompt),
            started.block_tokens,
            key=self._key,
            identity=started.cache_identity,
            tenant=submit.tenant,
            salt=submit.cache_salt,
        )

    def _list(self, name: str, decoding: EngineLink | None, prefilling: EngineLink | None) -> None:
        self.decoding = _with(self.decoding, name, decoding)
        self.prefilling = _with(self.prefilling, name, prefilling)
        self._excluded = None

    def _forget(self, name: str) -> None:
        self._open.pop(name, None)
        for key in [key for key in self._outputs if key[0] == name]:
            del self._outputs[key]


def _is_ready(link: EngineLink, now_ns: int) -> bool:
    return link.state_at(now_ns) is LinkState.READY


def _with(
    links: dict[str, EngineLink], name: str, link: EngineLink | None
) -> dict[str, EngineLink]:
    """The same with an engine, or without it; another dict if that changes anything."""
    if links.get(name) is link:
        return links
    others = {other: one for other, one in links.items() if other != name}
    return others if link is None else others | {name: link}
