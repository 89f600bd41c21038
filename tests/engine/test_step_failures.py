"""Why a step failed is told where it fails: memory, a kernel, a rank and an input are told apart,
and nothing of what clients sent is told with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from diagnosis.symptoms import Symptom
from lab.replay.recorded import read_runs
from lab.replay.replay_exact import replay_exactly
from lab.twins.registry import TWINS
from service.device.attention.torch_paged import TorchPagedAttention
from service.device.cache.kv_cache import KvCache, PlainKvCache
from service.device.failures import failure_of, stated_failure
from service.device.inputs import StepInputs
from service.device.models.model import Decoder
from service.device.parallel.ranks import RankFailed
from service.device.quantization.precision import Precision
from service.device.spec import ModelSpec
from service.device.torch_executor import TorchExecutor
from service.device.weights.dummy import DummyWeights
from service.engine.admission import Limits
from service.engine.executor import StepFailed
from service.engine.inbox import Inbox, Submit
from service.engine.limits_record import record_of
from service.engine.loop import EngineLoop
from service.engine.plan import Grammar, GrammarKind, SamplingParams
from service.engine.scheduler import Scheduler
from telemetry.facts.clock import MonotonicClock
from telemetry.facts.engine_records import EngineStarted, SequenceEnded, StepAborted
from telemetry.facts.reasons import EndReason, StepFailure
from telemetry.facts.recorder import Lane
from telemetry.facts.records import Fact
from tests.support.worlds.twins.cases import during, judged_once, top_of, twin

CPU = torch.device("cpu")
BLOCK_TOKENS, BLOCKS = 16, 64
HUGE = 1 << 50  # no machine has so many bytes


class BreakingDecoder:
    """A real decoder whose step number `at` also does `harm`."""

    def __init__(self, harm: Callable[[], object], at: int) -> None:
        attention = TorchPagedAttention(BLOCK_TOKENS, CPU)
        precision = Precision(torch.float32, torch.float32)
        self._whole = Decoder(DummyWeights("tiny"), attention, 256, precision, CPU)
        self._harm, self._at, self._steps = harm, at, 0

    @property
    def spec(self) -> ModelSpec:
        return self._whole.spec

    @property
    def device(self) -> torch.device:
        return CPU

    def forward(self, inputs: StepInputs, cache: KvCache) -> torch.Tensor:
        self._steps += 1
        if self._steps == self._at:
            self._harm()
        return self._whole.forward(inputs, cache)


class Served:
    """A real engine on the CPU, and what came out of it."""

    def __init__(
        self, harm: Callable[[], object] = lambda: None, at: int = 2, knows_vocabulary: bool = True
    ) -> None:
        decoder, clock = BreakingDecoder(harm, at), MonotonicClock()
        cache = PlainKvCache(decoder.spec, BLOCKS, BLOCK_TOKENS, torch.float32, CPU)
        limits = Limits(
            block_tokens=BLOCK_TOKENS, blocks_total=BLOCKS, max_model_tokens=256, max_seqs=4,
            budget_tokens=64, chunked_prefill=True, queue_limit_requests=9, queue_limit_tokens=999,
        )  # fmt: skip
        vocab_tokens = decoder.spec.vocab if knows_vocabulary else None
        self.scheduler = Scheduler(limits, vocab_tokens=vocab_tokens)
        self.inbox, self.lane = Inbox(), Lane()
        executor = TorchExecutor(decoder, cache, clock)
        self.loop = EngineLoop(self.scheduler, executor, self.inbox, self.lane, clock)
        self.ends: dict[int, EndReason] = {}
        self.facts: list[Fact] = []

    def run(self, *submits: Submit) -> None:
        for submit in submits:
            self.inbox.put(submit)
        while len(self.inbox) or self.loop.has_work:
            for emission in self.loop.step():
                if emission.end is not None:
                    self.ends[emission.seq_id] = emission.end
        self.facts += self.lane.drain()
        self.scheduler.check()

    @property
    def aborted(self) -> list[StepAborted]:
        return [fact for fact in self.facts if isinstance(fact, StepAborted)]


def ask(seq_id: int, **changes: object) -> Submit:
    given = {
        "prompt": [20 + seq_id, 21, 22],
        "max_tokens": 4,
        "sampling": SamplingParams(temperature=0.0),
        **changes,
    }
    return Submit(seq_id=seq_id, **given)  # type: ignore[arg-type]


def a_refused_product() -> object:
    return torch.mm(torch.zeros(2, 3), torch.zeros(2, 3))


def a_refused_allocation() -> object:
    return torch.empty(HUGE)


def a_refused_list() -> object:
    return bytearray(HUGE)


@pytest.mark.parametrize(
    ("harm", "failure"),
    [
        (a_refused_product, StepFailure.KERNEL_ERROR),
        (a_refused_allocation, StepFailure.OUT_OF_MEMORY),
        (a_refused_list, StepFailure.OUT_OF_MEMORY),
    ],
)
def test_a_real_error_of_a_step_is_classified_by_its_kind(
    harm: Callable[[], object], failure: StepFailure
) -> None:
    """The fact has the step, the kind, how many it ended, and the error without its numbers."""
    served = Served(harm)
    served.run(ask(0), ask(1))

    (aborted,) = served.aborted
    assert (aborted.failure, aborted.sequences, aborted.step_id) == (failure, 2, 1)
    assert aborted.detail
    assert not any(character.isdigit() for character in aborted.detail)
    assert set(served.ends.values()) == {EndReason.EXECUTOR_ERROR}


def test_an_index_that_the_model_does_not_have_is_an_input_of_a_step() -> None:
    """In an executor that got it unchecked; the fact does not contain the token."""
    served = Served(knows_vocabulary=False)
    served.run(ask(0, prompt=[5, 777_777]))

    (aborted,) = served.aborted
    assert aborted.failure is StepFailure.BAD_INPUT
    assert "777" not in aborted.detail


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": [5, 512]},
        {"prompt": [5, -1]},
        {"stop_token_ids": (512,)},
        {"end_token_ids": (1 << 40,), "min_tokens": 2},
        {"sampling": SamplingParams(temperature=0.0, logit_bias={512: 1.0})},
    ],
    ids=["prompt", "negative", "stop", "end", "bias"],
)
def test_a_token_outside_the_vocabulary_is_refused_and_fails_no_step(
    changes: dict[str, object],
) -> None:
    served = Served()
    served.run(ask(0), ask(1, **changes), ask(2))

    assert served.ends[1] is EndReason.INVALID_TOKEN
    assert {served.ends[0], served.ends[2]} == {EndReason.MAX_TOKENS}
    assert not served.aborted


def test_a_constrained_request_with_such_a_token_does_not_wait_for_its_grammar() -> None:
    served = Served()
    served.run(ask(1, prompt=[600], grammar=Grammar(GrammarKind.JSON_OBJECT, "")))

    assert served.ends == {1: EndReason.INVALID_TOKEN}
    (ended,) = [fact for fact in served.facts if isinstance(fact, SequenceEnded)]
    assert ended.output_tokens == 0


def test_an_error_has_a_failure_kind_only_if_it_states_one() -> None:
    """An engine that ends by an assertion of its own is not a device failure."""
    assert stated_failure(AssertionError("two sequences share a slot")) is None
    assert stated_failure(MemoryError()) is StepFailure.OUT_OF_MEMORY
    assert stated_failure(RankFailed("rank 1 of 2 was ended by signal 9")) is StepFailure.RANK_LOST
    inner = StepFailed.of(3, RuntimeError("no kernel image"), StepFailure.KERNEL_ERROR)
    assert stated_failure(inner) is StepFailure.KERNEL_ERROR


@pytest.mark.parametrize(
    "said",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough memory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "std::bad_alloc",
        "Can not allocate 8 bytes for the tensor",
    ],
)
def test_messages_of_allocators_are_out_of_memory(said: str) -> None:
    assert failure_of(RuntimeError(said)) is StepFailure.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: no kernel image is available for execution on the device",
        "probability tensor contains either `inf`, `nan` or element < 0",
    ],
)
def test_an_error_that_only_mentions_memory_is_not_out_of_memory(said: str) -> None:
    assert failure_of(RuntimeError(said)) is StepFailure.KERNEL_ERROR


@pytest.mark.parametrize(
    ("mechanism", "kind"),
    [("kernel", "kernel_error"), ("rank", "rank_lost"), ("input", "bad_input")],
)
def test_a_diagnosis_names_the_kind_and_never_memory(mechanism: str, kind: str) -> None:
    one = twin("step_failure", mechanism)
    found = judged_once("step_failure", mechanism).verdicts
    said = [diagnosis for diagnosis in during(one, found) if diagnosis.findings]

    assert {top_of(diagnosis) for diagnosis in said} == {"step_failure"}
    finding = said[-1].findings[0]
    assert kind in finding.claim
    assert all(f.symptom is not Symptom.OUT_OF_MEMORY for one in said for f in one.findings)


@pytest.mark.parametrize("mechanism", TWINS["out_of_memory"])
def test_out_of_memory_is_still_diagnosed_as_such(mechanism: str) -> None:
    one = twin("out_of_memory", mechanism)
    found = judged_once("out_of_memory", mechanism).verdicts
    named = {f.symptom for said in during(one, found) for f in said.findings}
    assert Symptom.OUT_OF_MEMORY in named
    assert Symptom.STEP_FAILURE not in named


@pytest.mark.parametrize("mechanism", TWINS["step_failure"])
def test_a_record_with_failed_steps_replays(mechanism: str) -> None:
    assert all(
        replay_exactly(run).holds for run in read_runs(twin("step_failure", mechanism).facts)
    )


def test_a_record_with_a_refused_token_replays() -> None:
    """The replay has no vocabulary, and refuses it all the same."""
    served = Served()
    started = EngineStarted(
        at_ns=MonotonicClock().now_ns(), pid=1, model="m", backend="b", dtype="d",
        pipeline_depth=1, **record_of(served.scheduler.limits),
    )  # fmt: skip
    served.run(ask(0), ask(1, prompt=[600]), ask(2))
    (run,) = read_runs([started, *served.facts])
    assert replay_exactly(run).holds
