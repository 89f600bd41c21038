"""Blocks of a cache as bytes: what is written is read again, and nothing beside it changes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from service.device.cache import block_bytes
from service.device.cache.block_bytes import CacheBlocks
from service.device.cache.kv_cache import Pages

LAYERS, PAGES = 3, 5


@dataclass
class Storage:
    """A cache of three tensors, as one of fp8 with scales has."""

    storage: tuple[torch.Tensor, ...]
    pages: int = PAGES


def a_cache(seed: int) -> Storage:
    draw = torch.Generator().manual_seed(seed)
    keys = torch.randn((LAYERS, 2, PAGES, 2, 4, 8), generator=draw)
    scales = torch.randn((LAYERS, 2, PAGES, 2, 4), generator=draw)
    return Storage((keys.to(torch.bfloat16), keys.to(torch.float8_e4m3fn), scales))


def blocks_of(cache: Storage) -> CacheBlocks:
    pages: Pages = cache  # type: ignore[assignment]
    return CacheBlocks(pages)


def as_bytes(cache: Storage) -> list[torch.Tensor]:
    return [whole.view(torch.uint8) for whole in cache.storage]


def test_a_block_that_goes_from_one_cache_to_another_is_the_same_there() -> None:
    source, target = a_cache(1), a_cache(2)
    before = [whole.clone() for whole in as_bytes(target)]

    blocks_of(target).write(3, blocks_of(source).read(1))

    for place, whole in enumerate(as_bytes(target)):
        assert torch.equal(whole[:, :, 3], as_bytes(source)[place][:, :, 1])
        for other in (0, 1, 2, 4):
            assert torch.equal(whole[:, :, other], before[place][:, :, other])


def test_a_block_has_as_many_bytes_as_it_says() -> None:
    memory = blocks_of(a_cache(1))

    assert len(memory.read(0)) == memory.block_bytes
    assert memory.block_bytes == LAYERS * 2 * 2 * 4 * (8 * 2 + 8 + 4)


def test_a_device_s_blocks_have_the_bytes_of_a_cpu_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU stands in for the device: torch copies there and back."""
    source, target = a_cache(1), a_cache(2)
    of_cpu = blocks_of(source)
    monkeypatch.setattr(block_bytes, "_as_bytes", lambda whole: None)
    of_device = blocks_of(target)

    of_device.write(2, of_cpu.read(4))

    assert of_device.read(2) == of_cpu.read(4)
    assert blocks_of(target).read(2) == of_cpu.read(4)


def test_no_block_that_is_not_there_is_read_or_written() -> None:
    memory = blocks_of(a_cache(1))

    with pytest.raises(IndexError, match="block 5 of 5"):
        memory.read(5)
    with pytest.raises(IndexError, match="block -1 of 5"):
        memory.write(-1, memory.read(0))
    with pytest.raises(ValueError, match="not 3"):
        memory.write(0, b"abc")
