"""Tokenizer files of other formats than ``tokenizer.json``, each built into a `tokenizers.Tokenizer`.

So everything above works for them as for any other: ids, offsets, incremental decoding, remembered words. A model's own
code is never run; what it would do is known here by the name of its tokenizer class, or the model is refused with what
to do.
"""
