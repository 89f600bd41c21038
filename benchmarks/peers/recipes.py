"""How each server is started and what it computes with: one recipe a row of the table."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.machine import has_bf16
from benchmarks.peers.install import find_allocator
from benchmarks.peers.layout import HERE, HOST, REPOSITORY, Layout

CONTEXT_TOKENS, SLOTS = 2048, 16
_SEQUENCES = 64  # of a batch of ours, by default
OURS = "phasescope"


class Group(StrEnum):
    """Servers that are compared to each other: like weights with like weights."""

    BF16 = "bf16"
    INT8 = "int8"


@dataclass(frozen=True)
class Setup:
    """What all recipes are made from. `bf16` None: what the CPU can do."""

    layout: Layout
    threads: int
    bf16: bool
    phasescope_flags: tuple[str, ...]
    otlp_endpoint: str = ""

    @property
    def dtype(self) -> str:
        """float32 holds bfloat16 weights exactly; without the instructions it is faster."""
        return "bfloat16" if self.bf16 else "float32"


@dataclass(frozen=True)
class Start:
    """A command line, and how its requests differ from those to the others."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    ready: str = "/health"
    model: str | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """One server. `start` takes its port and token budget (None: its default, which is
    `default_budget`, or None if that is no fixed number)."""

    name: str
    group: Group
    default_budget: int | None
    precision: str
    needs: Path
    start: Callable[[int, int | None], Start]

    @property
    def ours(self) -> bool:
        return self.name.startswith(OURS)


def recipes(setup: Setup) -> list[Recipe]:
    """Every server that can take part, whether installed or not."""
    kinds = (("BF16", Group.BF16), ("Q8_0", Group.INT8), ("Q4_1", Group.INT8))
    return [
        _vllm(setup),
        _openvino(setup, "fp16", Group.BF16),
        _llama(setup, *kinds[0]),
        _transformers(setup),
        phasescope(setup, OURS, Group.BF16, ()),
        _openvino(setup, "int8", Group.INT8),
        _llama(setup, *kinds[1]),
        _llama(setup, *kinds[2]),
        phasescope(setup, f"{OURS}-int8", Group.INT8, ("--weights", "int8")),
    ]


def _vllm(setup: Setup) -> Recipe:
    layout = setup.layout
    preload = [find_allocator(layout), layout.venv("vllm") / "lib" / "libiomp5.so"]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.threads - 1}",
        "VLLM_CACHE_ROOT": str(layout.root / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(str(path) for path in preload if path is not None and path.exists()),
    }

    def start(port: int, budget: int | None) -> Start:
        # `vllm serve` looks for a package named vllm, and this one is vllm-cpu
        command = [str(layout.python("vllm")), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(layout.hf), "--served-model-name", "model"]
        command += ["--host", HOST, "--port", str(port), "--dtype", setup.dtype]
        command += ["--max-model-len", str(CONTEXT_TOKENS), "--no-enable-prefix-caching"]
        if budget is not None:
            command += ["--max-num-batched-tokens", str(budget)]
        return Start(command, environment)

    precision = f"weights, compute and KV {setup.dtype}"
    return Recipe("vllm", Group.BF16, 2048, precision, layout.python("vllm"), start)


def _openvino(setup: Setup, weights: str, group: Group) -> Recipe:
    model = setup.layout.openvino(weights)

    def start(port: int, budget: int | None) -> Start:
        command = [str(setup.layout.python("openvino")), str(HERE / "openvino_server.py")]
        command += ["--model", str(model), "--port", str(port), "--threads", str(setup.threads)]
        if setup.bf16:
            command += ["--precision", "bf16"]
        if budget is not None:
            command += ["--max-batched-tokens", str(budget)]
        return Start(command)

    compute = "bf16" if setup.bf16 else "f32"
    stored = "float16" if weights == "fp16" else "int8 (asymmetric, one scale an output)"
    cache = "float16, as exported" if weights == "fp16" else "uint8, the plugin's default"
    precision = f"weights {stored}, compute {compute}, KV {cache}"
    name = "openvino" if weights == "fp16" else "openvino-int8"
    return Recipe(name, group, 256, precision, model / "openvino_model.bin", start)


def _llama(setup: Setup, kind: str, group: Group) -> Recipe:
    model = setup.layout.gguf(kind)

    def start(port: int, budget: int | None) -> Start:
        command = [str(setup.layout.llama_server), "-m", str(model), "--host", HOST]
        command += ["--port", str(port), "-np", str(SLOTS), "-cb"]
        command += ["-c", str(SLOTS * CONTEXT_TOKENS)]
        command += ["-t", str(setup.threads), "-tb", str(setup.threads), "--no-cache-prompt"]
        command += ["--cache-ram", "0", "--no-webui", "--no-cache-idle-slots"]
        if budget is not None:
            command += ["-b", str(budget), "-ub", str(budget)]
        return Start(command, extra_body={"cache_prompt": False})

    computed = {"BF16": "float32 sums", "Q8_0": "int8 products", "Q4_1": "int4 by int8 products"}
    precision = f"weights {kind}, {computed[kind]}, KV float16"
    return Recipe(f"llama.cpp-{kind}", group, 2048, precision, model, start)


def _transformers(setup: Setup) -> Recipe:
    layout = setup.layout

    def start(port: int, budget: int | None) -> Start:
        command = [str(layout.python("transformers").with_name("transformers")), "serve"]
        command += [str(layout.hf_endless), "--continuous-batching", "--device", "cpu"]
        command += ["--dtype", setup.dtype, "--host", HOST, "--port", str(port)]
        # without a bound it takes nine tenths of the machine's memory for its cache
        command += ["--cb-block-size", "256", "--cb-num-blocks", "64"]
        command += ["--cb-max-batch-tokens", str(budget or 512)]
        environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(setup.threads)}
        # it refuses fields that it does not know; its copy of the model has no end token
        body = {"ignore_eos": None, "stream_options": None}
        return Start(command, environment, model=str(layout.hf_endless), extra_body=body)

    precision = f"weights, compute and KV {setup.dtype}"
    needs = layout.python("transformers")
    return Recipe("transformers", Group.BF16, 512, precision, needs, start)


def phasescope(setup: Setup, name: str, group: Group, more: tuple[str, ...]) -> Recipe:
    """Ours, with `more` flags; its `name` begins with OURS."""

    def start(port: int, budget: int | None) -> Start:
        command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port)]
        command += ["--no-prefix-cache", "--otlp-endpoint", setup.otlp_endpoint]
        command += ["--otlp-protocol", "grpc", *setup.phasescope_flags, *more]
        if budget is not None:
            command += ["--max-batched-tokens", str(budget)]
            if budget < _SEQUENCES:  # a step must have room for a token of each
                command += ["--max-num-seqs", str(budget)]
        return Start(command, ready="/ready")

    precision = "as the server itself says, beside its version; every trace exported"
    return Recipe(name, group, None, precision, REPOSITORY / "service", start)


def setup_of(root: Path, threads: int, dtype: str, phasescope_flags: str) -> Setup:
    """`dtype` is auto, bfloat16 or float32."""
    bf16 = has_bf16() if dtype == "auto" else dtype == "bfloat16"
    flags = tuple(shlex.split(phasescope_flags))
    return Setup(Layout(root.resolve()), threads or os.cpu_count() or 1, bf16, flags)
