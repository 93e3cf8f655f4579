"""The tables of the ledger, for queries. How they come to be is in migrations.py, in the same words."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

# One row.
schema = sa.Table(
    "ledger",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("schema_version", sa.Integer, nullable=False),
)

# Gateways that write here, each process by an id of its own. Times are seconds since the epoch.
gateways = sa.Table(
    "gateways",
    metadata,
    sa.Column("instance", sa.Text, primary_key=True),
    sa.Column("started_at", sa.Double, nullable=False),
    # When it last said that it lives.
    sa.Column("seen_at", sa.Double, nullable=False),
    # When it ended, or was found to have.
    sa.Column("ended_at", sa.Double),
)

# The columns after `instance` are the fields of Row but the last two, those of StageTimes, and `day`, that of its
# arrival in UTC, 2026-11-30.
requests = sa.Table(
    "requests",
    metadata,
    sa.Column("instance", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("traffic_class", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("revision", sa.Text, nullable=False),
    sa.Column("outputs", sa.BigInteger, nullable=False),
    sa.Column("arrived_at", sa.Double, nullable=False),
    sa.Column("day", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger),
    sa.Column("generated_tokens", sa.BigInteger),
    sa.Column("delivered_tokens", sa.BigInteger),
    sa.Column("wasted_tokens", sa.BigInteger),
    sa.Column("queue_s", sa.Double),
    sa.Column("ttft_s", sa.Double),
    sa.Column("tpot_s", sa.Double),
    sa.Column("largest_gap_s", sa.Double),
    sa.Column("total_s", sa.Double),
    sa.Column("gpu_s", sa.Double),
    sa.Column("cost", sa.Double),
    sa.Column("slo", sa.Text),
    sa.Column("cpu_s", sa.Double),
    sa.Column("takeovers", sa.BigInteger),
    sa.Column("checks_s", sa.Double),
    sa.Column("tokenize_s", sa.Double),
    sa.Column("prepare_s", sa.Double),
    sa.Column("admission_s", sa.Double),
    sa.Column("waiting_s", sa.Double),
    sa.Column("prefill_s", sa.Double),
    sa.Column("decode_s", sa.Double),
    sa.Column("paused_s", sa.Double),
    sa.Column("stream_s", sa.Double),
)

# The columns after `instance` are the fields of Refusals and of its key, and `day`.
refusals = sa.Table(
    "refusals",
    metadata,
    sa.Column("instance", sa.Text, primary_key=True),
    sa.Column("second", sa.BigInteger, primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("traffic_class", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text, primary_key=True),
    sa.Column("day", sa.Text, nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
)

# A cancel of a request, which is in `requests` as well: the first columns are those of its row, the others the fields
# of Cancellation.
cancellations = sa.Table(
    "cancellations",
    metadata,
    sa.Column("instance", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True),
    # 0 is the whole request, others are output indexes plus one: a key is never NULL.
    sa.Column("part", sa.BigInteger, primary_key=True),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("traffic_class", sa.Text, nullable=False),
    sa.Column("output_index", sa.BigInteger),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("cancelled_at", sa.Double, nullable=False),
    # Separated by commas.
    sa.Column("states", sa.Text, nullable=False),
    sa.Column("release_s", sa.Double),
    sa.Column("freed_s", sa.Double),
    sa.Column("done_s", sa.Double),
    sa.Column("blocks_freed", sa.BigInteger),
    sa.Column("wasted_tokens", sa.BigInteger),
    sa.Column("wasted_gpu_s", sa.Double),
)
