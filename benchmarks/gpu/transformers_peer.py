"""transformers' continuous batching on the same shape and the same sequences, in the best of its
modes that works.

It runs in a process of its own, which has the device to itself. That ends with the first mode
that fails: what is left of the device behind a fault, and threads that never end, are nobody's
basis for the next mode, which gets a new process.

    python -m benchmarks.gpu.transformers_peer TASK   # what `measure` starts; TASK is JSON
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import first_line
from benchmarks.gpu.workload import SequenceSpec, lean_workload
from service.device.spec import DUMMY_SHAPES, ModelSpec

_REPOSITORY = Path(__file__).resolve().parents[2]
_ANSWER = "ANSWER "
_LEAST_S = 15.0  # what a process takes before its first step
_NO_END = -1

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mode:
    """`attention` as this library names it, in `package` if it is not its own. `graphs` and
    `overlap` (its asynchronous batching) None leave the choice to the library."""

    name: str
    attention: str
    graphs: bool | None = None
    overlap: bool | None = None
    package: str | None = None


# the fastest first, by what the library's authors say of them
MODES = (
    Mode("flash-attention-3", "flash_attention_3", True, True, "flash_attn_interface"),
    Mode("flash-attention-2", "flash_attention_2", True, True, "flash_attn"),
    Mode("sdpa, graphs, overlap", "sdpa", True, True),
    Mode("sdpa", "sdpa"),
)


@dataclass(frozen=True, slots=True)
class Task:
    """The first `sequences` of the workload of `of`, `mode_s` for each mode. `cache` are settings
    of its paged cache, empty for the library's own, which fill the device."""

    shape: str
    device: str
    dtype: str
    sequences: int
    of: int
    bounds: tuple[int, int]
    mode_s: float
    cache: dict[str, int] = field(default_factory=dict)
    modes: tuple[str, ...] = ()


def measure(task: Task, limit_s: float) -> dict[str, Any]:
    """Every mode's answer, and the best."""
    end_s = time.monotonic() + limit_s
    answers: dict[str, Answer] = {}
    for mode in MODES:
        if mode.package is not None and importlib.util.find_spec(mode.package) is None:
            answers[mode.name] = _failed(mode.name, f"no module named {mode.package}")
    while left := [mode.name for mode in MODES if mode.name not in answers]:
        left_s = end_s - time.monotonic()
        if left_s < _LEAST_S:
            answers |= {name: _failed(name, "no time is left") for name in left}
        else:
            answers |= _asked_of_process(task, left, left_s)
    worked = [answer for answer in answers.values() if "tokens_per_s" in answer]
    return {
        "transformers": importlib.metadata.version("transformers"),
        "sequences": task.sequences,
        "of": task.of,
        "modes": [answers[mode.name] for mode in MODES],
        "best": max(worked, key=lambda answer: float(answer["tokens_per_s"]), default=None),
    }


def _asked_of_process(task: Task, modes: Sequence[str], limit_s: float) -> dict[str, Answer]:
    """At least one answer: that of the first mode, if only why there is none."""
    body = json.dumps(asdict(task) | {"modes": modes})
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.transformers_peer", body],
        cwd=_REPOSITORY,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        said += "\nit had to be killed: no time is left"
    return answers_in(said, modes[0])


def answers_in(said: str, first: str) -> dict[str, Answer]:
    """What a process has answered; of one that died without an answer, its last line."""
    lines = [line for line in said.splitlines() if line.strip()]
    found = [json.loads(line[len(_ANSWER) :]) for line in lines if line.startswith(_ANSWER)]
    if not found:
        found = [_failed(first, lines[-1].strip() if lines else "it ended without a word")]
    return {answer["mode"]: answer for answer in found}


def _failed(mode: str, why: str) -> Answer:
    return {"mode": mode, "error": why}


# --- in the process of its own -----------------------------------------------------------


def accepted(call: Callable[..., Any], **wanted: Any) -> dict[str, Any]:
    """The arguments that this version of the library takes; some came, some were renamed."""
    known = inspect.signature(call).parameters
    return {name: value for name, value in wanted.items() if name in known}


def build(task: Task) -> Any:
    """Random weights, drawn on the device."""
    import torch
    from transformers import AutoModelForCausalLM

    spec = DUMMY_SHAPES[task.shape]
    with torch.device(task.device):
        model = AutoModelForCausalLM.from_config(config_of(spec), dtype=getattr(torch, task.dtype))
    return model.to(task.device).eval()


