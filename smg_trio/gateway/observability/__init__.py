"""What operators see: metrics, access log, logs, traces and recent errors."""
