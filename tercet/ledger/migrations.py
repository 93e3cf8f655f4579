"""How the tables came to be, version by version. A new database takes the same way as an old one.

Versions only add what may be empty: while gateways of two versions share a database, the older ones go on to write.
"""

from __future__ import annotations

import sqlalchemy as sa

from tercet.errors import LedgerError

from .tables import schema

# Of PostgreSQL's advisory locks that of whoever migrates. SQLite has one writer anyway.
_LOCK = 7_357_001

# Statements that lead from each version to the next, in words that SQLite and PostgreSQL both know.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE ledger (id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1), schema_version INTEGER NOT NULL)",
        "INSERT INTO ledger (id, schema_version) VALUES (1, 0)",
        "CREATE TABLE gateways (instance TEXT NOT NULL PRIMARY KEY, started_at DOUBLE PRECISION NOT NULL,"
        " seen_at DOUBLE PRECISION NOT NULL, ended_at DOUBLE PRECISION)",
        "CREATE TABLE requests (instance TEXT NOT NULL, number BIGINT NOT NULL, request_id TEXT NOT NULL,"
        " tenant TEXT NOT NULL, traffic_class TEXT NOT NULL, model TEXT NOT NULL, revision TEXT NOT NULL,"
        " outputs BIGINT NOT NULL, arrived_at DOUBLE PRECISION NOT NULL, day TEXT NOT NULL, outcome TEXT NOT NULL,"
        " reason TEXT NOT NULL, prompt_tokens BIGINT NOT NULL, cached_tokens BIGINT, generated_tokens BIGINT,"
        " delivered_tokens BIGINT, wasted_tokens BIGINT, queue_s DOUBLE PRECISION, ttft_s DOUBLE PRECISION,"
        " tpot_s DOUBLE PRECISION, total_s DOUBLE PRECISION, gpu_s DOUBLE PRECISION, cost DOUBLE PRECISION, slo TEXT,"
        " PRIMARY KEY (instance, number))",
        "CREATE INDEX requests_by_arrival ON requests (arrived_at)",
        "CREATE INDEX requests_open ON requests (instance) WHERE outcome = 'open'",
    ),
    (
        "ALTER TABLE requests ADD COLUMN largest_gap_s DOUBLE PRECISION",
        'CREATE TABLE refusals (instance TEXT NOT NULL, "second" BIGINT NOT NULL, tenant TEXT NOT NULL,'
        " traffic_class TEXT NOT NULL, model TEXT NOT NULL, reason TEXT NOT NULL, day TEXT NOT NULL,"
        ' "count" BIGINT NOT NULL, request_id TEXT NOT NULL,'
        ' PRIMARY KEY (instance, "second", tenant, traffic_class, model, reason))',
        'CREATE INDEX refusals_by_second ON refusals ("second")',
    ),
    (
        "CREATE TABLE cancellations (instance TEXT NOT NULL, number BIGINT NOT NULL, part BIGINT NOT NULL,"
        " request_id TEXT NOT NULL, tenant TEXT NOT NULL, traffic_class TEXT NOT NULL, output_index BIGINT,"
        " origin TEXT NOT NULL, cancelled_at DOUBLE PRECISION NOT NULL, states TEXT NOT NULL,"
        " release_s DOUBLE PRECISION, freed_s DOUBLE PRECISION, done_s DOUBLE PRECISION, blocks_freed BIGINT,"
        " wasted_tokens BIGINT, wasted_gpu_s DOUBLE PRECISION, PRIMARY KEY (instance, number, part))",
        "CREATE INDEX cancellations_by_time ON cancellations (cancelled_at)",
    ),
    (
        "ALTER TABLE requests ADD COLUMN cpu_s DOUBLE PRECISION",
        "ALTER TABLE requests ADD COLUMN takeovers BIGINT",
        *(
            f"ALTER TABLE requests ADD COLUMN {name}_s DOUBLE PRECISION"
            for name in (
                "checks",
                "tokenize",
                "prepare",
                "admission",
                "waiting",
                "prefill",
                "decode",
                "paused",
                "stream",
            )
        ),
        "CREATE INDEX requests_by_id ON requests (request_id)",
    ),
)

# What this version of tercet writes.
SCHEMA = len(STEPS)


def migrate(connection: sa.Connection, name: str) -> None:
    """Brings the database up to SCHEMA, in the transaction of `connection`; nothing if it is there. Raises LedgerError
    for one of a newer version, and for one of something else."""
    if connection.dialect.name == "postgresql":
        # Gateways of one mesh start at the same time.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    there = set(sa.inspect(connection).get_table_names())
    if there and schema.name not in there:
        raise LedgerError(f"{name} is a database of something else: it has a table {min(there)}")
    version = version_of(connection, name) if there else 0
    for statement in (each for step in STEPS[version:] for each in step):
        connection.exec_driver_sql(statement)
    if version < SCHEMA:
        connection.execute(schema.update().values(schema_version=SCHEMA))


def version_of(connection: sa.Connection, name: str) -> int:
    """The version that the database has. Raises LedgerError for one that is newer than SCHEMA, or
    is none."""
    version: object = connection.execute(sa.select(schema.c.schema_version)).scalar_one()
    if not isinstance(version, int) or version < 0:
        # SQLite keeps in a column of numbers whatever it is given.
        raise LedgerError(f"{name} has schema {version!r}, which no version of tercet writes")
    if version > SCHEMA:
        raise LedgerError(
            f"{name} has schema {version}; this version of tercet knows those up to {SCHEMA}: use the version that "
            "wrote it, or a newer one"
        )
    return version
