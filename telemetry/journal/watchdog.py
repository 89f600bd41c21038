"""Notices an engine that is alive and has work, but commits no step.

Work is a sequence that was submitted, has not ended, and is blocked neither by its client nor by
its grammar, its adapter or another engine, which computes its prompt. The engine may be silent for
three times its longest recent step, but at least for `stall_ns`. A stall is recorded once, as
`StallDetected`; the next committed step ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from telemetry.facts.adapter_records import AdapterEvicted, AdapterLoaded
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    GrammarCompiled,
    SequenceEnded,
    SequencePaused,
    SequenceQueued,
    SequenceResumed,
    SequencesListed,
    StepRecorded,
)
from telemetry.facts.fleet.kv_transfer_records import KvAdmitted, KvLost, KvReserved
from telemetry.facts.reasons import WaitReason
from telemetry.facts.records import EngineDied, Fact, SequenceSubmitted, StallDetected

_IN_FLIGHT_NS = 1_000_000_000
_STEPS = 128
_LONG_STEPS = 3

_GRAMMAR, _ADAPTER = WaitReason.GRAMMAR, WaitReason.ADAPTER
_PAUSE, _KV = WaitReason.CLIENT_PAUSE, WaitReason.REMOTE_KV


class StallWatchdog:
    """A fold on the pump's thread; `check` may be called from any thread.

    `stall_ns` 0 turns it off. `deaths` counts engines that died.
    """

    def __init__(self, stall_ns: int) -> None:
        self.deaths = 0
        self.stalls = 0
        self._stall_ns = stall_ns
        self._pid: int | None = None
        self._last_step_id: int | None = None
        self._last_ns = 0
        self._work: dict[int, int] = {}
        self._blocked: dict[int, set[WaitReason]] = {}  # by each of these
        self._work_since_ns: int | None = None
        self._spans_ns: deque[int] = deque(maxlen=_STEPS)
        self._patience_ns = stall_ns
        self._is_armed = True
        self._take: dict[type, Callable[[Any], None]] = {
            EngineStarted: self._started,
            EngineDied: self._died,
            EngineIdled: self._idled,
            StepRecorded: self._stepped,
            SequenceSubmitted: lambda fact: self._add(fact.seq_id, fact.at_ns),
            SequenceQueued: self._queued,
            SequencePaused: lambda fact: self._block(fact.seq_id, _PAUSE),
            SequenceResumed: lambda fact: self._unblock(fact.seq_id, _PAUSE, fact.at_ns),
            GrammarCompiled: lambda fact: self._unblock(fact.seq_id, _GRAMMAR, fact.at_ns),
            KvReserved: lambda fact: self._block(fact.seq_id, _KV),
            KvAdmitted: lambda fact: self._unblock(fact.seq_id, _KV, fact.at_ns),
            KvLost: lambda fact: self._unblock(fact.seq_id, _KV, fact.at_ns),
            AdapterLoaded: self._adapter_loaded,
            AdapterEvicted: self._adapter_evicted,
            SequenceEnded: lambda fact: self._remove(fact.seq_id),
            SequencesListed: self._listed,
        }

    def on_facts(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            handler = self._take.get(type(fact))
            if handler is not None:
                handler(fact)
        self._work_since_ns = next(iter(self._work.values()), None)
        self._patience_ns = max(self._stall_ns, _LONG_STEPS * max(self._spans_ns, default=0))

    def is_stalled(self, now_ns: int) -> bool:
        """Whether there is a stall that is not recorded yet."""
        since_ns = self._quiet_since_ns()
        return since_ns is not None and self._is_armed and now_ns - since_ns >= self._patience_ns

    def check(self, now_ns: int, loop_silent_ns: int | None = None) -> StallDetected | None:
        """The fact, once for each stall. `loop_silent_ns` is the time since the gateway's event
        loop, which reads the engine's frames, last answered."""
        since_ns = self._quiet_since_ns()
        if since_ns is None or not self.is_stalled(now_ns):
            return None
        self._is_armed = False
        self.stalls += 1
        pid = self._pid
        return StallDetected(
            at_ns=now_ns,
            since_ns=since_ns,
            last_step_id=self._last_step_id,
            sequences=len(self._work),
            engine_pid=pid,
            process_state=None if pid is None else process_state(pid),
            loop_silent_ns=loop_silent_ns,
        )

    def _quiet_since_ns(self) -> int | None:
        work_ns = self._work_since_ns
        if not self._stall_ns or self._pid is None or work_ns is None:
            return None
        return max(work_ns, self._last_ns)

    def _started(self, fact: EngineStarted) -> None:
        self._pid, self._last_ns, self._last_step_id = fact.pid, fact.at_ns, None
        self._is_armed = True
        self._spans_ns.clear()

    def _died(self, fact: EngineDied) -> None:
        self.deaths += 1
        self._pid = None
        self._work.clear()
        self._blocked.clear()

    def _stepped(self, fact: StepRecorded) -> None:
        self._last_step_id, self._last_ns = fact.step_id, fact.committed_ns
        if self._is_armed:  # a step that ended a stall is no measure
            self._spans_ns.append(fact.committed_ns - fact.begin_ns)
        self._is_armed = True

    def _idled(self, fact: EngineIdled) -> None:
        """The engine has no sequence. Drop all, whose terminal facts were lost, but for those that
        may not have reached the engine yet."""
        if fact.running or fact.waiting:
            return
        edge_ns = fact.at_ns - _IN_FLIGHT_NS
        for seq_id in [s for s, since_ns in self._work.items() if since_ns < edge_ns]:
            del self._work[seq_id]
        self._blocked.clear()

    def _listed(self, fact: SequencesListed) -> None:
        for seq_id in fact.over([*self._work, *self._blocked]):
            self._remove(seq_id)

    @property
    def live(self) -> int:
        """Sequences without a known end."""
        return len(self._work) + len(self._blocked)

    def _queued(self, fact: SequenceQueued) -> None:
        if fact.constrained:
            self._block(fact.seq_id, _GRAMMAR)
        if fact.awaits_adapter:
            self._block(fact.seq_id, _ADAPTER)
        self._add(fact.seq_id, fact.at_ns)

    def _add(self, seq_id: int, at_ns: int) -> None:
        if seq_id not in self._blocked:
            self._work.setdefault(seq_id, at_ns)

    def _block(self, seq_id: int, reason: WaitReason) -> None:
        self._work.pop(seq_id, None)
        self._blocked.setdefault(seq_id, set()).add(reason)

    def _unblock(self, seq_id: int, reason: WaitReason, at_ns: int) -> None:
        """The reason is gone. The sequence is work again if it was the last."""
        reasons = self._blocked.get(seq_id)
        if reasons is None:
            return
        reasons.discard(reason)
        if not reasons:
            del self._blocked[seq_id]
            self._work[seq_id] = at_ns

    def _adapter_loaded(self, fact: AdapterLoaded) -> None:
        for seq_id in fact.seq_ids:
            self._unblock(seq_id, _ADAPTER, fact.at_ns)

    def _adapter_evicted(self, fact: AdapterEvicted) -> None:
        for seq_id in fact.seq_ids:
            self._block(seq_id, _ADAPTER)

    def _remove(self, seq_id: int) -> None:
        self._work.pop(seq_id, None)
        self._blocked.pop(seq_id, None)


def process_state(pid: int) -> str | None:
    """The kernel's letter for a process: R running, S sleeping, D waiting for a device, T stopped,
    Z dead. None if the system does not report it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
