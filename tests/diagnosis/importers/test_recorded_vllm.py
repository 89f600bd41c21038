"""What spans and scrapes of a real vLLM 0.32.0 say, sound and with faults that were injected.

Written by `python -m benchmarks.importers.record_vllm` on two shared cores, and cut by
`python -m benchmarks.importers.trim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from diagnosis.importers.formats.vllm_otlp import SPAN
from diagnosis.importers.kinds import KINDS, Certainty, Kind
from diagnosis.importers.registry import diagnose_files
from diagnosis.importers.verdict import ImportedDiagnosis
from diagnosis.symptoms import Symptom as Cause
from tests.diagnosis.importers.written import RECORDED, diagnose, read, silent

METRICS, SPANS = (Kind.VLLM_METRICS, "prom"), (Kind.VLLM_OTLP, "otlp.jsonl")


def of(name: str, kind: tuple[Kind, str]) -> ImportedDiagnosis:
    return diagnose(kind[0], RECORDED / f"vllm_{name}.{kind[1]}.gz")


def named(found: ImportedDiagnosis) -> dict[Cause, Certainty]:
    return {one.symptom: one.certainty for one in found.findings}


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("slots_queue_overload", METRICS, {Cause.QUEUE_OVERLOAD: Certainty.MEASURED}),
        ("slots_queue_overload", SPANS, {Cause.QUEUE_OVERLOAD: Certainty.LIKELY}),
        ("wide_long_prompts", METRICS, {Cause.PREFILL_INTERFERENCE: Certainty.LIKELY}),
        ("wide_long_prompts", SPANS, {Cause.PREFILL_INTERFERENCE: Certainty.LIKELY}),
        ("wide_prefix_cache_cold", METRICS, {Cause.PREFIX_CACHE_COLD: Certainty.MEASURED}),
        (
            "blocks_kv_thrash", METRICS,
            {Cause.KV_EXHAUSTION: Certainty.MEASURED, Cause.KV_THRASH: Certainty.COUNTED},
        ),
        ("blocks_sound_1", METRICS, {}),
        ("blocks_sound_1", SPANS, {}),
        ("wide_sound_3", METRICS, {}),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_certainty(
    name: str, kind: tuple[Kind, str], expected: dict[Cause, Certainty]
) -> None:
    """Just that, and nothing where nothing was injected."""
    assert named(of(name, kind)) == expected


def test_spans_cannot_tell_blocks_from_slots() -> None:
    """Without the use of the cache a queue for blocks looks like one for slots, and says so."""
    (found,) = of("blocks_kv_thrash", SPANS).findings

    assert found.symptom is Cause.QUEUE_OVERLOAD
    assert Cause.KV_EXHAUSTION in found.open_to


def test_spans_cannot_tell_a_cold_cache_and_do_not_guess() -> None:
    """Late beside prompts that are as long as before: one of several causes."""
    found = of("wide_prefix_cache_cold", SPANS)

    assert found.verdict == "undecided"
    assert all(Cause.PREFIX_CACHE_COLD in one.causes or Cause.OVERSIZED_BATCH in one.causes
               for one in found.undecided)  # fmt: skip


def test_a_machine_that_others_use_is_undecided() -> None:
    """The cores were contended for half a minute: slow tokens, and no metric says why."""
    found = of("wide_sound_1", METRICS)

    assert found.verdict == "undecided"
    assert Cause.CPU_STARVATION in found.undecided[0].causes


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.gz")), ids=lambda path: path.stem)
def test_a_real_record_holds_what_its_kind_promises(path: Path) -> None:
    """All of it is read, and nothing that the table of kinds says is missing."""
    kind = Kind.VLLM_METRICS if ".prom" in path.name else Kind.VLLM_OTLP

    found = diagnose(kind, path)

    assert found.unread == 0
    assert read(kind, path).seen == KINDS[kind].seen


def test_the_window_can_be_given() -> None:
    """The last stretch compared with the first, in seconds before the end."""
    path = RECORDED / "vllm_blocks_kv_thrash.prom.gz"

    found = diagnose_files(Kind.VLLM_METRICS, [path], silent, ((300, 0), (460, 440)))

    assert Cause.KV_THRASH in named(found)
    assert found.now == ((160.0, 460.0),) or found.now[0][0] == pytest.approx(159.9, abs=1)


def test_spans_of_a_collector_in_protobuf_say_the_same(tmp_path: Path) -> None:
    """With the length before each message, as its file exporter writes them, and as one message."""
    source = RECORDED / "vllm_slots_queue_overload.otlp.jsonl.gz"
    messages = protobuf_of(source)
    framed, plain = tmp_path / "framed.binpb", tmp_path / "plain.binpb"
    framed.write_bytes(b"".join(len(one).to_bytes(4, "big") + one for one in messages))
    plain.write_bytes(b"".join(messages))  # messages of protobuf merge

    expected = diagnose(Kind.VLLM_OTLP, source)

    assert expected == diagnose(Kind.VLLM_OTLP, framed) == diagnose(Kind.VLLM_OTLP, plain)


def test_an_export_of_jaeger_says_the_same(tmp_path: Path) -> None:
    source = RECORDED / "vllm_slots_queue_overload.otlp.jsonl.gz"
    exported = tmp_path / "jaeger.json"
    exported.write_bytes(jaeger_of(source))

    found, expected = diagnose(Kind.VLLM_OTLP, exported), diagnose(Kind.VLLM_OTLP, source)

    assert (found.records, named(found)) == (expected.records, named(expected))


def protobuf_of(source: Path) -> Sequence[bytes]:
    import gzip

    from google.protobuf.json_format import Parse
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    lines = gzip.decompress(source.read_bytes()).splitlines()
    return [Parse(line, TracesData()).SerializeToString() for line in lines]


def jaeger_of(source: Path) -> bytes:
    """As the "Trace JSON" of Jaeger's page and its HTTP API have it."""
    import gzip
    import json

    spans = []
    for line in gzip.decompress(source.read_bytes()).splitlines():
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            tags = []
            for one in span["attributes"]:
                ((kind, value),) = one["value"].items()
                number = int(value) if kind == "intValue" else value
                tags.append({"key": one["key"], "type": "float64", "value": number})
            spans.append({
                "traceID": span["traceId"], "operationName": SPAN,
                "startTime": int(span["startTimeUnixNano"]) // 1000, "duration": 5, "tags": tags,
            })  # fmt: skip
    return json.dumps({"data": [{"traceID": "1", "spans": spans, "processes": {}}]}).encode()
