"""Values that settings choose from. Pure."""

from __future__ import annotations

BACKENDS = ("vllm", "tokenspeed")
CONTROL_PLANE_ROLES = ("admin", "user")
LOG_LEVELS = ("debug", "info", "warn", "error")
METRICS_COMPAT = ("none", "vllm")
MM_FETCH_POLICIES = ("off", "allowlist", "public")
POLICIES = (
    "least_load",
    "round_robin",
    "random",
    "power_of_two",
    "passthrough",
    "consistent_hashing",
    "prefix_hash",
    "cache_aware",
    "manual",
)
