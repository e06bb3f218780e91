"""The ASGI apps of the gateway's listeners.

The API's listener runs `hot_routes`, which serves the busiest routes itself and leaves the rest to `quart_app`; the
others run `probes_app` and `metrics_app`. `refusals` makes the answers to requests that reach no endpoint.
"""
