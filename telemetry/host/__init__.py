"""The machine: pauses of the processes, host samples, GPUs, the roofline.

An observer changes nothing. A quantity has a value, or the reason why it has none; never 0 instead.

    machine                                  all of this as one part of the gateway
    host, proc, loop_probe, gc_watch         samples and pauses, as facts
    pauses, host_impact                      pauses by cause, and the requests that they delayed
    engine_stay                              how long a sequence was in the engine, and blocked
    gpu, gpu_device, gpu_gpm, gpu_events,
    gpu_peaks                                NVML
    roofline                                 achieved rates against the peaks of the hardware
    windowed                                 what a row reads where layers have a sliding window
"""
