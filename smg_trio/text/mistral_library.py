"""What is used of mistral_common, imported only where a model needs it."""

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

__all__ = ["ChatCompletionRequest", "MistralTokenizer", "ValidationMode"]
