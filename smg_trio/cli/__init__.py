"""The command line; `main` lists its commands."""
