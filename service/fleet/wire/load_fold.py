"""How loaded an engine is, as gateways are told: a fold over the engine's facts. Pure. Nodes and
simulated engines (`lab.fleet`) have this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import asdict

from service.engine.inbox import SetStepCost
from service.engine.planning.budget import RECENT_STEPS, drift_of
from service.fleet.wire.messages import EngineLoad
from telemetry.costs.step_load import load_of_step
from telemetry.facts.engine_records import (
    EngineIdled,
    EngineStarted,
    LimitsSet,
    SequenceAdmitted,
    SequenceEnded,
    SequenceQueued,
    SequencesListed,
    StepCostSet,
    StepRecorded,
)
from telemetry.facts.fleet.kv_transfer_records import (
    KvAdmitted,
    KvLost,
    KvRefused,
    KvReleased,
    KvReserved,
)
from telemetry.facts.reasons import FactSource
from telemetry.facts.records import Fact, FactsLost

_LEARNED = 1 / 32
"""Weight of one more admission in the share of hits."""
_NOT_OF_THE_COST = {"at_ns", "step_id"}


class LoadFold:
    """Takes each frame's facts, and what was sent to the engine. The queue is counted from
    sequences that came and went: an engine that is busy with a long step records no step. What of
    waiting prompts is in the prefix cache is known when they are admitted; until then they are
    taken to have as much as the last ones. A prompt that another engine computes is none that waits
    here, unless its KV does not come; the blocks that it is written into count as used."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of the engine."""
        self._waiting: dict[int, int] = {}  # tokens to be computed of each
        self._elsewhere: dict[int, int] = {}  # tokens of each whose KV is to come
        self._reserved: dict[int, int] = {}  # blocks in quarantine of each transfer
        self._prompts: dict[int, int] = {}  # running: tokens still to be computed
        self._contexts: dict[int, int] = {}  # running: tokens that it has
        self._targets: dict[int, int] = {}  # live: its own inter-token target
        self._hit_share = 0.0
        self._blocks_used = self._blocks_total = self._max_seqs = self._budget_tokens = 0
        self._target_ns: int | None = None
        self._is_auto = self._is_chunked = False
        self._cost: StepCostSet | None = None
        self._fitted: SetStepCost | None = None
        self._steps: deque[StepRecorded] = deque(maxlen=RECENT_STEPS)

    def take(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            match fact:
                case StepRecorded():
                    self._step(fact)
                case SequenceQueued():
                    self._queued(fact)
                case KvRefused() | KvLost():
                    self._computed_here(fact.seq_id)
                case KvReserved():
                    self._reserved[fact.epoch] = fact.blocks
                case KvAdmitted() | KvReleased():
                    self._reserved.pop(fact.epoch, None)
                case SequenceAdmitted():
                    self._admitted(fact)
                case SequenceEnded():
                    self._over(fact.seq_id)
                case SequencesListed():  # the ends of some may have been lost
                    for seq_id in fact.over([*self._waiting, *self._contexts]):
                        self._over(seq_id)
                case FactsLost() if fact.source is FactSource.ENGINE:
                    self._reserved.clear()  # releases may be among them
                case EngineIdled():
                    self._blocks_used = fact.blocks_used
                case EngineStarted():
                    self._started(fact)
                case LimitsSet():
                    limits = fact.limits
                    self._max_seqs, self._budget_tokens = limits.max_seqs, limits.budget_tokens
                    self._target_ns, self._is_auto = limits.itl_target_ns, limits.auto_budget
                case StepCostSet():
                    self._cost = fact
                    terms = {k: v for k, v in asdict(fact).items() if k not in _NOT_OF_THE_COST}
                    self._fitted = SetStepCost(**terms)
                case _:
                    pass

    def _started(self, fact: EngineStarted) -> None:
        self._forget()
        self._blocks_total, self._max_seqs = fact.blocks_total, fact.max_seqs
        self._budget_tokens, self._target_ns = fact.budget_tokens, fact.itl_target_ns
        self._is_auto, self._is_chunked = fact.auto_budget, fact.chunked_prefill

    def _over(self, seq_id: int) -> None:
        for known in (
            self._waiting, self._elsewhere, self._prompts, self._contexts, self._targets
        ):  # fmt: skip
            known.pop(seq_id, None)

    def submitted(self, seq_id: int, prompt_tokens: int, receives_kv: bool) -> None:
        """A sequence was sent to the engine, which reads it when its step is over: it waits there
        from now on, or the engine would look idle in a long step."""
        self._waiting[seq_id] = 0 if receives_kv else prompt_tokens
        if receives_kv:
            self._elsewhere[seq_id] = prompt_tokens

    def _queued(self, fact: SequenceQueued) -> None:
        self.submitted(fact.seq_id, fact.prompt_tokens, fact.receives_kv > 0)
        if fact.itl_target_ns is not None:
            self._targets[fact.seq_id] = fact.itl_target_ns

    def _computed_here(self, seq_id: int) -> None:
        """No KV comes for a sequence, or it has given it up."""
        tokens = self._elsewhere.pop(seq_id, None)
        if tokens is not None:
            self._waiting[seq_id] = tokens

    def _admitted(self, fact: SequenceAdmitted) -> None:
        self._waiting.pop(fact.seq_id, None)
        self._elsewhere.pop(fact.seq_id, None)
        if fact.received_tokens:
            self._prompts[fact.seq_id] = 0
            self._contexts[fact.seq_id] = fact.hit_tokens + fact.received_tokens
            return  # what it had in the cache says little of prompts that are computed here
        self._prompts[fact.seq_id] = max(0, fact.known_tokens - fact.hit_tokens)
        self._contexts[fact.seq_id] = fact.hit_tokens
        share = fact.hit_tokens / max(1, fact.known_tokens)
        self._hit_share += _LEARNED * (share - self._hit_share)

    def _step(self, step: StepRecorded) -> None:
        self._steps.append(step)
        self._blocks_used = step.blocks_used
        for seq_id in step.preempted:
            self._prompts.pop(seq_id, None)
            self._waiting[seq_id] = self._contexts.pop(seq_id, 0)
        for row in step.rows:
            seq_id = row.seq_id
            if seq_id not in self._contexts:
                continue  # it has ended
            self._contexts[seq_id] = row.context_tokens + row.tokens
            left = self._prompts[seq_id] - row.tokens if row.is_prefill else 0
            self._prompts[seq_id] = max(0, left)

    def load(self) -> EngineLoad:
        """The load of the engine as of the last fact."""
        waiting_tokens = sum(self._waiting.values()) * (1.0 - self._hit_share)
        decoding = [seq_id for seq_id, left in self._prompts.items() if not left]
        used = self._blocks_used + sum(self._reserved.values())  # each as of its last fact
        return EngineLoad(
            running=len(self._contexts),
            waiting=len(self._waiting),
            prompt_tokens=round(waiting_tokens) + sum(self._prompts.values()),
            decode_rows=len(decoding),
            context_tokens=sum(self._contexts[seq_id] for seq_id in decoding),
            blocks_used=min(self._blocks_total, used),
            blocks_total=self._blocks_total,
            max_seqs=self._max_seqs,
            budget_tokens=self._budget_tokens,
            target_ns=self._tightest_ns(),
            cost=self._cost,
            drift=self._drift(),
        )

    def _tightest_ns(self) -> int | None:
        """The target that bounds steps with prompts; None: the budget does."""
        if not self._is_chunked:
            return None
        if self._target_ns is not None:
            return self._target_ns
        own = (ns for seq_id, ns in self._targets.items() if seq_id in self._contexts)
        return min(own, default=None) if self._is_auto else None

    def _drift(self) -> float:
        """How much longer than by the fit the last steps took, as the engine's own budget has
        it."""
        steps = [(load_of_step(s), s.sample_ns - s.forward_ns - s.score_ns) for s in self._steps]
        return drift_of(self._fitted, [one for one in steps if one[1] > 0])
