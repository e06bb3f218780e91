"""``/v1/chat/completions``: request, events, stream and fold."""
