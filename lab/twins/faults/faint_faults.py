"""Faint faults: most requests are on time, and a few are late, again and again.

Each is one of the classes of `registry`, so rare or so short that means hardly move: they double
the 95th percentile of the time to first token, or put one gap above the target into some requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from lab.twins.fault import Fault, Mechanisms
from lab.twins.losses import CpuQuota, CpuStarvation, Loss, ProcessStops
from lab.twins.physics import MS, SECOND, Slowdown
from lab.twins.shared_steps import decoded_beside_prompts, shared_a_step
from lab.twins.simulated_run import SimulatedRun, Span
from lab.twins.traffic import Constraint, Reader, RequestSpec, Setting
from service.engine.inbox import FlushCache

Inject = Callable[[SimulatedRun, Span, Random], None]


def _moments(span: Span, draw: Random, least_s: float, most_s: float) -> Iterator[int]:
    """Moments within the span, `least_s` to `most_s` apart."""
    at_ns = span.begin_ns
    while at_ns < span.end_ns:
        yield at_ns
        at_ns += int(draw.uniform(least_s, most_s) * SECOND)


def _short_stalls(kind: Loss, between: bool) -> Inject:
    """120 to 400 ms every two to five seconds."""

    def inject(run: SimulatedRun, span: Span, draw: Random) -> None:
        stops = [
            (at_ns, int(draw.uniform(120, 400) * MS)) for at_ns in _moments(span, draw, 2.0, 5.0)
        ]
        run.cpu_contention.append(ProcessStops(stops, kind, between))

    return inject


STALLS: Mechanisms = {
    "collections": Fault(inject=_short_stalls(Loss.COLLECTED, between=True)),
    "blocked_anywhere": Fault(inject=_short_stalls(Loss.BLOCKED, between=False)),
    "stopped": Fault(inject=_short_stalls(Loss.STOPPED, between=False)),
}


def _thief(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Another process has the core for most of 0.3 to 0.6 s, every two to four seconds."""
    for at_ns in _moments(span, draw, 2.0, 4.0):
        end_ns = at_ns + int(draw.uniform(300, 600) * MS)
        intervals = Random(draw.getrandbits(32))
        run.cpu_contention.append(CpuStarvation(at_ns, end_ns, 10 * MS, 60 * MS, intervals))


THIEF: Mechanisms = {"periodic": Fault(inject=_thief)}


