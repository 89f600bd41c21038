"""A vLLM with or without the plugin, and a sidecar beside it, each in processes of its own.

vLLM is three processes: API server, engine core (its scheduler), and a worker that computes. The
worker's threads have the first core to themselves; API server, engine core, sidecar and clients
share the others, as a server with a GPU leaves its CPU to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attach.installed import plugin_path
from benchmarks.contract.client import HOST, NotSupported, call, now_ns
from benchmarks.contract.common import say, ticking
from benchmarks.peers.layout import REPOSITORY, default_root, last_line
from benchmarks.peers.recipes import Setup, recipes, setup_of
from lab.drills.servers import pin, split_cores
from service.attach.wire import SOCKET_VARIABLE

BLOCK_TOKENS = 32  # the least of vLLM's kernels for this CPU
BASE_FLAGS = ("--block-size", str(BLOCK_TOKENS), "--enable-prefix-caching")
READY_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 30.0
