"""One request's journey: prepare (template, token ids, sampling) → choose a worker → generate → decode to events.

This room joins text, parsers and workers. It does not know the wire below or the formats of any API above:
requests come in as validated records, answers go out as `ChoiceUpdate`s.
"""
