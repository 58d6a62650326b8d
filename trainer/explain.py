"""`mnist-tune explain` as one call: what a lookup serves, and why."""

from __future__ import annotations

import json

from rich.console import Console

import kernels
from kernels.problems import parse_problems
from trainer.train import EMULATED_FOR
from tuner.devices import find, resolve
from tuner.store import Store
from tuner.store.explain import as_json as match_json
from tuner.store.explain import explain
from tuner.types import Device


def run_explain(store_url: str | None, text: str, *, device: str | None, as_json: bool, console: Console) -> int:
    """Look up the problems that `text` names, and print for each the configuration, its rung, and the rungs above.

    `device` is as `--device` of `train` has it, or the name of a GPU that need not be here.

    Raises:
        UserError: no such problem, device or store.
    """
    problems = parse_problems(text)
    if not text.strip().startswith(tuple(kernels.ALL)):
        # A plain shape is a hidden layer's; as a network's first layer it has no dX, which is another problem.
        backward = [problem for problem in problems if problem.kernel == kernels.linear_backward.name]
        firsts = [kernels.linear_backward.problem(*dict(problem.dims).values(), dx="none") for problem in backward]
        problems = list(dict.fromkeys([*problems, *firsts]))
    target = _device(device)
    with Store.open(store_url) as store:
        matches = [store.lookup(kernels.ALL[problem.kernel], problem, target) for problem in problems]
    if as_json:
        console.out(json.dumps([match_json(match) for match in matches], indent=2), highlight=False)
        return 0
    for match in matches:
        console.print(explain(match))
        console.print()
    return 0


def _device(spec: str | None) -> Device:
    if spec is None or spec.startswith(("cuda", "cpu", "none")):
        return resolve(spec) or find(EMULATED_FOR)
    return find(spec)
