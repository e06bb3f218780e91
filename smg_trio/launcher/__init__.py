"""``serve``: engine command lines and engine processes. Knows workers by their snapshots, never the HTTP side.

Pure: `serve_options` (what was asked), `commands` (what to start), `progress` (what the lines say, when to try again).
IO: `ports`, `process` (one engine process), `engines` (their supervision), `orphan_guard` (their end if serve is
killed), `serve` (the task tree).
"""
