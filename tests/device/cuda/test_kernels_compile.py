"""Each of our kernels, as it is launched, compiles for a real GPU: Triton's interpreter takes code
that its compiler refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

KERNELS = {
    "add_norm", "attend", "attend_part", "fp8_product_kernel", "gate", "int4_product_kernel",
    "low_rank_down_kernel", "low_rank_up_kernel", "merge_parts", "quantize_tokens_kernel",
    "quantized_product_kernel", "rope_and_write_kv_kernel",
}  # fmt: skip
# of an H100: what one program may have of a multiprocessor
MOST_SHARED_BYTES = 227 << 10


def compiled(*arguments: str) -> list[dict[str, object]]:
    """In a process of its own, where Triton is not interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.support.models.compiled_kernels", *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert found.returncode in (0, 1), found.stderr[-2000:]
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.parametrize("arguments", [(), ("--all",)], ids=["some", "all"])
def test_each_kernel_compiles_as_it_is_launched(arguments: tuple[str, ...]) -> None:
    """`some` is bfloat16 on the shape of one model; `all` is every shape and dtype."""
    rows = compiled(*arguments)

    assert {row["kernel"] for row in rows} == KERNELS
    for row in rows:
        for made in (row[gpu] for gpu in ("A100", "H100") if gpu in row):
            assert isinstance(made, dict)
            assert "error" not in made, row
            assert made["shared_bytes"] <= MOST_SHARED_BYTES, row
