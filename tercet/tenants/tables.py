"""The tables of the store, in words that SQLite and PostgreSQL both know. Times are seconds since the epoch."""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa

from .plan import TenantPlan

# Of the tables below. A change that older versions cannot read makes it larger.
SCHEMA = 1

metadata = sa.MetaData()

# One row. `revision` grows with every change of the other tables, in the same transaction.
settings = sa.Table(
    "settings",
    metadata,
    sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1"), primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("server_key", sa.LargeBinary(32), nullable=False),
)

# The columns after `created_at` are the fields of TenantPlan; classes are separated by commas.
tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("uid", sa.String(32), nullable=False, unique=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("classes", sa.Text, nullable=False),
    sa.Column("default_class", sa.String(64), nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("requests_per_minute", sa.BigInteger, nullable=False),
    sa.Column("tokens_per_minute", sa.BigInteger, nullable=False),
    sa.Column("max_concurrent", sa.BigInteger, nullable=False),
    sa.Column("kv_share", sa.Float, nullable=False),
    sa.Column("max_context", sa.BigInteger, nullable=False),
    sa.Column("min_priority", sa.Integer, nullable=False),
)
PLAN_COLUMNS = tuple(item.name for item in dataclasses.fields(TenantPlan))

# Keys that were revoked stay, so that it can be said when.
keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("tenant", sa.ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("role", sa.String(16), sa.CheckConstraint("role IN ('tenant', 'operator')"), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
)
