"""The ledger: one row for each request, where rows are kept, and what they add up to."""
