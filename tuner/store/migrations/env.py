"""Runs the migrations on the connection that `tuner.store.migrate` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from tuner.store.migrate import VERSION_TABLE
from tuner.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
