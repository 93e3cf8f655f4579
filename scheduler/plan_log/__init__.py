"""The flight recorder: what happened to the core, kept for a while, and the core run again on it (docs/adr/0010)."""
