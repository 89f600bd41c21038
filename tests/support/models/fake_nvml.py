"""A small C library in place of NVIDIA's driver library, so that real ctypes calls are made.

Variants: `HOPPER` has two GPUs with GPM, `AMPERE` has one and no GPM symbols at all, `MIG` has
one that is cut into two instances, `FAILING` has one whose every call fails. What a test
changes while it runs are global variables of the library.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

SOURCE = r"""
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_SUPPORTED 3
#define NO_PERMISSION 4
#define NOT_FOUND 6
#define TIMEOUT 10
#define GPU_IS_LOST 15
#ifdef FAILING
#define CALL return GPU_IS_LOST
#else
#define CALL
#endif
#ifdef HOPPER
#define GPUS 2
#else
#define GPUS 1
#endif

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
typedef struct { u32 gpu, memory; } rates;
typedef struct {
    u32 field, scope; long long at, latency; u32 type, code;
    union { double d; u32 u; unsigned long l; u64 ull; long long sll; int i; unsigned short us; } v;
} field_value;
typedef struct { void *device; u64 type, data; u32 instance, compute; } event;
typedef struct { u64 counter; u32 instance; } gpm_sample;
typedef struct { u32 id, code; double value; char *names[3]; } gpm_metric;
typedef struct {
    u32 version, count; gpm_sample *first, *second; gpm_metric metrics[1];
} gpm_request;

int fake_inits, fake_sets, fake_event_sets, fake_gpm_samples, fake_blocking_calls;
int fake_power_code;
u64 fake_clock_events = 0x4 | 0x40 | 0x100000;
u64 fake_pcie_sent = 1000, fake_gpm_counter = 5, fake_xid, fake_event_type = 8;
double fake_gpm_nan;

int nvmlInitWithFlags(u32 flags) { fake_inits++; return 0; }
int nvmlShutdown(void) { fake_inits--; return 0; }
const char *nvmlErrorString(int code) { return "Odd Error"; }
int nvmlSystemGetDriverVersion(char *text, u32 n) { strncpy(text, "575.1", n); return 0; }
int nvmlDeviceGetCount_v2(u32 *n) { *n = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 i, void **h) {
    *h = (void *)(size_t)(i + 1); return i < GPUS ? 0 : NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **h) {
    *h = (void *)(size_t)GPUS; return strcmp(uuid, "GPU-last") ? NOT_FOUND : 0;
}
int nvmlDeviceGetUUID(void *h, char *uuid, u32 n) {
    strncpy(uuid, (size_t)h == GPUS ? "GPU-last" : "GPU-0ther", n); return 0;
}
int nvmlDeviceGetName(void *h, char *name, u32 n) {
    CALL;
#ifdef HOPPER
    strncpy(name, "Fake H200", n);
#else
    strncpy(name, "Fake A100", n);
#endif
    return 0;
}

/* what one call each can tell */
int nvmlDeviceGetMemoryInfo_v2(void *h, memory_v2 *m) {
    CALL;
    if (m->version != 0x02000028) return 25;
    m->total = 1000; m->reserved = 100; m->free = 500; m->used = 400 + (size_t)h; return 0;
}
int nvmlDeviceGetUtilizationRates(void *h, rates *r) {
    CALL;
#ifdef MIG
    return NOT_SUPPORTED;
#endif
    r->gpu = 55; r->memory = 0; return 0;
}
int nvmlDeviceGetPowerUsage(void *h, u32 *mw) { CALL; *mw = 250000; return fake_power_code; }
int nvmlDeviceGetEnforcedPowerLimit(void *h, u32 *mw) { CALL; *mw = 700000; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, u64 *mj) { CALL; *mj = 12345; return 0; }
int nvmlDeviceGetClockInfo(void *h, u32 kind, u32 *mhz) {
    CALL; *mhz = kind == 1 ? 1755 : 3000; return 0;
}
int nvmlDeviceGetMaxClockInfo(void *h, u32 kind, u32 *mhz) {
    CALL;
#ifdef HOPPER
    *mhz = kind == 1 ? 1980 : 3201;
#else
    *mhz = kind == 1 ? 1410 : 1593;
#endif
    return 0;
}
int nvmlDeviceGetMemoryBusWidth(void *h, u32 *bits) {
    CALL;
#ifdef HOPPER
    *bits = 6144;
#else
    *bits = 5120;
#endif
    return 0;
}
int nvmlDeviceGetNumGpuCores(void *h, u32 *n) {
    CALL;
#ifdef HOPPER
    *n = 132 * 128;
#else
    *n = 108 * 64;
#endif
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    CALL;
#ifdef HOPPER
    *major = 9;
#else
    *major = 8;
#endif
    *minor = 0; return 0;
}
int nvmlDeviceGetTemperature(void *h, u32 sensor, u32 *c) { return NOT_SUPPORTED; }
#ifdef AMPERE /* an old driver */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, u64 *mask) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(void *h, u64 *mask) {
#endif
    CALL; *mask = fake_clock_events; return 0;
}
int nvmlDeviceGetTotalEccErrors(void *h, u32 kind, u32 counter, u64 *n) {
    CALL; *n = kind == 0 ? 7 : 0; return counter == 0 ? 0 : NOT_SUPPORTED;
}
int nvmlDeviceGetRemappedRows(void *h, u32 *a, u32 *b, u32 *pending, u32 *failed) {
    CALL; *a = 2; *b = 1; *pending = 1; *failed = 0; return 0;
}
int nvmlDeviceGetFieldValues(void *h, int n, field_value *f) {
    CALL;
    for (int i = 0; i < n; i++) {
        f[i].code = 0;
        switch (f[i].field) {
        case 186: f[i].type = 1; f[i].v.u = 251000; break;
        case 82: f[i].type = 1; f[i].v.u = 61; break;
        case 197: f[i].type = 3; f[i].v.ull = fake_pcie_sent; break;
        case 198: f[i].type = 3; f[i].v.ull = 0; break;
        case 74: f[i].type = 3; f[i].v.ull = 2500000000ull; break;
        case 94: f[i].type = 99; break;
        default: f[i].code = NOT_SUPPORTED;
        }
    }
    return 0;
}

