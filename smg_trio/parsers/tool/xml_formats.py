"""The families whose calls are XML-like markup, as records of `xml_block.XmlFormat`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from smg_trio.parsers.suffixes import Suffixed
from smg_trio.parsers.tool.xml_block import XmlFormat, XmlParser

if TYPE_CHECKING:
    from smg_trio.parsers.base import ToolSchemas

QWEN3_CODER = XmlFormat(
    call_open="<function=",
    call_close="</function>",
    head_end=">",
    param_open="<parameter=",
    param_close="</parameter>",
    block_open=("<tool_call>",),
    block_close=("</tool_call>",),
    framed=True,
)
SEED_OSS = replace(QWEN3_CODER, block_open=("<seed:tool_call>",), block_close=("</seed:tool_call>",))
MINIMAX_M2 = XmlFormat(
    call_open="<invoke ",
    call_close="</invoke>",
    head_end=">",
    param_open="<parameter ",
    param_close="</parameter>",
    block_open=("<minimax:tool_call>",),
    block_close=("</minimax:tool_call>",),
)
DEEPSEEK_V32 = XmlFormat(
    call_open="<｜DSML｜invoke ",
    call_close="</｜DSML｜invoke>",
    head_end=">",
    param_open="<｜DSML｜parameter ",
    param_close="</｜DSML｜parameter>",
    block_open=("<｜DSML｜function_calls>",),
    block_close=("</｜DSML｜function_calls>",),
)
DEEPSEEK_V4 = replace(
    DEEPSEEK_V32,
    # Besides the right one, spellings that the model is seen to write (vLLM 0.32, ``parser/deepseek_v4.py``).
    block_open=("<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>"),
    block_close=("</｜DSML｜tool_calls>", "</｜DSML｜toolcalls>", "</｜DSML｜tool>"),
)
DEEPSEEK_V41 = XmlFormat(
    call_open="<｜DSML｜ invoke ",
    call_close="</｜DSML｜ invoke>",
    head_end=">",
    param_open="<｜DSML｜ parameter ",
    param_close="</｜DSML｜ parameter>",
    block_open=("<｜DSML｜ calls>",),
    block_close=("</｜DSML｜ calls>",),
)
GLM = XmlFormat(
    call_open="<tool_call>",
    call_close="</tool_call>",
    head_end="",
    param_open="<arg_key>",
    param_close="</arg_value>",
    param_head_end="</arg_key>",
    value_open="<arg_value>",
)
IQUEST = replace(GLM, call_open="<iquest_tool_call>", call_close="</iquest_tool_call>")
STEP3 = XmlFormat(
    call_open="<steptml:invoke ",
    call_close="</steptml:invoke>",
    head_end=">",
    param_open="<steptml:parameter ",
    param_close="</steptml:parameter>",
    block_open=("<｜tool_calls_begin｜>",),
    block_close=("<｜tool_calls_end｜>",),
    ignored=("<｜tool_call_begin｜>", "function", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
)

DOTS = XmlFormat(
    call_open="<invoke name=",
    call_close="</invoke>",
    head_end=">",
    param_open="<parameter name=",
    param_close="</parameter>",
    block_open=("<dots_function_call>",),
    block_close=("</dots_function_call>",),
)
HUNYUAN = replace(GLM, name_end="<tool_sep>", block_open=("<tool_calls>",), block_close=("</tool_calls>",))
K2_HORIZON = XmlFormat(
    call_open="<ifm|tool_call>",
    call_close="</ifm|tool_call>",
    head_end="",
    param_open="<ifm|arg_key>",
    param_close="</ifm|arg_value>",
    param_head_end="</ifm|arg_key>",
    value_open="<ifm|arg_value>",
    type_open="<ifm|arg_type>",
    type_close="</ifm|arg_type>",
    block_open=("<ifm|tool_calls>",),
    block_close=("</ifm|tool_calls>",),
)
MIMO = replace(QWEN3_CODER, framed=False)
MINICPM5 = XmlFormat(
    call_open="<function ",
    call_close="</function>",
    head_end=">",
    param_open="<param ",
    param_close="</param>",
    cdata=True,
)


class Step5Parser(XmlParser):
    """Parser of Step 5, which writes Qwen's markup and means the white space in front of it."""

    keeps_space: ClassVar[bool] = True

    def __init__(self, tools: ToolSchemas | None = None) -> None:
        super().__init__(QWEN3_CODER, tools)


class HunyuanXmlParser(Suffixed, XmlParser):
    """Parser of Hunyuan 3 and 4, whose markers may carry a suffix."""

    def __init__(self, tools: ToolSchemas | None = None) -> None:
        super().__init__(HUNYUAN, tools)
