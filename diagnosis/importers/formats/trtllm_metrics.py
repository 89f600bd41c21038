"""TensorRT-LLM's iteration statistics: saved answers of its `/metrics`, as JSON arrays or lines.

Time is that of the steps themselves, one after another: pauses between them are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from diagnosis.importers.formats.json_lines import ns_of_ms, sure_count
from diagnosis.importers.of_steps import StepRecord
from diagnosis.importers.reading import Newest, Progress, Tally, lines, whole
from diagnosis.importers.records import StepSeen


class _Batch(msgspec.Struct, frozen=True):
    numContextRequests: int = 0  # noqa: N815
    numCtxTokens: int = 0  # noqa: N815
    numGenRequests: int = 0  # noqa: N815
    numPausedRequests: int = 0  # noqa: N815


class _Blocks(msgspec.Struct, frozen=True):
    usedNumBlocks: int = 0  # noqa: N815
    maxNumBlocks: int = 0  # noqa: N815


class _Iteration(msgspec.Struct, frozen=True):
    inflightBatchingStats: _Batch  # noqa: N815
    hostStepTimeMS: float | None = None  # noqa: N815
    iterLatencyMS: float | None = None  # noqa: N815
    gpuForwardTimeMS: float | None = None  # noqa: N815
    prevDeviceStepTimeMS: float | None = None  # noqa: N815
    numQueuedRequests: int = 0  # noqa: N815
    attentionDpRank: int = 0  # noqa: N815
    kvCacheStats: _Blocks | None = None  # noqa: N815


_DECODER = msgspec.json.Decoder(list[_Iteration] | _Iteration)


def read(paths: Sequence[Path], tally: Tally, progress: Progress) -> StepRecord:
    """Raises NotImportable."""
    kept: Newest[StepSeen] = Newest()
    at_ns: dict[int, int] = {}
    for one in _iterations(paths, tally, progress):
        try:
            step = _step(one, at_ns.get(one.attentionDpRank, 0))
        except (ValueError, OverflowError) as error:
            tally.refuse(str(error))
        else:
            at_ns[one.attentionDpRank] = step.at_ns
            kept.add(step)
            tally.read += 1
    tally.dropped = kept.dropped
    return StepRecord(kept.all(), is_whole=False)


def _iterations(paths: Sequence[Path], tally: Tally, progress: Progress) -> Iterator[_Iteration]:
    """The iterations of all lines; of a file without a line that can be read, of its whole text as
    one array."""
    for path in paths:
        found, refused = 0, Tally()
        for line in lines([path], refused, progress):
            try:
                batch = _DECODER.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                refused.refuse(str(error))
                continue
            for one in batch if isinstance(batch, list) else [batch]:
                found += 1
                yield one
        if not found and refused.unread > 1:
            try:
                batch = _DECODER.decode(whole(path))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            else:
                yield from batch if isinstance(batch, list) else [batch]
                continue
        tally.unread += refused.unread
        tally.first_unread = tally.first_unread or refused.first_unread


def _step(one: _Iteration, at_ns: int) -> StepSeen:
    """Raises ValueError, OverflowError."""
    host = one.iterLatencyMS if one.hostStepTimeMS is None else one.hostStepTimeMS
    device = one.prevDeviceStepTimeMS if one.gpuForwardTimeMS is None else one.gpuForwardTimeMS
    length_ns = ns_of_ms(host, "hostStepTimeMS")
    if length_ns is None:
        raise ValueError("neither hostStepTimeMS nor iterLatencyMS")
    batch, blocks = one.inflightBatchingStats, one.kvCacheStats
    usage = None
    if blocks is not None and blocks.maxNumBlocks > 0:
        usage = min(1.0, max(0.0, blocks.usedNumBlocks / blocks.maxNumBlocks))
    return StepSeen(
        at_ns=at_ns + max(1, length_ns),
        length_ns=length_ns,
        prompt_rows=sure_count(batch.numContextRequests, "numContextRequests"),
        prompt_tokens=sure_count(batch.numCtxTokens, "numCtxTokens"),
        decode_rows=sure_count(batch.numGenRequests, "numGenRequests"),
        waiting=sure_count(one.numQueuedRequests, "numQueuedRequests"),
        preempted=sure_count(batch.numPausedRequests, "numPausedRequests"),
        worker=str(one.attentionDpRank),
        device_ns=ns_of_ms(device, "gpuForwardTimeMS"),
        kv_usage=usage,
    )
