"""Threads of the library that multiplies numpy's matrices."""

from __future__ import annotations

from threadpoolctl import threadpool_limits


def limit_linear_algebra() -> None:
    """Let numpy's linear algebra (OpenBLAS, MKL) use one thread in this process.

    A process that observes fits models of some thousand steps. More threads do not make that
    quicker, and while they wait for each other they keep the cores busy that the engine needs. Call
    it when numpy has been imported: a library that is loaded later is not limited.
    """
    threadpool_limits(limits=1, user_api="blas")
