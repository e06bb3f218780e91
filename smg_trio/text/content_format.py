"""Whether a chat template wants message content as text or as a list of parts.

Templates do not say; vLLM finds out by looking for a loop over the content of a message in the template's
syntax tree, and clients of vLLM see prompts made that way. The verdicts here agree with vLLM 0.32's
(``renderers/hf.py``) on every template we could lay hands on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def detect_content_format(tree: nodes.Template) -> ContentFormat:
    """``openai`` if some loop runs over a message's content, ``string`` otherwise."""
    messages = _message_names(tree)
    macro_params = _content_params(tree, messages)
    for loop in tree.find_all(nodes.For):
        if any(_is_content_of(loop.iter, name) for name in messages):
            return "openai"
        if not isinstance(loop.iter, nodes.Name):
            continue
        if loop.iter.name in macro_params.get(id(loop), {"content"}):
            return "openai"
    return "string"


def _message_names(tree: nodes.Template) -> set[str]:
    """Loop variables that hold one message."""
    lists = _aliases(tree, "messages")
    return {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_is_variable(loop.iter, name) for name in lists)
    }


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """`name` and every variable set from it, directly or through others."""
    found, frontier = {name}, [name]
    while frontier:
        source = frontier.pop()
        for assign in tree.find_all(nodes.Assign):
            target = assign.target
            if isinstance(target, nodes.Name) and _is_variable(assign.node, source) and target.name not in found:
                found.add(target.name)
                frontier.append(target.name)
    return found


def _content_params(tree: nodes.Template, messages: set[str]) -> dict[int, set[str]]:
    """For every loop inside a macro (by node identity): the parameters that some call gives content to."""
    params_of_loop: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        params = {
            name
            for call in tree.find_all(nodes.Call)
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name
            for name, value in _bound_arguments(macro, call)
            if any(_is_content_of(value, message) for message in messages)
        }
        for loop in macro.find_all(nodes.For):
            params_of_loop.setdefault(id(loop), set()).update(params)
    return params_of_loop


def _bound_arguments(macro: nodes.Macro, call: nodes.Call) -> Iterator[tuple[str, nodes.Node]]:
    yield from zip((param.name for param in macro.args), call.args, strict=False)
    names = {param.name for param in macro.args}
    for keyword in call.kwargs:
        if isinstance(keyword, nodes.Keyword) and keyword.key in names:
            yield keyword.key, keyword.value


def _peel(node: nodes.Node | None) -> nodes.Node | None:
    """The node below filters, tests and slices: what is left is whose elements are meant."""
    while node is not None:
        if isinstance(node, nodes.Filter | nodes.Test) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            return node
    return None


def _is_variable(node: nodes.Node, name: str) -> bool:
    peeled = _peel(node)
    return isinstance(peeled, nodes.Name) and peeled.name == name and peeled.ctx == "load"


def _is_content_of(node: nodes.Node, message: str) -> bool:
    peeled = _peel(node)
    if isinstance(peeled, nodes.Getattr):
        return peeled.attr == "content" and _is_plain_name(peeled.node, message)
    if isinstance(peeled, nodes.Getitem) and isinstance(peeled.arg, nodes.Const):
        return peeled.arg.value == "content" and _is_plain_name(peeled.node, message)
    return False


def _is_plain_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name and node.ctx == "load"
