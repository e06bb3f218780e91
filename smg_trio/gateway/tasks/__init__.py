"""Tasks of the process beside those of connections: background responses, deadlines, and restarts after failures."""
