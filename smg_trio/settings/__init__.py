"""Every setting once (`settings`), their sources, checks of what goes together, and `config show`."""
