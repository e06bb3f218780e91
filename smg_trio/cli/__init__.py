"""The command line: launch | serve | config | demo | fake-engine | handshake-port | chat | top | completion."""
