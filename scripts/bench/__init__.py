"""Parts of `bench_gateway.py`: the fake engine's process, the load client, the peers, the reading of answers."""
