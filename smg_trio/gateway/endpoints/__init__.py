"""Endpoints: plain async functions ``(gateway, request) -> Response``. `routes.ROUTES` is the table of all of them."""