def config_of(spec: ModelSpec) -> Any:
    """Positions are rotated without stretching, which costs the same."""
    from transformers import LlamaConfig, Qwen3Config

    return {"llama": LlamaConfig, "qwen3": Qwen3Config}[spec.family](
        vocab_size=spec.vocab,
        hidden_size=spec.hidden,
        intermediate_size=spec.ffn,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.context_tokens,
        rms_norm_eps=spec.norm_eps,
        tie_word_embeddings=spec.tied_embeddings,
    )


def run_mode(model: Any, mode: Mode, task: Task, asked: Sequence[SequenceSpec]) -> Answer:
    """Timed behind the library's own warm-up and two short sequences. Raises whatever it raises."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    settings = accepted(
        ContinuousBatchingConfig,
        use_cuda_graph=mode.graphs,
        use_async_batching=mode.overlap,
        max_requests_per_batch=len(asked),
        auto_switch_to_flash=False,
        **task.cache,
    )
    # versions that cannot be told to stay with an attention take its paged form by another name
    stays = "auto_switch_to_flash" in settings
    model.set_attn_implementation(mode.attention if stays else f"paged|{mode.attention}")
    serving = accepted(
        model.continuous_batching_context_manager,
        generation_config=GenerationConfig(do_sample=False, eos_token_id=_NO_END),
        continuous_batching_config=ContinuousBatchingConfig(**settings),
        timeout=5.0,
        warmup=True,
        workload_hints=_hints(asked),
    )
    end_s = time.perf_counter() + task.mode_s
    with model.continuous_batching_context_manager(**serving) as manager:
        few = [SequenceSpec(one.prompt[::-1], 2) for one in asked[:2]]
        _generated(manager, few, "warm", end_s)
        begin_s = time.perf_counter()
        tokens = _generated(manager, asked, "timed", end_s)
        wall_s = time.perf_counter() - begin_s
        chosen = getattr(manager, "continuous_batching_config", None)
        attention = model.config._attn_implementation
    wanted = sum(one.output_tokens for one in asked)
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens came, {wanted} were asked for")
    return {
        "mode": mode.name,
        "attention": attention,
        "graphs": getattr(chosen, "use_cuda_graph", None),
        "overlap": getattr(chosen, "use_async_batching", None),
        "output_tokens": tokens,
        "s": wall_s,
        "tokens_per_s": tokens / wall_s,
    }


def _hints(asked: Sequence[SequenceSpec]) -> Any:
    """What its `generate_batch` tells of the work; None where this version has no such thing."""
    try:
        from transformers.generation.continuous_batching.utils import WorkloadHints
    except ImportError:
        return None
    return WorkloadHints(
        max_prompt_length=max(len(one.prompt) for one in asked),
        max_generated_length=max(one.output_tokens for one in asked),
        num_requests=len(asked),
    )


def _generated(manager: Any, asked: Sequence[SequenceSpec], label: str, end_s: float) -> int:
    """Tokens that came, of all sequences together."""
    for number, one in enumerate(asked):
        manager.add_request(
            one.prompt, request_id=f"{label} {number}", max_new_tokens=one.output_tokens
        )
    return sum(len(tokens) for tokens in _outputs(manager, len(asked), end_s))


def _outputs(manager: Any, count: int, end_s: float) -> Iterator[list[int]]:
    done = 0
    while done < count:
        if time.perf_counter() > end_s:
            raise TimeoutError(f"{done} of {count} sequences were done when its time was over")
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("its thread has ended")
        elif result.error is not None:
            raise RuntimeError(result.error)
        elif result.is_finished():
            done += 1
            yield result.generated_tokens


def main() -> int:
    body = json.loads(sys.argv[1])
    task = Task(**body | {"bounds": tuple(body["bounds"])})
    spec = DUMMY_SHAPES[task.shape]
    asked = lean_workload(spec.vocab, task.of, task.bounds)[: task.sequences]
    model = None
    for mode in (mode for mode in MODES if mode.name in task.modes):
        try:
            model = build(task) if model is None else model
            answer = run_mode(model, mode, task, asked)
        except Exception as error:
            answer = _failed(mode.name, first_line(error))
        print(f"\n{_ANSWER}{json.dumps(answer)}", flush=True)
        if "error" in answer:
            os._exit(1)  # a thread of its own may never end
    return 0


if __name__ == "__main__":
    sys.exit(main())
