"""``/v1/completions``: request, pieces, stream and fold."""
