"""The private contract between the services."""
