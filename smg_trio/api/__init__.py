"""JSON to core types and back: every HTTP API this gateway speaks, without IO, clock or event loop.

Requests are read by tables of readers (`parameters.fields`, `parameters.sampling`, `openai.chat`, ...); every refusal
is an `InvalidRequest` or `UnsupportedFeature` that names the parameter. Answers are written from the neutral events of
`core.events`, streamed (`stream`) or folded (`fold`); both come from the same events, so they cannot differ.
`chat_events` decides what chats of all APIs show of these, `blocks` makes blocks and items of that, and `json_text`
turns values into bytes. Errors become bodies in one place, `errors`.

`anthropic`, `generate`, `pooling` and others build on `openai`, never the other way.
"""
