"""Byte-level and SentencePiece-style BPE, word by word: pretokens are cut here and their token ids remembered.

`word_cache` is the entrance; `pretokens` says how a tokenizer cuts a text, `split_patterns` and `character_classes`
translate its patterns, `added_tokens` and `segments` say where a text may be cut before that.
"""
