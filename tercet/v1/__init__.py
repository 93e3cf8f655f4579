"""Generated from proto/tercet/v1: the public contract."""
