"""The first tables: devices, environments, observations, baselines, races and their contenders."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _identity() -> list[sa.Column[Any]]:
    """Columns of every row that carries a UUID and says where it was made."""
    return [
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("uuid", sa.String(36), nullable=False, unique=True),
        sa.Column("device_id", sa.Integer(), sa.ForeignKey("devices.id"), nullable=False, index=True),
        sa.Column("environment_id", sa.Integer(), sa.ForeignKey("environments.id"), nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False, unique=True),
        sa.Column("key", sa.String(200), nullable=False, index=True),
        sa.Column("name", sa.String(160), nullable=False),
        sa.Column("arch", sa.String(16), nullable=False),
        sa.Column("sm_count", sa.Integer(), nullable=False),
        sa.Column("shared_per_block", sa.Integer(), nullable=False),
        sa.Column("shared_per_sm", sa.Integer(), nullable=False),
        sa.Column("registers_per_sm", sa.Integer(), nullable=False),
        sa.Column("threads_per_sm", sa.Integer(), nullable=False),
        sa.Column("blocks_per_sm", sa.Integer(), nullable=False),
        sa.Column("l2_bytes", sa.BigInteger(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("memory_bandwidth", sa.Double(), nullable=False),
        sa.Column("l2_bandwidth", sa.Double(), nullable=False),
        sa.Column("tensor_flops", sa.Double(), nullable=False),
        sa.Column("clock_hz", sa.Double(), nullable=False),
        sa.Column("launch_us", sa.Double(), nullable=False),
    )
    op.create_table(
        "environments",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False, unique=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("system", sa.Text(), nullable=False),
        sa.Column("python", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("nvrtc", sa.Text(), nullable=False),
        sa.Column("cupy", sa.Text(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("compiler", sa.Text(), nullable=False),
    )
    op.create_table(
        "observations",
        *_identity(),
        sa.Column("kernel", sa.String(100), nullable=False),
        sa.Column("source_hash", sa.String(64), nullable=False),
        sa.Column("space_hash", sa.String(64), nullable=False),
        sa.Column("problem_key", sa.String(400), nullable=False),
        sa.Column("dims", sa.JSON(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("config_key", sa.Text(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("samples_us", sa.JSON(), nullable=False),
        sa.Column("median_us", sa.Double()),
        sa.Column("spread", sa.Double()),
        sa.Column("error", sa.Double()),
        sa.Column("tolerance", sa.Double()),
        sa.Column("cache", sa.String(16)),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("registers", sa.Integer()),
        sa.Column("shared_bytes", sa.Integer()),
        sa.Column("spill_bytes", sa.Integer()),
        sa.Column("compile_s", sa.Double()),
        sa.Column("verified_by", sa.String(32), nullable=False),
        sa.Column("extra", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Index("ix_observations_kernel_source_hash", "kernel", "source_hash"),
        sa.Index("ix_observations_kernel_problem_key", "kernel", "problem_key"),
    )
    op.create_table(
        "baselines",
        *_identity(),
        sa.Column("kernel", sa.String(100), nullable=False),
        sa.Column("problem_key", sa.String(400), nullable=False),
        sa.Column("dims", sa.JSON(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("library", sa.String(100), nullable=False),
        sa.Column("samples_us", sa.JSON(), nullable=False),
        sa.Column("median_us", sa.Double(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=False),
        sa.Column("cache", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "races",
        *_identity(),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("layers", sa.Integer(), nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("lr", sa.Double(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("strongest", sa.String(100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "contenders",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("race_id", sa.Integer(), sa.ForeignKey("races.id"), nullable=False, index=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("us_per_step", sa.Double()),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.Column("spread", sa.Double()),
        sa.Column("start_s", sa.Double()),
        sa.Column("peak_bytes", sa.BigInteger()),
        sa.Column("losses", sa.JSON(), nullable=False),
        sa.Column("accuracy", sa.Double()),
        sa.Column("error", sa.Text()),
    )


def downgrade() -> None:
    for table in ("contenders", "races", "baselines", "observations", "environments", "devices"):
        op.drop_table(table)
