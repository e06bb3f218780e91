"""Tools of MCP servers, called for Responses requests; the official SDK is imported in two of its modules only."""
