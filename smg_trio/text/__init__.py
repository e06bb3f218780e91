"""Tokens and text, both ways. Knows nothing of engines, HTTP or time.

* `model_files` reads a model directory (the only IO of this room, blocking, at start);
* `chat_template` turns a conversation into prompt text; `template_probes` finds out what a template takes
  (`template_traits`), and `conversation` with `tool_turns`, `message_forms` and `tool_forms` gives it that;
* `tokenizer` turns text into ids; `token_pieces` says what single ids are;
* `detokenizer` turns a running answer's ids into text; `stops` ends that text.
"""
