"""Which formats of weights are read, and what multiplies them where."""

from __future__ import annotations

from docs.generate.markdown import table
from service.device.quantization.kept_formats import FILE_FORMATS, WeightsBackend

_HEAD = """# Formats of weights

Written from `service.device.quantization.kept_formats` by `make docs`. What each is, and what it
costs: [Quantised checkpoints](../quantised.md).
"""
_PATHS = """*kept*: it is multiplied in the form that the file has it in, with no wider copy.
*widened*: it becomes floats, which are rounded to `--dtype`. `--weights float` widens everything,
`--weights int8` and `fp8` widen and round again.
"""


def document() -> str:
    return "\n".join(
        [
            _HEAD,
            "## What is read",
            "",
            *table(
                ["format", "of it is read", "what its numbers mean is tested by", "its cost by"],
                [[one.name, one.read, one.meaning_test, one.quality_test] for one in FILE_FORMATS],
            ),
            "",
            "## What multiplies it",
            "",
            _PATHS,
            *table(
                ["format", *(backend.value for backend in WeightsBackend)],
                [
                    [one.name, *(one.path(backend) for backend in WeightsBackend)]
                    for one in FILE_FORMATS
                ],
            ),
            "",
        ]
    )
