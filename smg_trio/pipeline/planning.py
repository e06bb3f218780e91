"""What a chat request means for the prompt's arguments and for the reading of its answer. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from smg_trio.parsers.plan import AnswerPlan, plan_answer
from smg_trio.parsers.registry import choose_reasoning_parser
from smg_trio.text.mistral_chat import MistralChat

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.request import ChatRequest
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.text.chat_template import ChatTemplate
    from smg_trio.text.tokenizer import Tokenizer

PLAIN_TEXT = AnswerPlan()
"""The answer's text is shown as it comes."""

_EFFORTS_WITHOUT_THINKING = ("none", "minimal")


def template_arguments(request: ChatRequest, template: ChatTemplate) -> dict[str, Any]:
    """What the template gets beside the conversation; the request's own arguments win over derived ones.

    `reasoning_effort` is passed on, as the nearest that the template takes, and moves its thinking switch where it has
    one.
    """
    arguments: dict[str, Any] = {}
    if request.reasoning_effort is not None:
        effort = template.efforts.get(request.reasoning_effort)
        if effort is not None:
            arguments["reasoning_effort"] = effort
        toggle = template.thinking_toggle
        if toggle is not None:
            arguments[toggle.key] = request.reasoning_effort not in _EFFORTS_WITHOUT_THINKING
    return arguments | dict(request.chat_template_kwargs)


def is_thinking(request: ChatRequest, template: ChatTemplate | MistralChat) -> bool | None:
    """Where the template's thinking switch stands for this request; None where it has none."""
    toggle = template.thinking_toggle
    if toggle is None or isinstance(template, MistralChat):
        return None
    return bool(template_arguments(request, template).get(toggle.key, toggle.default))


def check_parsers(model: ServedModel) -> None:
    """Raises ConfigError if the operator named unknown parsers for the model."""
    plan_answer(tool_flag=model.tool_parser, reasoning_flag=model.reasoning_parser)


def plan_chat(request: ChatRequest, model: ServedModel, prompt_text: str) -> AnswerPlan:
    """What is done with the text of the request's answer."""
    template = model.text.template_for(tools=bool(request.tools))
    if not request.tools and request.sampling.structured_output is None and _has_no_reasoning(model, template):
        return PLAIN_TEXT
    last = request.messages[-1] if request.messages else {}
    continued = last.get("content") if request.continue_final_message else ""
    return plan_answer(
        tool_flag=model.tool_parser,
        reasoning_flag=model.reasoning_parser,
        model_name=name_for_parsers(model.model_id, model.root),
        template_source="" if template is None else template.source,
        prompt_text=prompt_text,
        continued_text=continued if isinstance(continued, str) else "",
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        earlier_calls=sum(len(message.get("tool_calls") or ()) for message in request.messages),
        constraint=request.sampling.structured_output,
        separate_reasoning=request.separate_reasoning,
        thinking=None if template is None else is_thinking(request, template),
        special_tokens=special_texts(model.text.tokenizer),
        skip_special_tokens=request.sampling.skip_special_tokens,
        tokenizer_has=token_lookup(model.text.tokenizer),
    )


@lru_cache(maxsize=64)
def name_for_parsers(model_id: str, root: str) -> str:
    """What a model's family is recognised by: its own names, not the directories above them."""
    return f"{PurePath(model_id).name} {PurePath(root).name}"


def _has_no_reasoning(model: ServedModel, template: ChatTemplate | MistralChat | None) -> bool:
    name = f"{model.model_id} {model.root}"
    return (
        choose_reasoning_parser(model.reasoning_parser, None, name, "" if template is None else template.source) is None
    )


@lru_cache(maxsize=16)
def token_lookup(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Whether a text is one token: one function per tokenizer."""
    return lambda text: tokenizer.token_id(text) is not None


@lru_cache(maxsize=16)
def special_texts(tokenizer: Tokenizer) -> frozenset[str]:
    """The texts of the tokenizer's special tokens: one object per tokenizer."""
    return frozenset(tokenizer.added_tokens[token_id] for token_id in tokenizer.special_ids)
