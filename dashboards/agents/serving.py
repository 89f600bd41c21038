"""The tools over the Model Context Protocol, by its official SDK, on standard input and output."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from dashboards.agents.reader import ToolFailed
from dashboards.agents.tools import Tools
from dashboards.extras import need

_NAME = "phasescope"
_ABOUT = (
    "Reads an LLM inference server that explains itself. Begin with diagnosis; incidents and "
    "slowest_requests give ids, explain_request says where the time of one went. Nothing here "
    "changes the server."
)


def serve_stdio(tools: Tools) -> None:
    """Serve until standard input ends. Raises ExtraMissing."""
    need("mcp", "mcp")
    asyncio.run(_serve(tools))


async def _serve(tools: Tools) -> None:
    server, stdio = build_server(tools), need("mcp.server.stdio", "mcp")
    async with stdio.stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def build_server(tools: Tools) -> Any:
    """The SDK's server; one call does not wait for another. Raises ExtraMissing."""
    types, lowlevel = need("mcp.types", "mcp"), need("mcp.server.lowlevel", "mcp")
    listed = [
        types.Tool(
            name=tool.name,
            description=tool.about,
            input_schema=tool.schema,
            annotations=types.ToolAnnotations(
                read_only_hint=True, destructive_hint=False, open_world_hint=False
            ),
        )
        for tool in tools.tools.values()
    ]

    async def list_tools(context: Any, asked: Any) -> Any:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, asked: Any) -> Any:
        try:
            answer = await asyncio.to_thread(tools.call, asked.name, asked.arguments or {})
            is_error = False
        except ToolFailed as failed:
            answer = {"error": {"kind": failed.kind.value, "message": str(failed)}}
            is_error = True
        text = msgspec.json.encode(answer).decode()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=msgspec.json.decode(text),
            is_error=is_error,
        )

    return lowlevel.Server(
        _NAME,
        version=_version(),
        instructions=_ABOUT,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _version() -> str:
    try:
        return version("phasescope")
    except PackageNotFoundError:
        return "not installed"
