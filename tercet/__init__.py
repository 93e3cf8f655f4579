"""What all services share, and what clients import."""

__version__ = "0.1.0"
