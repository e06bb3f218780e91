"""JSON to core types and back: every HTTP API this gateway speaks, without IO, clock or event loop.

Requests are read by tables of readers (`fields`, `sampling`, `openai.chat`, ...); every refusal is an
`InvalidRequest` or `UnsupportedFeature` that names the parameter. Answers are written from the neutral
events of `core.events`, streamed (`*_stream`) or folded (`*_fold`); both come from the same events, so
they cannot differ. Errors become bodies in one place, `errors`.
"""
