"""What an engine node and a fleet gateway are told of each other."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from service.config.setting import ConfigError, Group, check_fields, setting

KvTransportName = Literal["tcp", "nixl"]

NODE_PORT = 8100
"""Default port of a node's own HTTP server, so that it and a gateway can share a machine."""


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that only `phasescope engine` has."""

    listen: Annotated[
        str,
        setting(
            "--listen",
            Group.FLEET,
            "address and port at which gateways connect; frames are authenticated with the key and "
            "not encrypted, so beyond one trusted network put a tunnel in between",
            metavar="HOST:PORT",
            min_length=1,
        ),
    ] = "127.0.0.1:9100"
    key_file: Annotated[
        str | None,
        setting(
            "--key-file",
            Group.FLEET,
            "file with the key that gateways must have, at least 32 bytes",
            metavar="FILE",
            unset="needed",
            min_length=1,
        ),
    ] = None
    name: Annotated[
        str | None,
        setting(
            "--node-name",
            Group.FLEET,
            "what the node calls itself",
            metavar="NAME",
            unset="the address of --listen",
            min_length=1,
        ),
    ] = None

    role: Annotated[
        Literal["any", "prefill", "decode"],
        setting(
            "--role",
            Group.FLEET,
            "what gateways use the engine for, unless their list of engines says otherwise: a "
            "prefill engine computes prompts and sends their KV to the engine that decodes them",
        ),
    ] = "any"
    kv_listen: Annotated[
        str | None,
        setting(
            "--kv-listen",
            Group.FLEET,
            "address and port at which engines connect that get KV of prompts from this one; "
            "authenticated and not encrypted, as --listen is; port 0 is any free one",
            metavar="HOST:PORT",
            unset="a free port of --listen's host with --role prefill, else none",
            min_length=1,
        ),
    ] = None

    kv_transport: Annotated[
        KvTransportName,
        setting(
            "--kv-transport",
            Group.FLEET,
            "how blocks of KV go between engines: over the connection itself, or by NIXL with UCX "
            "(RDMA where there is some), if the other engine has it too; needs "
            "`pip install 'phasescope[nixl]'`, and UCX's ports know no key: they must be reachable "
            "by engines only",
        ),
    ] = "tcp"

    @property
    def kv_address(self) -> tuple[str, int] | None:
        """Where other engines connect; None: they do not."""
        if self.kv_listen is not None:
            return address_of(self.kv_listen, "--kv-listen")
        if self.role == "prefill":
            return address_of(self.listen, "--listen")[0], 0
        return None

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        check_fields(self)
        address_of(self.listen, "--listen")
        if self.kv_listen is not None:
            address_of(self.kv_listen, "--kv-listen")
        if self.key_file is None:
            raise ConfigError(
                "a node needs --key-file, the key that its gateways have: make one with "
                "`openssl rand -hex 32 > fleet.key`"
            )
        if self.name is not None and len(self.name) > 128:
            raise ConfigError("--node-name is longer than 128 characters")


class FleetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a gateway that has its engines on other machines."""

    engines: Annotated[
        str | None,
        setting(
            "--engines",
            Group.FLEET,
            "TOML file of the engine nodes that serve, instead of an engine of this server's own; "
            "it is read again when it changes",
            metavar="FILE",
            unset="an engine of its own",
            min_length=1,
        ),
    ] = None
    routing: Annotated[
        Literal["least_finish", "prefix_affinity", "round_robin"],
        setting(
            "--routing",
            Group.FLEET,
            "how an engine is chosen for a request: where it would finish first, harm to others "
            "included; where its prefix was sent, up to a bound on load; or in turn",
        ),
    ] = "least_finish"
    split: Annotated[
        Literal["auto", "always", "never"],
        setting(
            "--prefill-split",
            Group.FLEET,
            "whether a prompt is computed by a prefill engine instead of the one that decodes: "
            "where that is predicted to be cheaper, harm to others included, or the only way to be "
            "in time; always; or never",
        ),
    ] = "auto"

    def validate(self) -> None:
        """Raise ConfigError if a value cannot work."""
        check_fields(self)


def address_of(text: str, where: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 host stands in brackets. Raises ConfigError, also for a
    host that no resolver is asked for."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{where} {text!r} is not HOST:PORT, as in 10.0.0.7:9100")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ConfigError(
            f"{where} {text!r} names no host: a part between dots is empty, is longer than 63 "
            "characters, or has one that no name has"
        ) from error
    return host, int(port)
