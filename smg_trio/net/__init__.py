"""Where a client may send this host to: URLs, addresses, hosts, and connections to addresses that were checked."""
