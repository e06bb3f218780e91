"""``/parse/function_call`` and ``/parse/reasoning``: text from elsewhere through this gateway's parsers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.api.errors import Headers, error_headers, error_view
from smg_trio.api.parse_tools import (
    function_call_body,
    parse_failure_body,
    parse_function_call_request,
    parse_reasoning_request,
    reasoning_body,
)
from smg_trio.core.errors import ConfigError, InvalidRequest
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.parsers.registry import choose_reasoning_parser, choose_tool_parser, make_answer_parser
from smg_trio.plugins.kinds import REASONING_PARSER, TOOL_PARSER

if TYPE_CHECKING:
    from smg_trio.core.events import ParserEvent
    from smg_trio.gateway.state import Gateway
    from smg_trio.parsers.answer import AnswerParser


def parse_failure(error: BaseException, request_id: str | None) -> tuple[int, Headers, bytes]:
    """The error shape of these two endpoints."""
    return error_view(error).status, error_headers(error), parse_failure_body(error)


async def parse_function_call(gateway: Gateway, request: Request) -> Response:
    """Extract the tool calls of a text."""
    asked = await gateway.parse_body(request, parse_function_call_request)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in asked.tools}
    try:
        parser = make_answer_parser(
            None, choose_tool_parser(gateway.plugins.loaded_parser(TOOL_PARSER, asked.parser)), schemas
        )
    except ConfigError:
        raise InvalidRequest(f"Unknown tool parser: {asked.parser}", param="tool_call_parser") from None

    def work() -> bytes:
        return function_call_body(_read(parser, asked.text))

    return json_response(await gateway.preparer.off_loop_if_long(len(asked.text), work))


async def parse_reasoning(gateway: Gateway, request: Request) -> Response:
    """Separate the reasoning of a text."""
    asked = await gateway.parse_body(request, parse_reasoning_request)
    try:
        parser = make_answer_parser(
            choose_reasoning_parser(gateway.plugins.loaded_parser(REASONING_PARSER, asked.parser)), None
        )
    except ConfigError:
        raise InvalidRequest(f"Unknown reasoning parser: {asked.parser}", param="reasoning_parser") from None

    def work() -> bytes:
        return reasoning_body(_read(parser, asked.text))

    return json_response(await gateway.preparer.off_loop_if_long(len(asked.text), work))


def _read(parser: AnswerParser, text: str) -> list[ParserEvent]:
    return [*parser.feed(text), *parser.finish()]
