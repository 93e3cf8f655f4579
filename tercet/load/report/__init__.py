"""What is said of a run, and of two: a page with plots, a comparison that tells noise from change, what it cost.

Reads what runs have recorded; measures nothing.
"""
