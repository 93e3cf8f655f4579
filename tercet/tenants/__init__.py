"""Tenants and their keys: what they may do, where that is kept, and whom a key stands for."""
