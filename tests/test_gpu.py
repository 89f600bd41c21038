"""NVML: values where there are values, reasons where there are not, never a zero instead."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from telemetry.gpu import GpuSampler, Unavailable

FAKE = r"""
#include <stddef.h>
#include <string.h>
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } mem_v2;
typedef struct { unsigned int gpu, memory; } util;
int nvmlInitWithFlags(unsigned int f) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **h) { *h = (void *)1; return i ? 6 : 0; }
int nvmlDeviceGetName(void *h, char *name, unsigned int n) {
    strncpy(name, "Fake H200", n); return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *h, mem_v2 *m) {
    m->total = 1000; m->reserved = 100; m->free = 500; m->used = 400; return 0;
}
int nvmlDeviceGetUtilizationRates(void *h, util *u) { u->gpu = 55; u->memory = 0; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned int *mw) { *mw = 250000; return 0; }
int nvmlDeviceGetClockInfo(void *h, unsigned int t, unsigned int *mhz) { *mhz = 1980; return 0; }
int nvmlDeviceGetTemperature(void *h, unsigned int s, unsigned int *c) { return 3; }
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "Error"; }
"""


@pytest.fixture
def fake_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small C library in place of the driver's, so that real ctypes calls are made."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "fake.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(FAKE)
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield
    pynvml._nvmlGetFunctionPointer_cache.clear()


def test_without_a_driver_the_reason_is_given() -> None:
    """Here there is no GPU: nothing raises, nothing reads as 0."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    sampler = GpuSampler()
    sampler.start()
    found = sampler.latest().as_dict()
    sampler.stop()

    assert list(found) == ["status"]
    assert str(found["status"]).startswith("unavailable: ")


def test_each_quantity_is_a_value_or_a_reason(fake_nvml: None) -> None:
    """A measured zero stays a zero; what the driver does not support says so."""
    sampler = GpuSampler(interval_s=60)
    sampler.start()
    sample = sampler.latest()
    sampler.stop()

    assert (sample.status, sample.name) == ("ok", "Fake H200")
    assert sample.values["memory_used_bytes"] == 400
    assert sample.values["power_w"] == 250
    assert sample.values["memory_controller_busy_pct"] == 0
    temperature = sample.values["temperature_c"]
    assert isinstance(temperature, Unavailable)
    assert "Not Supported" in temperature.why
    for missing in ("throttle_reasons", "dram_bandwidth_pct"):
        assert isinstance(sample.values[missing], Unavailable)
    assert str(sample.as_dict()["temperature_c"]).startswith("unavailable: ")
