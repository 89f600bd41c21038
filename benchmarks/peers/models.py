"""One model in the formats that the peers read, all made from the file that phasescope serves.

The default model is a GGUF file of Q4_1 weights. Dequantised and rounded to bfloat16 it is the
common ground of all servers: exactly the weights with which phasescope computes.

    python -m benchmarks.peers.models [--root FOLDER] [--only hf|gguf|openvino]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.peers.layout import Layout, PeerError, default_root, fail, run, say
from service.config.settings import ConfigError, ModelKind, ModelRef
from service.device.spec import ModelSpec
from service.device.weights.source import open_weights
from service.model_files.gguf_file import GgufFile
from service.model_files.model_store import resolve_model
from service.text.tokenizer import Tokenizer, load_tokenizer

# what the model's published tokenizer makes of digits: each one is a token of its own
_DIGITS = "In 2026 there were 12345 of them, at 3.14159 each."
_LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_FILES = ("model.safetensors", "tokenizer.json", "tokenizer_config.json")


def prepare_hf(layout: Layout) -> None:
    """A folder as transformers writes it, and one like it without an end token."""
    model = resolve_model(None, say)
    folder = layout.hf
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        say(f"writing {folder}: bfloat16 weights dequantised from {Path(model.path).name}")
        source = open_weights(model)
        tokenizer = load_tokenizer(model)
        check_digits(tokenizer)
        _write_weights(source, folder / "model.safetensors")
        _write_tokenizer(tokenizer, folder)
        _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
        _write_json(folder / "config.json", _config(source.spec, end_token_id=2))
    _check_same_tokens(model, folder)
    _write_corpus(layout)
    endless = layout.hf_endless
    endless.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        target = endless / name
        target.unlink(missing_ok=True)
        target.symlink_to(folder / name)
    _write_json(endless / "generation_config.json", {"bos_token_id": 1, "pad_token_id": 2})
    _write_json(endless / "config.json", _config(open_weights(model).spec, end_token_id=None))


def check_digits(tokenizer: Tokenizer) -> None:
    """Raises PeerError when digits are joined: then prompts would differ between servers."""
    pieces = [tokenizer.decode([token_id]) for token_id in tokenizer.encode(_DIGITS)]
    joined = [p for p in pieces if any(c.isdigit() for c in p) and len(p.strip()) > 1]
    if joined:
        raise PeerError(f"the tokenizer joins digits ({joined}); it must split them one by one")


def _check_same_tokens(model: ModelRef, folder: Path) -> None:
    """The folder's tokenizer, read back, gives the tokens that phasescope gives."""
    ours = load_tokenizer(model)
    written = load_tokenizer(ModelRef(kind=ModelKind.HF_FOLDER, path=str(folder), name="written"))
    for text in (_DIGITS, Path(__file__).read_text()):
        if ours.encode(text) != written.encode(text):
            raise PeerError(f"the tokenizer in {folder} differs from ours; delete it")


def _write_corpus(layout: Layout) -> None:
    """Real text for the prompts: the reference of the Python language, which Python carries."""
    if not layout.corpus.is_file():
        layout.corpus.write_text("\n".join(text for _, text in sorted(topics.items())))


def _write_weights(source: Any, path: Path) -> None:
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    names += [f"model.layers.{i}.{p}.weight" for i in range(source.spec.layers) for p in _LAYER]
    if not source.spec.tied_embeddings:
        names.append("lm_head.weight")
    tensors = {name: source.tensor(name).to(torch.bfloat16).contiguous() for name in names}
    save_file(tensors, path, metadata={"format": "pt"})


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    rules = json.loads(tokenizer.backend_json())
    # phasescope turns ids into bytes itself; the others need to be told how
    rules["decoder"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    _write_json(folder / "tokenizer.json", rules)
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<|endoftext|>",
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": tokenizer.chat_template,
    }
    _write_json(folder / "tokenizer_config.json", {**settings, **special})


def _config(spec: ModelSpec, end_token_id: int | None) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": end_token_id,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "initializer_range": 0.02,
        "intermediate_size": spec.ffn,
        "max_position_embeddings": spec.context_tokens,
        "mlp_bias": False,
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": spec.vocab,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def prepare_gguf(layout: Layout) -> None:
    """The Q4_1 file itself, and llama.cpp's own conversions of it to BF16 and Q8_0."""
    if not layout.llama_quantize.is_file():
        raise PeerError("llama-quantize is missing: python -m benchmarks.peers.install llama.cpp")
    layout.models.mkdir(parents=True, exist_ok=True)
    original = layout.gguf("Q4_1")
    if not original.is_file():
        shutil.copyfile(resolve_model(None, say).path, original)
    for kind, source in (("BF16", "Q4_1"), ("Q8_0", "BF16")):
        target = layout.gguf(kind)
        if not target.is_file():
            partial = target.with_suffix(".partial")
            command: list[object] = [layout.llama_quantize, "--allow-requantize"]
            command += [layout.gguf(source), partial, kind]
            run(f"llama-quantize {source} to {kind}", command, layout.logs / f"quantize-{kind}.log")
            partial.rename(target)


def gguf_kinds(path: Path) -> dict[str, int]:
    """Bytes by tensor type: the precision that a GGUF file really has."""
    kinds: dict[str, int] = {}
    for info in GgufFile(path).tensors.values():
        kinds[info.kind.name] = kinds.get(info.kind.name, 0) + info.size_bytes
    return kinds


def prepare_openvino(layout: Layout) -> None:
    """IR with float16 weights, and with int8 weights as the exporter makes them by default."""
    python = layout.python("openvino-export")
    if not python.is_file():
        raise PeerError(
            "the exporter is missing: python -m benchmarks.peers.install openvino-export"
        )
    for weights in ("fp16", "int8"):
        target = layout.openvino(weights)
        if (target / "openvino_model.bin").is_file():
            continue
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        command: list[object] = [
            python.with_name("optimum-cli"),
            "export",
            "openvino",
            "--model",
            layout.hf,
        ]
        command += ["--task", "text-generation-with-past", "--weight-format", weights, partial]
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        run(f"exporting {target.name}", command, layout.logs / f"{target.name}.log", offline)
        partial.rename(target)


_STEPS = {"hf": prepare_hf, "gguf": prepare_gguf, "openvino": prepare_openvino}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.models", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--root", type=Path, default=default_root(), help="where peers live")
    parser.add_argument("--only", choices=_STEPS, help="one format instead of all")
    args = parser.parse_args(arguments)
    layout = Layout(args.root.resolve())
    try:
        for name, step in _STEPS.items():
            if args.only in (None, name):
                step(layout)
    except PeerError as error:
        return fail(error)
    except ConfigError as error:
        return fail(PeerError(str(error)))
    for kind in ("BF16", "Q8_0", "Q4_1"):
        if layout.gguf(kind).is_file():
            say(f"{layout.gguf(kind).name}: {gguf_kinds(layout.gguf(kind))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