/* MIG */
int nvmlDeviceGetMigMode(void *h, u32 *current, u32 *pending) {
#ifdef MIG
    *current = *pending = 1; return 0;
#else
    *current = *pending = 0; return 0;
#endif
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, u32 *n) { *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, u32 i, void **mig) {
    if (i > 1) return NOT_FOUND;
    *mig = (void *)(size_t)(0x10 + i); return 0;
}
int nvmlDeviceGetGpuInstanceId(void *h, u32 *id) { *id = (size_t)h - 0x10 + 4; return 0; }

/* GPM */
#ifndef AMPERE
int nvmlGpmQueryDeviceSupport(void *h, u32 *support) { CALL; support[1] = 1; return 0; }
int nvmlGpmSampleAlloc(gpm_sample **s) { *s = calloc(1, sizeof **s); fake_gpm_samples++; return 0; }
int nvmlGpmSampleFree(gpm_sample *s) { free(s); fake_gpm_samples--; return 0; }
int nvmlGpmSampleGet(void *h, gpm_sample *s) {
#ifdef MIG
    return NOT_SUPPORTED;
#endif
    s->counter = fake_gpm_counter; return 0;
}
int nvmlGpmMigSampleGet(void *h, u32 instance, gpm_sample *s) {
    if (h != (void *)1) return NOT_FOUND;
    s->counter = fake_gpm_counter; s->instance = instance; return 0;
}
int nvmlGpmMetricsGet(gpm_request *r) {
    for (u32 i = 0; i < r->count; i++) {
        gpm_metric *m = &r->metrics[i];
        double grown = (double)(long long)(r->second->counter - r->first->counter);
        m->code = 0;
        switch (m->id) {
        case 10: m->value = grown; break;                       /* DRAM bandwidth */
        case 2: m->value = grown / 2 + r->second->instance; break; /* SM */
        case 3: m->value = fake_gpm_nan; break;                 /* occupancy */
        case 60: m->value = 1; break;                           /* NVLink, MiB/s */
        default: m->code = NOT_SUPPORTED;
        }
    }
    return 0;
}
#endif

/* events */
int nvmlEventSetCreate(void **set) {
#ifdef AMPERE
    return NO_PERMISSION;
#endif
    CALL; *set = malloc(1); fake_event_sets++; return 0;
}
int nvmlEventSetFree(void *set) { free(set); fake_event_sets--; return 0; }
int nvmlDeviceRegisterEvents(void *h, u64 kinds, void *set) { return 0; }
int nvmlEventSetWait_v2(void *set, event *e, u32 ms) {
    for (u32 i = 0; i < ms; i++, usleep(1000)) {
        if (fake_xid) {
            e->device = (void *)(size_t)GPUS; e->type = fake_event_type; e->data = fake_xid;
            fake_xid = 0; return 0;
        }
    }
    return TIMEOUT;
}

/* what must never be called */
int nvmlDeviceSetPersistenceMode(void *h, u32 on) { fake_sets++; return 0; }
int nvmlDeviceSetAccountingMode(void *h, u32 on) { fake_sets++; return 0; }
int nvmlGpmSetStreamingEnabled(void *h, u32 on) { fake_sets++; return 0; }
int nvmlDeviceGetPcieThroughput(void *h, u32 c, u32 *v) { fake_blocking_calls++; return 0; }
"""


class FakeNvml:
    """The loaded library and its variables."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, f"fake_{name}").value

    def set(self, name: str, value: int) -> None:
        ctypes.c_ulonglong.in_dll(self._library, f"fake_{name}").value = value

    def set_int(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self._library, f"fake_{name}").value = value

    def set_double(self, name: str, value: float) -> None:
        ctypes.c_double.in_dll(self._library, f"fake_{name}").value = value


@contextmanager
def loaded(variant: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """pynvml talks to this variant inside the block."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / "fake.c", folder / f"libnvidia-ml-{variant}.so.1"
    source.write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-w", f"-D{variant}", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(library))
    patch.setattr(pynvml, "nvmlLib", found)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield FakeNvml(found)
    finally:
        pynvml._nvmlGetFunctionPointer_cache.clear()
