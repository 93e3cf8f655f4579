"""What services tell Prometheus, and how: metrics, distributions, bounded labels, the port. Knows no service."""
