"""What a bench is told, and what load it makes of it: specs, arrivals, lengths, prompts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.load.aggregator import latency_of
from lab.load.http import parse_url
from lab.load.parse import lengths_text, parse_arrivals, parse_class, parse_lengths
from lab.load.spec import (
    BenchSpec,
    ClassSpec,
    Endpoint,
    Fixed,
    Interval,
    Lengths,
    LongTail,
    Poisson,
    PromptForm,
    SharedPrefix,
    ShareGpt,
    Slo,
    TailShape,
    Trace,
    Uniform,
    Users,
    validate,
)
from lab.load.sweep import Over, SweepSpec, find_knee
from lab.load.workload import sharegpt
from lab.load.workload.arrivals import Due, due_times, read_trace, streams_of
from lab.load.workload.lengths import draw, lengths_rng, longest
from lab.load.workload.prompts import PromptMaker
from service.config.settings import ConfigError
from telemetry.numbers.hdr import DIGITS, HIGHEST_US, LOWEST_US, Recorder
from telemetry.numbers.quantiles import quantile

counts = st.integers(1, 3000)
bounds = st.tuples(counts, counts).map(lambda pair: tuple(sorted(pair)))
lengths_of_any_kind = st.one_of(
    st.builds(Fixed, counts, counts),
    st.builds(lambda p, o: Uniform(*p, *o), bounds, bounds),
    st.builds(ShareGpt, counts, counts),
    st.builds(SharedPrefix, counts, counts, counts),
    st.builds(lambda s, p, o: LongTail(s, *p, *o), st.sampled_from(TailShape), bounds, bounds),
)


@given(lengths_of_any_kind)
def test_lengths_are_written_as_they_are_read(lengths: Lengths) -> None:
    assert parse_lengths(lengths_text(lengths)) == lengths


@given(lengths_of_any_kind, st.integers(0, 1 << 32))
def test_drawn_lengths_keep_their_bounds_and_repeat_with_their_seed(
    lengths: Lengths, seed: int
) -> None:
    one, other = lengths_rng(seed, 0), lengths_rng(seed, 0)
    for _ in range(20):
        prompt, output = draw(lengths, one)
        assert (prompt, output) == draw(lengths, other)
        assert min(prompt, output) >= 1
        assert prompt + output <= longest(lengths)
        if isinstance(lengths, LongTail | Uniform):
            assert lengths.prompt_low <= prompt <= lengths.prompt_high
            assert lengths.output_low <= output <= lengths.output_high


def test_sharegpt_lengths_have_the_means_that_their_description_states() -> None:
    rng = np.random.default_rng(1)
    drawn = np.array([sharegpt.draw(rng) for _ in range(20_000)])
    prompt_mean, output_mean = drawn.mean(axis=0)

    assert prompt_mean == pytest.approx(226, rel=0.03)
    assert output_mean == pytest.approx(198, rel=0.03)
    assert np.median(drawn[:, 0]) == pytest.approx(68, rel=0.06)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03, "prompt and output are independent"


@pytest.mark.parametrize("shape", TailShape)
def test_a_long_tail_is_mostly_short(shape: TailShape) -> None:
    rng = np.random.default_rng(1)
    drawn = [draw(LongTail(shape, 16, 4096, 8, 512), rng)[0] for _ in range(5000)]

    assert np.median(drawn) < np.mean(drawn) * 0.7
    assert max(drawn) > 2048


def offsets(spec: BenchSpec, number: int) -> list[Due]:
    (stream,) = streams_of(spec)
    return list(itertools.islice(due_times(stream, spec), number))


@given(st.floats(0.01, 10_000), st.integers(1, 8), st.integers(0, 1 << 32))
def test_poisson_arrivals_are_ordered_seeded_and_come_in_their_bursts(
    rate: float, burst: int, seed: int
) -> None:
    spec = BenchSpec(arrivals=Poisson(rate, burst), seed=seed, duration_s=1)
    dues = offsets(spec, 8 * burst)

    assert dues == offsets(spec, 8 * burst)
    moments = [due.offset_ns for due in dues]
    assert moments == sorted(moments)
    assert all(len(set(moments[i : i + burst])) == 1 for i in range(0, len(moments), burst))


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    spec = BenchSpec(arrivals=Poisson(50.0), duration_s=1)
    gaps = np.diff([due.offset_ns for due in offsets(spec, 20_000)]) / 1e9

    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)


def test_an_interval_is_kept_exactly_without_drift() -> None:
    spec = BenchSpec(arrivals=Interval(0.1, 2), duration_s=1)

    moments = [due.offset_ns for due in offsets(spec, 2000)]

    assert moments == [n * 100_000_000 for n in range(1, 1001) for _ in range(2)]


def test_common_arrivals_are_shared_by_weight() -> None:
    classes = (ClassSpec(name="a", weight=3.0), ClassSpec(name="b", weight=1.0))
    spec = BenchSpec(classes=classes, arrivals=Poisson(10.0), duration_s=1)

    shares = np.mean([due.class_index for due in offsets(spec, 8000)])

    assert shares == pytest.approx(0.25, abs=0.02)


def test_a_trace_is_replayed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [(30.5, 7, 2, "b"), (0, 5, 1, "a"), (40, 9, 3, None)]
    path.write_text(
        "\n".join(
            json.dumps({"at_ms": at, "prompt_tokens": p, "max_tokens": m, "class": name})
            for at, p, m, name in lines
        )
    )
    classes = (ClassSpec(name="a", weight=1e-9), ClassSpec(name="b"))
    spec = BenchSpec(classes=classes, arrivals=Trace(str(path)))
    validate(spec)

    assert offsets(spec, 9) == [
        Due(0, 0, (5, 1)),
        Due(30_500_000, 1, (7, 2)),
        Due(40_000_000, 1, (9, 3)),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        '{"at_ms": 0}',
        '{"at_ms": -1, "prompt_tokens": 1, "max_tokens": 1}',
        '{"at_ms": 1e999, "prompt_tokens": 1, "max_tokens": 1}',
        '{"at_ms": 0, "prompt_tokens": 0, "max_tokens": 1}',
    ],
)
def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at_ms": 0, "prompt_tokens": 1, "max_tokens": 1}\n' + line)

    with pytest.raises(ConfigError, match=r"trace\.jsonl:2"):
        read_trace(path)


def test_a_class_says_everything_about_itself() -> None:
    text = "a:lengths=shared-prefix:512+64/8,interval_s=2,burst=3,requests=9,weight=2,itl_ms=40"

    assert parse_class(text) == ClassSpec(
        name="a",
        lengths=SharedPrefix(512, 64, 8),
        arrivals=Interval(2.0, 3),
        requests=9,
        weight=2.0,
        slo=Slo(itl_ms=40.0),
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("users=3", "NAME:key=value"),
        (":users=3", "NAME:key=value"),
        ("a:", "key=value"),
        ("a:users", "key=value"),
        ("a:user=3", "not known"),
        ("a:users=3,users=4", "twice"),
        ("a:users=three", "whole number"),
        ("a:rate=fast", "must be a number"),
        ("a:rate=nan", "finite"),
        ("a:rate=1,users=2", "choose one of"),
        ("a:burst=2", "burst needs"),
        ("a:lengths=64", "PROMPT/OUTPUT"),
        ("a:lengths=long-tail:cauchy:1-2/1-2", "long-tail:lognormal"),
    ],
)
def test_a_malformed_class_is_told_what_to_write(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_class(text)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (BenchSpec(), "has no arrivals"),
        (BenchSpec(arrivals=Users(1)), "never end"),
        (BenchSpec(arrivals=Users(0), requests=1), "users"),
        (BenchSpec(arrivals=Poisson(-1.0), requests=1), "rate"),
        (BenchSpec(arrivals=Users(1), requests=0), "--requests"),
        (BenchSpec(arrivals=Users(1), duration_s=0.0), "--duration"),
        (BenchSpec(arrivals=Users(1), requests=1, classes=(ClassSpec(weight=0.0),)), "weight"),
        (BenchSpec(arrivals=Users(1), requests=1, classes=(ClassSpec(),) * 2), "differ"),
        (BenchSpec(arrivals=Users(1), requests=1, token_ids=(9, 9)), "LOW < HIGH"),
        (BenchSpec(arrivals=Users(1), requests=1, prompt_form=PromptForm.TEXT), "--tokenizer"),
        (BenchSpec(arrivals=Users(1), requests=1, endpoint=Endpoint.CHAT), "--prompt-form text"),
        (
            BenchSpec(arrivals=Users(1), requests=1, classes=(ClassSpec(arrivals=Users(1)),)),
            "leave the common ones out",
        ),
        (
            BenchSpec(arrivals=Users(1), requests=1, classes=(ClassSpec(lengths=Fixed(0, 1)),)),
            "at least 1 token",
        ),
        (
            BenchSpec(
                arrivals=Users(1),
                requests=1,
                classes=(ClassSpec(lengths=Uniform(9, 1, 1, 1)),),
            ),
            "LOW-HIGH",
        ),
    ],
)
def test_a_bench_that_cannot_run_is_told_why(spec: BenchSpec, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        validate(spec)


def test_addresses_are_read_with_and_without_their_tail() -> None:
    address = parse_url("https://[::1]:8443/openai/v1/")

    assert (address.authority, address.prefix, address.secure) == ("[::1]:8443", "/openai", True)
    assert parse_url("localhost:8000/v1").authority == "localhost:8000"
    for wrong in ("ftp://host", "http://", "http://host:port"):
        with pytest.raises(ConfigError, match="is not an address"):
            parse_url(wrong)


def test_arrivals_need_no_more_than_one_kind() -> None:
    assert parse_arrivals("x") is None
    with pytest.raises(ConfigError, match="users and trace"):
        parse_arrivals("x", users=1, trace="file")


@settings(deadline=None, max_examples=40)
@given(tokens=st.integers(1, 300), number=st.integers(0, 1 << 30))
def test_text_of_any_length_is_cut_exactly(tokens: int, number: int) -> None:
    maker = PromptMaker(
        BenchSpec(prompt_form=PromptForm.TEXT, tokenizer="dummy:tiny"), salt=3, token_ids=None
    )
    prompt = maker.make(0, number, tokens)

    assert isinstance(prompt, str)
    assert maker.count(prompt) == tokens
    assert prompt == maker.make(0, number, tokens)


@pytest.mark.parametrize("form", PromptForm)
def test_prompts_of_the_real_tokenizer_are_words_of_the_exact_length(
    default_model: Path, form: PromptForm
) -> None:
    classes = (ClassSpec(lengths=SharedPrefix(100, 20, 1)),)
    spec = BenchSpec(classes=classes, prompt_form=form, tokenizer=str(default_model))
    maker = PromptMaker(spec, salt=3, token_ids=None)
    prompts = [maker.make(0, number, 120) for number in range(4)]

    if form is PromptForm.TEXT:
        assert [maker.count(str(prompt)) for prompt in prompts] == [120] * 4
        assert all(len(str(prompt).split()) > 60 for prompt in prompts)
        assert len({str(prompt)[:300] for prompt in prompts}) == 1
    else:
        assert [len(prompt) for prompt in prompts] == [120] * 4
        assert len({tuple(prompt[:100]) for prompt in prompts}) == 1
    assert len({str(prompt) for prompt in prompts}) == 4


@given(st.lists(st.integers(0, 1 << 45), min_size=1, max_size=60))
def test_the_histogram_is_the_one_that_the_library_would_have_made(values_ns: list[int]) -> None:
    """Vectorised recording lands in the same counters, and the encoding reads back."""
    ours, theirs = Recorder(), HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    ours.record(values_ns)
    for value_ns in values_ns:
        theirs.record_value(min(max(value_ns // 1000, LOWEST_US), HIGHEST_US))

    latency = latency_of(ours.distribution())
    assert latency is not None
    decoded = HdrHistogram.decode(latency.hdr)
    assert decoded.get_total_count() == len(values_ns)
    assert list(decoded.counts)[: theirs.counts_len] == list(theirs.counts)[: theirs.counts_len]
    assert latency.max_ms == max(values_ns) / 1e6
    exact_ns = quantile(values_ns, 0.95)
    assert exact_ns is not None
    nearest_ns = min(exact_ns, HIGHEST_US * 1000)
    assert latency.p95_ms == pytest.approx(nearest_ns / 1e6, rel=1e-3, abs=2e-3)


@given(
    limit=st.floats(0.3, 200), first=st.floats(0.5, 8), bisections=st.integers(0, 6),
    over=st.sampled_from(Over),
)  # fmt: skip
def test_a_sweep_closes_in_on_the_limit_of_the_server(
    limit: float, first: float, bisections: int, over: Over
) -> None:
    """A server that is good up to `limit`: the last good and the first bad value enclose it."""
    first = max(1.0, first) if over is Over.USERS else first
    spec = SweepSpec(bench=BenchSpec(), over=over, first=first, last=64.0, bisections=bisections)
    tried: list[float] = []

    def attempt(value: float) -> bool:
        tried.append(value)
        return value <= limit

    find_knee(spec, attempt)
    good = max((v for v in tried if v <= limit), default=0.0)
    bad = min((v for v in tried if v > limit), default=None)

    assert len(tried) == len(set(tried))
    assert max(tried) <= 64.0
    if bad is None:
        assert good == 64.0
    elif good:
        whole = 1.0 if over is Over.USERS else 0.0
        assert bad - good <= (good + whole) / 2**bisections + whole + 1e-9
