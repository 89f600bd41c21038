"""Engine nodes and fleet gateways as processes, on loopback."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.servers.server import Server, free_port

KEY = "0123456789abcdef0123456789abcdef"


class Node(Server):
    """`with Node(folder) as node:`; `folder` has the key of the fleet."""

    command = "engine"

    def __init__(self, folder: Path, *args: str, key: str = KEY, **more: Any) -> None:
        self.wire_port = free_port()
        self.address = f"127.0.0.1:{self.wire_port}"
        path = folder / f"key-{self.wire_port}"
        path.write_text(key)
        super().__init__("--listen", self.address, "--key-file", str(path), *args, **more)


class FleetFile:
    """The file of `--engines`; `write` changes it, as an operator would."""

    def __init__(self, folder: Path, nodes: Iterable[Node] = (), key: str = KEY) -> None:
        self.path = folder / f"engines-{free_port()}.toml"
        self._key = folder / f"{self.path.stem}.key"
        self._key.write_text(key)
        self.write({f"n{index}": node.address for index, node in enumerate(nodes)})

    def write(
        self,
        addresses: dict[str, str],
        draining: Iterable[str] = (),
        kv_addresses: dict[str, str] | None = None,
    ) -> None:
        lines = [f'key_file = "{self._key.name}"', "[engines]"]
        for name, address in addresses.items():
            lines += [f"[engines.{name}]", f'address = "{address}"']
            lines += ["draining = true"] if name in draining else []
            kv_address = (kv_addresses or {}).get(name)
            lines += [f'kv_address = "{kv_address}"'] if kv_address else []
        self.path.write_text("\n".join([*lines, ""]))


class FleetGateway(Server):
    """`with FleetGateway(FleetFile(folder, nodes)) as gateway:`"""

    def __init__(self, engines: FleetFile, *args: str, **more: Any) -> None:
        self.engines = engines
        super().__init__("--engines", str(engines.path), *args, **more)

    def states(self) -> dict[str, str]:
        """Of each engine."""
        found = self.client.get("/debug/engines").json()["engines"]
        return {one["name"]: one["state"] for one in found}