def _short_quota(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The control group's quota is used up in half a second of every two to four."""
    for at_ns in _moments(span, draw, 2.0, 4.0):
        end_ns = at_ns + int(draw.uniform(400, 700) * MS)
        run.cpu_contention.append(CpuQuota(at_ns, end_ns, 100 * MS, 15 * MS))


QUOTA: Mechanisms = {"now_and_then": Fault(inject=_short_quota)}


def _short_scans(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A neighbour scans memory for 0.7 to 1.2 s, every two to four seconds."""
    for at_ns in _moments(span, draw, 2.0, 4.0):
        factor = draw.uniform(3.0, 3.8)
        run.slowdowns.append(
            Slowdown(
                begin_ns=at_ns,
                end_ns=at_ns + int(draw.uniform(0.7, 1.2) * SECOND),
                base=factor,
                decode=factor,
                context=factor,
                prompt=draw.uniform(1.05, 1.15),
            )
        )


def _busy(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.55, 0.7)


SCANS: Mechanisms = {"now_and_then": Fault(prepare=_busy, inject=_short_scans)}


def _whole_prompts(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.35, 0.5)
    setting.limits = replace(setting.limits, chunked_prefill=False)


def _small_chunks(setting: Setting, draw: Random) -> None:
    """Short answers, so that hardly anybody decodes beside a prompt."""
    setting.load, setting.outputs = draw.uniform(0.3, 0.4), (2, 8)
    setting.limits = replace(setting.limits, budget_tokens=64)
    _ten_tenants(setting, draw)


def _ten_tenants(setting: Setting, draw: Random) -> None:
    setting.tenants = {f"tenant-{number}": 1.0 for number in range(10)}


def _added(
    run: SimulatedRun, span: Span, draw: Random, least_s: float, most_s: float
) -> list[RequestSpec]:
    """Further requests now and then, which nobody cancels."""
    found = [
        run.setting.spec(draw, number, at_ns)
        for number, at_ns in enumerate(_moments(span, draw, least_s, most_s))
    ]
    for spec in found:
        spec.disconnect_ns, spec.choices, spec.constraint = None, 1, None
    run.add(found)
    run.culprits |= {spec.number for spec in found}
    return found


def _long_prompt_now_and_then(run: SimulatedRun, span: Span, draw: Random) -> None:
    for spec in _added(run, span, draw, 2.0, 4.0):
        spec.system_tokens, spec.own_tokens = 0, draw.randint(500, 900)


INTERFERENCE: Mechanisms = {
    "one_long_prompt": Fault(
        prepare=_whole_prompts, inject=_long_prompt_now_and_then, victims=decoded_beside_prompts
    )
}


def _of_tenant(run: SimulatedRun, span: Span, tenant: str) -> list[RequestSpec]:
    return [spec for spec in run.arriving_in(span) if spec.tenant == tenant]


def _tenant_with_long_prompts(run: SimulatedRun, span: Span, draw: Random) -> None:
    """One tenant in ten has prompts that are five times as long."""
    for spec in _of_tenant(run, span, "tenant-3"):
        spec.own_tokens = max(240, 5 * spec.own_tokens)
        run.culprits.add(spec.number)
        run.victims.add(spec.number)


LONG_PROMPTS: Mechanisms = {
    "one_tenant_in_ten": Fault(prepare=_small_chunks, inject=_tenant_with_long_prompts)
}


def _small_buffers(setting: Setting, draw: Random) -> None:
    setting.outputs, setting.stream_buffer_tokens = (24, 80), 16


def _slow_reader_in_ten(run: SimulatedRun, span: Span, draw: Random) -> None:
    for spec in run.arriving_in(span):
        if spec.stream and spec.choices == 1 and draw.random() < 0.1:
            spec.disconnect_ns, spec.reader = None, Reader(interval_ns=draw.randint(140, 250) * MS)
            run.culprits.add(spec.number)
            run.victims.add(spec.number)


def _long_answers(setting: Setting, draw: Random) -> None:
    _ten_tenants(setting, draw)
    setting.outputs = (24, 80)


def _slow_tenant_in_ten(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A proxy of one tenant in ten reads slowly; the gateway's buffers hold everything."""
    for spec in _of_tenant(run, span, "tenant-3"):
        if spec.stream and spec.choices == 1:
            spec.disconnect_ns, spec.reader = None, Reader(interval_ns=draw.randint(60, 120) * MS)
            run.culprits.add(spec.number)
            run.victims.add(spec.number)


SLOW_CLIENT: Mechanisms = {
    "one_reader_in_ten": Fault(prepare=_small_buffers, inject=_slow_reader_in_ten),
    "one_tenant_in_ten": Fault(prepare=_long_answers, inject=_slow_tenant_in_ten),
}


def _half_load(setting: Setting, draw: Random) -> None:
    _ten_tenants(setting, draw)
    setting.load = draw.uniform(0.36, 0.44)


def _small_batches(run: SimulatedRun, span: Span, draw: Random) -> None:
    """One tenant in ten sends twenty requests at once, every four to six seconds."""
    setting = run.setting
    batches: list[RequestSpec] = []
    for at_ns in _moments(span, draw, 4.0, 6.0):
        batches += [
            setting.spec(draw, number, at_ns + draw.randrange(SECOND // 10))
            for number in range(draw.randint(18, 22))
        ]
    for spec in batches:
        spec.tenant, spec.disconnect_ns = "tenant-3", None
    run.add(batches)
    run.culprits.add("tenant-3")
    run.victims |= set(setting.tenants) - {"tenant-3"}


UNFAIRNESS: Mechanisms = {"small_batches": Fault(prepare=_half_load, inject=_small_batches)}


def _bursts(run: SimulatedRun, span: Span, draw: Random) -> None:
    """Bursts of all tenants: more requests at once than there are slots, every four to six
    seconds."""
    setting = run.setting
    bursts: list[RequestSpec] = []
    for at_ns in _moments(span, draw, 4.0, 6.0):
        number = round(setting.limits.max_seqs * draw.uniform(1.0, 1.3))
        bursts += [
            setting.spec(draw, n, at_ns + draw.randrange(SECOND // 50)) for n in range(number)
        ]
    for spec in bursts:
        spec.disconnect_ns = None
    run.add(bursts)
    run.culprits |= {spec.number for spec in bursts}


QUEUE: Mechanisms = {"bursts": Fault(prepare=_half_load, inject=_bursts)}


def _long_system_prompts(setting: Setting, draw: Random) -> None:
    setting.system_tokens, setting.system_share = 400, 0.95
    setting.prompt, setting.load = (16, 80), draw.uniform(0.2, 0.3)


def _flushes(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The prefix cache is flushed every two to four seconds."""
    run.commands += [(at_ns, FlushCache()) for at_ns in _moments(span, draw, 2.0, 4.0)]


def _salted_tenant(run: SimulatedRun, span: Span, draw: Random) -> None:
    """The requests of one tenant in ten have salts of their own."""
    for spec in _of_tenant(run, span, "tenant-3"):
        spec.salt = f"{draw.getrandbits(32):x}"


def _stamped_tenant(run: SimulatedRun, span: Span, draw: Random) -> None:
    """One tenant in three puts the time into the second half of the text that all begin with."""
    for spec in _of_tenant(run, span, "tenant-1"):
        spec.own_tokens += spec.system_tokens // 2
        spec.system_tokens //= 2


def _shared_by_ten(setting: Setting, draw: Random) -> None:
    _ten_tenants(setting, draw)
    _long_system_prompts(setting, draw)
    setting.systems, setting.load = 1, draw.uniform(0.45, 0.55)


def _shared_by_three(setting: Setting, draw: Random) -> None:
    setting.tenants = {f"tenant-{number}": 1.0 for number in range(3)}
    _long_system_prompts(setting, draw)
    setting.systems, setting.prompt = 1, (16, 40)


COLD_CACHE: Mechanisms = {
    "rare_flushes": Fault(prepare=_long_system_prompts, inject=_flushes),
    "one_tenant_in_ten": Fault(prepare=_shared_by_ten, inject=_salted_tenant),
    "part_of_a_text": Fault(prepare=_shared_by_three, inject=_stamped_tenant),
}


def _huge_body_now_and_then(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A body of 200 kB blocks the loop for 0.2 to 0.4 s, every two to four seconds."""
    for spec in _added(run, span, draw, 2.0, 4.0):
        spec.body_tokens = draw.randint(40_000, 75_000)


INGEST: Mechanisms = {"one_huge_body": Fault(inject=_huge_body_now_and_then)}


def _new_schema_now_and_then(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A request with a schema that takes 0.3 to 0.7 s to compile."""
    for spec in _added(run, span, draw, 1.5, 3.0):
        compile_ns = draw.randint(300, 700) * MS
        spec.constraint = Constraint(compile_ns=compile_ns, cached=False)
        spec.max_tokens = max(spec.max_tokens, spec.outputs + 8)


def _moderate(setting: Setting, draw: Random) -> None:
    setting.load = draw.uniform(0.35, 0.5)


GRAMMAR: Mechanisms = {
    "one_new_schema": Fault(
        prepare=_moderate, inject=_new_schema_now_and_then, victims=shared_a_step
    )
}


def _costly_sampling_now_and_then(run: SimulatedRun, span: Span, draw: Random) -> None:
    """A request whose every token takes 0.1 s to sample, for a few tokens."""
    for spec in _added(run, span, draw, 2.0, 4.0):
        spec.sample_ns, spec.outputs = draw.randint(100, 180) * MS, draw.randint(3, 6)
        spec.max_tokens = max(spec.max_tokens, spec.outputs + 8)


SAMPLING: Mechanisms = {
    "one_costly_request": Fault(inject=_costly_sampling_now_and_then, victims=shared_a_step)
}
