"""Whether a GPU will compute, and how large it is, without importing torch.

The engine process decides by asking torch (`service.device.loader.choose_device`); defaults are
needed before it runs. So this asks what torch would: whether the installed torch was built for
CUDA, which GPUs `CUDA_VISIBLE_DEVICES` leaves, and NVML about the first of them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_CUDA_BUILD = re.compile(r"^cuda\b[^=]*=\s*['\"]", re.MULTILINE)
_LARGE_BYTES = 70 << 30


@dataclass(frozen=True, slots=True)
class Hardware:
    """What computes: a GPU by its name, or with None a CPU."""

    gpu: str | None = None
    memory_bytes: int = 0

    @property
    def is_large(self) -> bool:
        """Whether the GPU is large as vLLM divides GPUs: 70 GiB or more, but no A100, on which
        larger steps were slower."""
        return self.memory_bytes >= _LARGE_BYTES and "a100" not in (self.gpu or "").lower()


CPU = Hardware()


def find_hardware(device: str) -> Hardware:
    """What `--device` (auto, cpu or cuda) means on this machine. Never raises."""
    if device == "cpu" or (device == "auto" and not torch_has_cuda()):
        return CPU
    found = first_gpu(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if found is None and device == "cuda":
        return Hardware(gpu="a GPU that NVML does not show")
    return found or CPU


def torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA; read from its version file."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return False
    return _CUDA_BUILD.search(text) is not None


def first_gpu(visible: str | None) -> Hardware | None:
    """The first GPU of those that `visible`, the value of CUDA_VISIBLE_DEVICES, leaves; None
    where there is none. A MIG instance counts as the GPU, with its own memory."""
    wanted = None if visible is None else visible.split(",")[0].strip()
    if wanted in ("", "-1"):
        return None
    import pynvml  # 20 ms, and only where torch could use a GPU

    from telemetry.host.gpu_device import Device, find_devices, name_of

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        if wanted is None or wanted.isdecimal():
            index = wanted or "0"
            devices = [one for one in find_devices() if one.gpu.partition(":")[0] == index]
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(wanted)
            devices = [Device(wanted, handle, handle)]
        if not devices:
            return None
        memory = pynvml.nvmlDeviceGetMemoryInfo(devices[0].handle, version=pynvml.nvmlMemory_v2)
        return Hardware(gpu=name_of(devices[0]) or "GPU", memory_bytes=int(memory.total))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
