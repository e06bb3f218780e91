"""Tokens and text, both ways. Knows nothing of engines, HTTP or time.

* `model_files` reads a model directory (the only IO of this room, blocking, at start);
* `chat_template` with `messages` and `content_format` turns a conversation into prompt text;
* `tokenizer` turns text into ids; `token_pieces` says what single ids are;
* `detokenizer` turns a running answer's ids into text; `stops` ends that text.
"""
