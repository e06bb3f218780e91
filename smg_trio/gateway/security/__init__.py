"""Who may do what: API keys and their limits, certificates, CORS, and what a configuration exposes."""
