"""What a hostile client can send, and what it costs: see ``scripts/bench_hostile.py``."""
