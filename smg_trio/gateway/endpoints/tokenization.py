"""Text to token ids and back, without an engine."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from smg_trio.api.openai.chat.request import ChatRequest
from smg_trio.api.parameters.sampling import SamplingFields
from smg_trio.api.tokenize import (
    TokenizeRequest,
    detokenize_batch_body,
    detokenize_body,
    parse_detokenize_batch_request,
    parse_detokenize_request,
    parse_tokenize_request,
    parse_tokenize_texts_request,
    tokenize_body,
    tokenize_texts_body,
    tokenizer_info_body,
)
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.text.chat_template import ChatTemplate

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.pipeline.models import ServedModel


async def tokenize(gateway: Gateway, request: Request) -> Response:
    """vLLM's ``/tokenize``: a prompt, or a conversation through the chat template."""
    asked = await gateway.parse_body(request, parse_tokenize_request, gateway.limits)
    model = gateway.catalog.find(asked.model)
    token_ids = await _tokenize(gateway, asked, model)
    tokenizer = model.text.tokenizer
    window = gateway.registry.max_model_len(model.model_id) or model.text.context_length or 0

    def body() -> bytes:
        texts = [tokenizer.backend.id_to_token(token_id) or "" for token_id in token_ids]
        return tokenize_body(token_ids, window, texts if asked.return_token_strs else None)

    return json_response(await gateway.preparer.off_loop_if_long(len(token_ids), body))


async def _tokenize(gateway: Gateway, asked: TokenizeRequest, model: ServedModel) -> list[int]:
    if asked.prompt is not None:
        texts = await gateway.preparer.texts([asked.prompt], model, add_special_tokens=asked.add_special_tokens)
        return texts[0]
    chat = ChatRequest(
        model=asked.model,
        messages=asked.messages or [],
        sampling=SamplingFields(),
        tools=asked.tools,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        add_special_tokens=asked.add_special_tokens,
        chat_template=asked.chat_template,
        chat_template_kwargs=asked.chat_template_kwargs,
    )
    return (await gateway.preparer.chat_prompt(chat, model)).token_ids


async def detokenize(gateway: Gateway, request: Request) -> Response:
    """vLLM's ``/detokenize``: one list of ids; special tokens are kept."""
    asked = await gateway.parse_body(request, parse_detokenize_request)
    tokenizer = gateway.catalog.find(asked.model).text.tokenizer

    def body() -> bytes:
        return detokenize_body(tokenizer.decode(asked.batch[0], skip_special_tokens=False))

    return json_response(await gateway.preparer.off_loop_if_long(len(asked.batch[0]), body))


async def tokenizer_info(gateway: Gateway, request: Request) -> Response:
    """vLLM's ``/tokenizer_info``: named special tokens and chat template, for clients that tokenize remotely."""
    text = gateway.catalog.find(request.query.get("model", "")).text
    template = text.chat_template.source if isinstance(text.chat_template, ChatTemplate) else None
    return json_response(tokenizer_info_body(text.tokenizer.special_tokens, text.context_length, template))


async def tokenize_texts(gateway: Gateway, request: Request) -> Response:
    """The reference's ``/v1/tokenize``: one text or several."""
    asked = await gateway.parse_body(request, parse_tokenize_texts_request)
    model = gateway.catalog.find(asked.model)
    token_ids = await gateway.preparer.texts(asked.texts, model, add_special_tokens=True)
    work = functools.partial(tokenize_texts_body, asked, token_ids)
    return json_response(await gateway.preparer.off_loop_if_long(sum(map(len, token_ids)), work))


async def detokenize_batch(gateway: Gateway, request: Request) -> Response:
    """The reference's ``/v1/detokenize``: one list of ids or several; special tokens are left out."""
    asked = await gateway.parse_body(request, parse_detokenize_batch_request)
    tokenizer = gateway.catalog.find(asked.model).text.tokenizer

    def body() -> bytes:
        return detokenize_batch_body(asked, [tokenizer.decode(ids) for ids in asked.batch])

    return json_response(await gateway.preparer.off_loop_if_long(sum(len(ids) + 8 for ids in asked.batch), body))
