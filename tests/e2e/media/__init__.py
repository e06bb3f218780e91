"""Pictures in requests, from real HTTP clients to what a fake engine with a vision model sees."""
