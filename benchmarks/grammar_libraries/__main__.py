"""Two libraries for constrained decoding, on the default model's tokenizer.

Schemas come from the official JSON-Schema test suite (draft 2020-12), in the source distribution of
the `jsonschema` package. Measured are coverage (schemas that compile), correctness (instances that
are accepted or refused, and random walks under the mask that `jsonschema` validates: an invalid
text is a wrong answer, a valid one that is not allowed only a narrower choice), the first compile
time of a schema, and the time of one mask.

phasescope depends on llguidance only. To repeat the comparison install the rest apart:

    pip download --no-deps --no-binary :all: -d compare jsonschema==4.26.0
    tar -C compare -xf compare/jsonschema-4.26.0.tar.gz
    pip install --no-deps --target compare/xgrammar xgrammar==0.2.8 apache-tvm-ffi
    python -m benchmarks.grammar_libraries \\
        --suite compare/jsonschema-4.26.0/json/tests/draft2020-12 \\
        --xgrammar compare/xgrammar
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.grammar_libraries.checks import Chooser, LibraryResult, check_group
from benchmarks.grammar_libraries.libraries import Llguidance, Xgrammar
from telemetry.numbers.quantiles import quantile

ROOT = Path(__file__).parents[2]
LIBRARIES = ("llguidance", "xgrammar")


def default_tokenizer() -> Any:
    from service.model_files.model_store import ensure_default_model
    from service.text.gguf_tokenizer import gguf_tokenizer

    return gguf_tokenizer(ensure_default_model(lambda line: None))


def groups_of(suite: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(suite.glob("*.json")):
        found += [{"file": path.stem, **group} for group in json.loads(path.read_text())]
    return found


def percentile(values: list[float], share: float) -> float:
    found = quantile(values, share)
    return math.nan if found is None else found


def run_one(name: str, suite: Path) -> dict[str, Any]:
    """The whole measurement of one library, in a process of its own."""
    tokenizer = default_tokenizer()
    vocab = range(tokenizer.vocab_size)
    special = [i for i in vocab if tokenizer.is_special(i)]
    tokens = [tokenizer.token_bytes(i) for i in vocab]
    for module in ("torch", name, "service.device.sampling.grammar"):
        importlib.import_module(module)  # not part of what is timed
    spelling, ends = tokenizer.backend_json(), list(tokenizer.eos_token_ids)
    begin = time.perf_counter()
    kinds = {"llguidance": Llguidance, "xgrammar": Xgrammar}
    library = kinds[name](tokens, special, ends, spelling)
    setup_ms = (time.perf_counter() - begin) * 1e3
    result, chooser = LibraryResult(), Chooser(tokenizer, name)
    for group in groups_of(suite):
        print(f"{group['file']}: {group['description']}", file=sys.stderr)
        check_group(library, group, tokenizer, chooser, result)
    return {
        "library": name,
        "setup_ms": setup_ms,
        "schemas": result.compiled + result.refused,
        "compiled": result.compiled,
        "refused": result.refused,
        "compile_ms_p50": percentile(result.compile_us, 0.5) / 1e3,
        "compile_ms_p99": percentile(result.compile_us, 0.99) / 1e3,
        "mask_us_p50": percentile(result.mask_us, 0.5),
        "mask_us_p99": percentile(result.mask_us, 0.99),
        "masks": len(result.mask_us),
        "valid_accepted": result.valid_accepted,
        "valid_refused": result.valid_refused,
        "invalid_refused": result.invalid_refused,
        "invalid_accepted": result.invalid_accepted,
        "walks_valid": result.walks_valid,
        "walks_invalid": result.walks_invalid,
        "walks_unfinished": result.walks_unfinished,
        "walks_stuck": result.walks_stuck,
        "wrong_by_file": result.wrong,
        "refusals": result.refusals,
    }


def in_process(name: str, suite: Path, folder: Path | None) -> dict[str, Any]:
    """A crash of one library is its result, not the end of the comparison."""
    paths = [str(ROOT), *([str(folder)] if folder else [])]
    command = [sys.executable, "-m", "benchmarks.grammar_libraries"]
    command += ["--suite", str(suite), "--one", name]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        return {"library": name, "failed": done.returncode, "where": done.stderr[-1500:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(results: list[dict[str, Any]]) -> str:
    hidden = ("library", "wrong_by_file", "refusals")
    names = [key for key in results[0] if key not in hidden]
    lines = ["| | " + " | ".join(r["library"] for r in results) + " |"]
    lines.append("|---" * (len(results) + 1) + "|")
    for name in names:
        cells = [r.get(name, math.nan) for r in results]
        shown = [f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--xgrammar", type=Path, help="folder with xgrammar; left out if absent")
    parser.add_argument("--one", choices=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results/grammar_libraries.json"
    )
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run_one(args.one, args.suite)))
        return
    results = [in_process("llguidance", args.suite, None)]
    if args.xgrammar:
        results.append(in_process("xgrammar", args.suite, args.xgrammar))
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps({"suite": "draft2020-12", "results": results}, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
