"""Text to events: reasoning, content and tool calls, pure and incremental.

`registry` chooses and makes parsers, `answer` composes them. Every parser is a script over a `cursor`, so what
it says depends on the text alone and never on how the text was cut. This room knows no tokens, no requests
and no clock.
"""
