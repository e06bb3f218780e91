"""OpenAI's HTTP APIs as vLLM's own server extends them: chat completions, completions, models."""
