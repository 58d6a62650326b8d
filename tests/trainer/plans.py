"""A store, its rows and plans, for the tests of what is built on them."""

from __future__ import annotations

from tests.trainer.report_rows import LAPTOP
from trainer.mlp import Network
from trainer.plan import Check, Choice, Plan, make_plan
from tuner.devices import find
from tuner.kernel import Kernel
from tuner.store import Store
from tuner.types import CacheState, Config, Device, Kind, Measurement, Problem, Status

T4 = find("T4")
SMALL = Network(16, layers=2, batch=8)


def passes(choice: Choice) -> None:
    """A check that nothing fails."""


def plan_of(store: Store, network: Network = SMALL, *, check: Check = passes, device: Device = T4) -> Plan:
    return make_plan(store, network, device, LAPTOP, check=check)


def add(
    store: Store,
    kernel: Kernel,
    problem: Problem,
    config: Config,
    us: float,
    *,
    kind: Kind = Kind.MEASURED,
    device: Device = T4,
) -> str:
    """Record that `config` is right and takes `us`."""
    row = Measurement(
        problem,
        config,
        Status.OK,
        kind,
        samples_us=(us,),
        median_us=us,
        spread=0.0,
        cache=CacheState.HOT,
        verified_by="emulation",
    )
    return store.record(row, kernel=kernel, device=device, environment=LAPTOP)
