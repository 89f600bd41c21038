"""How much is measured: on a GPU, and on the CPU that stands in to show that all of it runs."""

from __future__ import annotations

from dataclasses import dataclass

from service.device.spec import DUMMY_SHAPES
from telemetry.host.roofline import layer_weights

SHAPES = ("llama-8b", "llama-1b", "qwen3-0.6b")  # the most important first


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Back ends are compared on `checks` random batches of rows up to `longest` tokens. Decodes
    are `steps` steps of each of `batches` at each of `contexts`. `sequences` with lengths within
    `bounds` are the workload of lean engines, and transformers gets the first `peer_sequences`
    of them, and `peer_mode_s` for each of its modes. Telemetry is switched `telemetry_pairs` times
    between blocks of `telemetry_steps`. Counters of memory traffic are read `counted_s` apart."""

    device: str
    dtype: str
    attention: str
    shapes: tuple[str, ...]
    checks: int
    longest: int
    tolerance: float
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prefills: tuple[int, ...]
    steps: int
    rows: int
    max_tokens: int
    budget_tokens: int
    copy_mib: int
    flush_mib: int
    matrix: int
    sequences: int
    bounds: tuple[int, int]
    peer_sequences: int
    peer_mode_s: float
    telemetry_shape: str
    telemetry_batches: tuple[int, ...]
    telemetry_context: int
    telemetry_steps: int
    telemetry_pairs: int
    counted_s: float


def on_gpu(shapes: tuple[str, ...], attention: str) -> Sizes:
    return Sizes(
        device="cuda",
        dtype="bfloat16",
        attention=attention,
        shapes=shapes,
        checks=40,
        longest=2000,
        tolerance=1e-2,
        batches=(1, 8, 64, 256),
        contexts=(512, 2048),
        prefills=(512, 2048, 8192),
        steps=60,
        rows=256,
        max_tokens=8200,
        budget_tokens=16_384,
        copy_mib=4096,
        flush_mib=1024,
        matrix=8192,
        sequences=256,
        bounds=(100, 1024),
        peer_sequences=32,
        peer_mode_s=60.0,
        telemetry_shape="llama-1b",
        telemetry_batches=(64, 1),
        telemetry_context=512,
        telemetry_steps=200,
        telemetry_pairs=30,
        counted_s=3.0,
    )


STAND_IN = Sizes(
    device="cpu",
    dtype="float32",
    attention="triton",
    shapes=("tiny",),
    checks=8,
    longest=40,
    tolerance=1e-3,
    batches=(1, 3),
    contexts=(20,),
    prefills=(30,),
    steps=6,
    rows=4,
    max_tokens=256,
    budget_tokens=512,
    copy_mib=8,
    flush_mib=1,
    matrix=128,
    sequences=5,
    bounds=(4, 12),
    peer_sequences=3,
    peer_mode_s=60.0,
    telemetry_shape="tiny",
    telemetry_batches=(3,),
    telemetry_context=8,
    telemetry_steps=6,
    telemetry_pairs=2,
    counted_s=0.2,
)


def billions(shape: str) -> float:
    """Weights that a step reads."""
    model = DUMMY_SHAPES[shape].shape(1, 1)
    return (model.layers * layer_weights(model) + model.vocab * model.hidden) / 1e9
