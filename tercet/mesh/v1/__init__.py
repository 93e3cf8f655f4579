"""Generated from proto/tercet/mesh/v1."""
