"""``/v1/responses`` and ``/v1/conversations``: request, items, output, stream, fold and what is stored."""
