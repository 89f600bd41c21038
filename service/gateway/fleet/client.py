"""The gateway's client of many engines on other machines, in the place of the client of one engine
of its own (`service.gateway.engine_client.client`).

All sequences of a request go to one engine, which is chosen with the first of them. A sequence ends
exactly once: with the engine's last emission, or with ENGINE_DIED when its engine, node or
connection is lost; nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from itertools import chain
from typing import NamedTuple
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from service.engine.inbox import Pause, Resume, Submit
from service.engine.plan import Emission
from service.fleet.membership.members import Membership
from service.fleet.wire import messages
from service.fleet.wire.counts import WireCounts
from service.gateway.engine_client.client import EngineClient
from service.gateway.engine_client.output_queue import OutputQueue
from service.gateway.engine_client.packed_ids import length_of
from service.gateway.engine_client.request_context import RequestContext
from service.gateway.errors import ApiError, EngineUnavailable, no_engine_ready
from service.gateway.fleet.digest import mismatch_of
from service.gateway.fleet.engines_view import EnginesView, view_of
from service.gateway.fleet.link import EngineLink, LinkState
from service.gateway.fleet.prefill import PrefillSplit
from service.gateway.fleet.routing import Routing
from service.gateway.fleet.sent_sequence import SentSequence, for_node
from service.gateway.fleet.sent_sequences import SentSequences
from service.gateway.fleet.starts import Starts
from telemetry.facts.clock import Clock
from telemetry.facts.engine_records import (
    GrammarCompiled,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
)
from telemetry.facts.fleet.routing_records import LeaveReason, RequestRouted, RoutingPolicy
from telemetry.facts.fleet.sequence_records import (
    ClockSampled,
    ReceivedRow,
    RemoteAccount,
    SequenceSent,
    TokensReceived,
)
from telemetry.facts.reasons import EndReason
from telemetry.facts.recorder import Lane

log = logging.getLogger("phasescope.fleet")

_LOOK_S = 1.0
_ID_CHARACTERS = 120


class _Place(NamedTuple):
    """Where a request is, and its id there: another one while an older one of that id ends."""

    link: EngineLink
    request_id: str
    routed: RequestRouted


class FleetClient(EngineClient):
    """Implements `link.Owner`. `vocabulary` is the digest of the gateway's own."""

    def __init__(
        self,
        membership: Membership,
        lane: Lane,
        clock: Clock,
        model: str,
        vocabulary: str,
        policy: RoutingPolicy = RoutingPolicy.LEAST_FINISH,
        split: str = "auto",
    ) -> None:
        super().__init__(None, lambda stage: None)
        self.clock = clock
        self.counts = WireCounts()
        self.key = membership.key
        self.gateway = f"{socket.gethostname()[:64]}-{secrets.token_hex(4)}"
        self.connects = {True: 0, False: 0}
        self.sequences_lost = 0
        self._membership, self._model, self._digest = membership, model, vocabulary
        self._facts = lane
        self._routing = Routing(policy, self.key, lane.append, clock.now_ns())
        self.split = PrefillSplit(split)
        self._links: dict[str, EngineLink] = {}
        self._starts = Starts()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = WeakKeyDictionary[OutputQueue, _Place]()
        self._remotes = SentSequences(clock)

    # What the gateway asks

    @property
    def links(self) -> list[EngineLink]:
        """All engines of the membership."""
        return list(self._links.values())

    @property
    def roles(self) -> dict[str, str]:
        """What each engine is used for."""
        return {link.name: link.role.value for link in self.links}

    def links_view(self) -> EnginesView:
        """For operators."""
        now_ns = self.clock.now_ns()
        outstanding = self._routing.outstanding
        return EnginesView([view_of(link, now_ns, outstanding(link.name)) for link in self.links])

    @property
    def ready(self) -> bool:
        now_ns, routing = self.clock.now_ns(), self._routing
        links = chain(routing.decoding.values(), routing.prefilling.values(), self._links.values())
        return any(link.state_at(now_ns) is LinkState.READY for link in links)

    def unavailable_error(self) -> ApiError:
        states = [f"{link.name}: {link.why or link.state.value}" for link in self.links]
        return no_engine_ready(states)

    def submit(self, command: Submit, queue: OutputQueue, about: RequestContext) -> int:
        now_ns, prompt_tokens = self.clock.now_ns(), length_of(command.prompt)
        place = self._place(command, queue, about, prompt_tokens, now_ns)
        link = place.link
        remote = SentSequence(
            command.seq_id,
            link,
            link.incarnation,
            place.request_id,
            prompt_tokens,
            replace(command, prompt=[]),  # only its other fields are needed again
        )
        self._remotes.begun(remote)
        self._queues[command.seq_id] = queue
        self._routing.sent(link.name, place.request_id, about.sequences)
        about = about._replace(request_id=place.request_id)
        prefilling = self._routing.prefilling
        prefill = self.split.choose(command, about.sequences, link, prefilling, place.routed)
        message = for_node(command, about, link.incarnation, now_ns, prefill)
        self._facts.append(SequenceSent(now_ns, command.seq_id, link.name, link.incarnation))
        before = self.counts.bytes_out
        link.send(message)
        return self.counts.bytes_out - before

    def _place(
        self, command: Submit, queue: OutputQueue, about: RequestContext, prompt_tokens: int,
        now_ns: int,
    ) -> _Place:  # fmt: skip
        """Where the request is, or goes. Raises EngineUnavailable."""
        found, request_id = self._places.get(queue), about.request_id
        if found is not None and self._routing.is_open(found.link.name, found.request_id):
            return found
        while self._routing.is_outstanding(request_id):
            request_id = f"{request_id[:_ID_CHARACTERS]}-{secrets.token_hex(3)}"  # still ending
        prompts = about.sequences if about.own_prompt_tokens else 1
        routed = self._routing.choose(
            command, request_id, about.own_prompt_tokens or prompt_tokens, self._links, now_ns,
            about.sequences, prompts,
        )  # fmt: skip
        link = None if routed is None else self._links[routed.engine]
        if routed is None or link is None or link.state_at(now_ns) is not LinkState.READY:
            raise EngineUnavailable
        self._routing.begin(routed)
        found = self._places[queue] = _Place(link, request_id, routed)
        return found

    def cancel(self, seq_id: int, reason: EndReason) -> None:
        remote = self._remotes.live(seq_id)
        if remote is not None and remote.reason is None:
            remote.is_cancelled = True
            remote.over(reason, self.clock.now_ns())
            remote.link.send(messages.RemoteCancel(seq_id=seq_id, reason=reason, seen=remote.seen))

    def pause(self, seq_id: int, paused: bool) -> None:
        remote = self._remotes.live(seq_id)
        if remote is not None:
            remote.link.send(Pause(seq_id) if paused else Resume(seq_id))

    def waiting_before(self, seq_id: int) -> int:
        remote = self._remotes.live(seq_id)
        return 0 if remote is None else remote.waiting_before

    # Membership

    async def run(self) -> None:
        """Follow the membership until cancelled."""
        try:
            while True:
                self._look()
                self._give_up()
                for fact in self._remotes.listed(self._facts.lost):
                    self._facts.append(fact)
                await asyncio.sleep(_LOOK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks.values())

    def _look(self) -> None:
        members = self._membership.members()
        for name, link in list(self._links.items()):
            member = members.get(name)
            old = link.member
            if member is None or (member.host, member.port) != (old.host, old.port):
                del self._links[name]
                self._tasks.pop(name).cancel()
                self._routing.left(name, LeaveReason.REMOVED, self.clock.now_ns())
                self.started = self._starts.take(name, None) or self.started
            elif member != old:
                link.member = member
                self.changed(link)
        for name, member in members.items():
            if name not in self._links:
                link = self._links[name] = EngineLink(member, self)
                self._tasks[name] = asyncio.create_task(link.run(), name=f"engine {name}")

    def _give_up(self) -> None:
        """Accounts that have not come."""
        for remote in self._remotes.overdue(self.clock.now_ns()):
            self._account(remote, None, 0)

    # What links tell

    def mismatch(self, welcome: messages.Welcome) -> str | None:
        return mismatch_of(welcome, self._model, self._digest)

    def connected(self, worked: bool) -> None:
        self.connects[worked] += 1

    def changed(self, link: EngineLink) -> None:
        if self._links.get(link.name) is link:
            self._routing.changed(link, self.clock.now_ns())
            self.started = self._starts.take(link.name, link.started) or self.started
        if self._starts and self.ready:
            self._ready.set()
        else:
            self._ready.clear()

    def emitted(self, link: EngineLink, message: messages.Emitted, at_ns: int) -> None:
        self._told(link, message, at_ns)
        tokens: dict[int, int] = {}
        mine: list[Emission] = []
        over: list[SentSequence] = []
        for emission in message.emissions:
            remote = self._remotes.at(link, emission.seq_id)
            if remote is None:
                continue  # of another engine, or after its end
            mine.append(emission)
            if remote.took(emission, at_ns):
                tokens[emission.seq_id] = tokens.get(emission.seq_id, 0) + 1
            if emission.end is not None:
                self._remotes.ended(remote, emission.end, at_ns)
                over.append(remote)
        if tokens:
            rows = tuple(ReceivedRow(seq_id, count) for seq_id, count in tokens.items())
            self._facts.append(TokensReceived(at_ns, link.name, rows))
        self._over(over, mine, at_ns)

    def accounted(self, link: EngineLink, message: messages.Accounted) -> None:
        remote = self._remotes.accounted(link, message.seq_id)
        if remote is not None:
            self._account(remote, message.account, message.emissions)

    def reported(self, link: EngineLink, report: messages.LoadReport, at_ns: int) -> bool:
        is_usable = self._routing.reported(link, report, at_ns)
        if is_usable:
            self.split.reported(link.name)
        return is_usable

    def answered(self, link: EngineLink, answer: messages.BeatAnswer, at_ns: int) -> None:
        if not link.incarnation:
            return  # it loads: clocks of several starts would be taken for one
        stamps = answer.gateway_sent_ns, answer.node_received_ns, answer.node_sent_ns
        self._facts.append(ClockSampled(at_ns, link.name, link.incarnation, *stamps))

    def lost(self, link: EngineLink, is_connected: bool) -> None:
        now_ns = self.clock.now_ns()
        self.split.left(link.name)
        gone = self._remotes.all_at(link)
        self.sequences_lost += sum(one.reason is None for one in gone)
        for remote in gone:
            self._remotes.ended(remote, EndReason.ENGINE_DIED, now_ns)
        if not is_connected:  # else accounts still come
            for remote in self._remotes.without_account(link):
                self._account(remote, None, 0)
        ends = [Emission(one.seq_id, None, EndReason.ENGINE_DIED) for one in gone]
        self._over(gone, ends, now_ns)

    # Its own work

    def _over(self, over: list[SentSequence], emissions: list[Emission], at_ns: int) -> None:
        """Tell the router of sequences that have ended, and requests what came of theirs: these
        must not wait for the router's books."""
        try:
            for remote in over:
                self.split.computed(remote.seq_id)
                link = remote.link
                if link.incarnation == remote.incarnation:
                    outputs, is_cut = remote.outputs, remote.is_cancelled
                    self._routing.over(link.name, remote.request_id, outputs, is_cut, at_ns)
        finally:
            self._deliver(emissions)

    def _account(self, remote: SentSequence, account: RemoteAccount | None, emissions: int) -> None:
        """Record the end of a sequence. The second fact is for all that follow sequences, wherever
        these are."""
        ended = remote.accounted(account, emissions)
        self._facts.append(ended)
        self._facts.append(
            SequenceEnded(remote.seq_id, ended.at_ns, 0, ended.reason, remote.outputs, 0)
        )

    def _told(self, link: EngineLink, message: messages.Emitted, at_ns: int) -> None:
        """Where sequences are."""
        for queued in message.queued:
            remote = self._remotes.at(link, queued.seq_id)
            if remote is not None:
                remote.waiting_before = queued.waiting_before
                self._tell(remote.queued(at_ns, queued.constrained))
        for compiled in message.compiled:
            if self._remotes.at(link, compiled.seq_id) is not None:
                took_ns, was_cached = compiled.compile_ns, compiled.cached
                self._tell(
                    GrammarCompiled(
                        compiled.seq_id, at_ns, 0, took_ns, was_cached, compiled.refused
                    )
                )
        for admitted in message.admitted:
            remote = self._remotes.at(link, admitted.seq_id)
            if remote is not None:
                self.split.computed(admitted.seq_id)
                told, recorded = remote.admitted(at_ns, admitted)
                self._tell(told)
                self._facts.append(recorded)

    def _tell(self, fact: SequenceQueued | GrammarCompiled | SequenceAdmitted) -> None:
        queue = self._queues.get(fact.seq_id)
        if queue is not None:
            queue.on_sequence_fact(fact)
