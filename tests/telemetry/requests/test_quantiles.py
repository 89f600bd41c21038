"""There is one rule for quantiles, and a check finds any other."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.load.aggregator import latency_of as bench_latency
from telemetry.numbers.hdr import Distribution, Recorder, distribution_of
from telemetry.numbers.quantiles import median, quantile, quantile_sorted, rank

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("service", "telemetry", "diagnosis", "dashboards", "lab")
HOUR_NS = 3_600_000_000_000
THE_RULE = ROOT / "telemetry" / "numbers" / "quantiles.py"
# LoadGen's own rule, by which its log is compared
FOREIGN = {ROOT / "benchmarks" / "mlperf" / "compare.py"}
INTERPOLATES = {"percentile", "quantile", "nanpercentile", "nanquantile"}
MIDDLE = {"median", "nanmedian", "median_low", "median_high", "median_grouped", "quantiles"}


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.integers(0, 1 << 50), min_size=1, max_size=200),
    share=st.sampled_from((0.0, 0.05, 0.07, 0.29, 0.5, 0.57, 0.9, 0.95, 0.99, 0.999, 1.0)),
)
def test_a_quantile_is_the_smallest_value_that_enough_are_at_most(
    values: list[int], share: float
) -> None:
    found = quantile(values, share)
    assert found in values
    wanted = Fraction(str(share)) * len(values)
    assert sum(value <= found for value in values) >= wanted
    below = sum(value < found for value in values)
    assert below == 0 or below < wanted


@settings(max_examples=200, deadline=None)
@given(
    values_ns=st.lists(st.integers(1000, HOUR_NS), min_size=1, max_size=300),
    share=st.sampled_from((0.05, 0.5, 0.9, 0.95, 0.99, 0.999)),
)
def test_raw_values_and_a_histogram_of_them_agree_to_its_resolution(
    values_ns: list[int], share: float
) -> None:
    """Three significant digits and a microsecond; the server's histogram and the bench's."""
    exact_ns = quantile(values_ns, share)
    assert exact_ns is not None
    for histogram in (distribution_of(values_ns), _recorded(values_ns)):
        (shown_ns,) = histogram.at([share])
        assert abs(shown_ns - exact_ns) <= exact_ns / 1000 + 1000


@given(values_ns=st.lists(st.integers(1000, HOUR_NS), min_size=1, max_size=60))
def test_server_and_bench_state_the_same_percentiles_of_the_same_values(
    values_ns: list[int],
) -> None:
    server = distribution_of(values_ns).percentiles()
    bench = bench_latency(_recorded(values_ns))
    assert bench is not None
    assert (bench.p50_ms, bench.p90_ms, bench.p95_ms, bench.p99_ms, bench.max_ms) == tuple(
        value_ns / 1e6
        for value_ns in (server.p50_ns, server.p90_ns, server.p95_ns, server.p99_ns, server.max_ns)
        if value_ns is not None
    )


def _recorded(values_ns: list[int]) -> Distribution:
    recorder = Recorder()
    recorder.record(values_ns)
    return recorder.distribution()


def test_an_empty_sample_has_no_quantile() -> None:
    assert quantile([], 0.5) is None
    assert quantile_sorted([], 0.99) is None
    assert median([]) is None


@pytest.mark.parametrize(
    ("share", "count", "place"),
    [
        (0.95, 20, 19), (0.95, 21, 20), (0.07, 100, 7), (0.5, 2, 1), (0.5, 3, 2), (0.99, 99, 99),
        (0.0, 5, 1), (1.0, 5, 5),
    ],
)  # fmt: skip
def test_a_rank_is_exact_where_binary_fractions_are_not(
    share: float, count: int, place: int
) -> None:
    assert rank(share, count) == place


def _sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if path != THE_RULE and path not in FOREIGN]


def other_rules(source: str, medians: bool) -> list[str]:
    """Where a source picks a quantile by a rule of its own: calls of other libraries' quantiles,
    and an index that is a share of a length."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module="statistics", names=names):
                found += [name.name for name in names if medians and name.name in MIDDLE]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "numpy" | "statistics"))):
                assert isinstance(node.func, ast.Attribute)
                banned = INTERPOLATES | {"quantiles"} | (MIDDLE if medians else set())
                found += [ast.unparse(node.func)] if node.func.attr in banned else []
            case ast.Subscript(slice=ast.expr() as place) if _is_share_of_length(place):
                found.append(ast.unparse(node))
            case _:
                pass
    return found


def _is_share_of_length(place: ast.expr) -> bool:
    """`len(x) // 2`, `int(0.95 * len(x))`, `math.ceil(q * count) - 1` with a length in it."""
    if isinstance(place, ast.Slice):
        return False
    for node in ast.walk(place):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
            if any(isinstance(one.func, ast.Name) and one.func.id == "len" for one in calls):
                return True
    return False


@pytest.mark.parametrize(
    "source",
    [
        "x = sorted(a)[len(a) // 2]",
        "x = sorted(a)[min(len(a) - 1, int(q * len(a)))]",
        "x = a[math.ceil(0.99 * len(a)) - 1]",
        "x = np.percentile(a, 99)",
        "x = statistics.quantiles(a, n=100)",
        "from statistics import median",
    ],
)
def test_the_check_finds_other_rules(source: str) -> None:
    assert other_rules(source, medians=True)


def test_the_product_has_no_other_rule_for_quantiles() -> None:
    found = {
        str(path.relative_to(ROOT)): rules
        for path in _sources(*PRODUCT)
        if (rules := other_rules(path.read_text(), medians=True))
    }
    found.pop("lab/drills/mechanism.py", None)  # the middle of its levels, which are no sample
    assert found == {}


def test_benchmarks_have_no_other_rule_but_the_median_of_ratios() -> None:
    """`statistics.median` of a few A/B pairs is a definition of its own."""
    found = {
        str(path.relative_to(ROOT)): rules
        for path in _sources("benchmarks")
        if (rules := other_rules(path.read_text(), medians=False))
    }
    for episodes in ("benchmarks/diagnosis/episodes.py", "benchmarks/attach/drills/__main__.py"):
        found.pop(episodes, None)  # levels again
    assert found == {}
