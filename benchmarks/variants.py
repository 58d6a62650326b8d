"""Other batches and depths: our step against PyTorch's at several widths, by the same race as `train`.

    python -m benchmarks.variants --widths 128,1024,4096 --batches 64,128,256,512 --layers 1,2,3,4,5,6 \\
        --contenders library,written_out_fused --starts 2 --out variants.json

At each width the batch varies with three hidden layers, and the number of hidden layers at batch 32; `--all` races
every combination. Each is written as soon as it is there, and the same command goes on. A combination that fails says
why, and is tried again then.

Ends with 1 where a PyTorch contender is faster or one failed, with 3 where entries are left (`--slice`). Needs a GPU.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from benchmarks.common import script
from benchmarks.entries import LEFT, Entries, Slice
from benchmarks.place import Ours, Place, add_options, whole_numbers
from kernels.problems import STEPS_PER_GRAPH
from trainer.contenders import chosen
from trainer.documents import command_line, describe_race
from trainer.lanes import Factory
from trainer.mlp import Network
from trainer.race import race
from trainer.schedule import Schedule
from tuner.errors import UserError
from tuner.store.rows import OURS

USUAL_BATCH, USUAL_LAYERS = 32, 3


def combinations(
    widths: Sequence[int], batches: Sequence[int], layers: Sequence[int], *, everything: bool
) -> list[Network]:
    """The networks to race, each once, in the order of the widths."""
    found = []
    for width in widths:
        if everything:
            found += [Network(width, depth, batch) for depth, batch in itertools.product(layers, batches)]
        else:
            found += [Network(width, USUAL_LAYERS, batch) for batch in batches]
            found += [Network(width, depth, USUAL_BATCH) for depth in layers]
    return list(dict.fromkeys(found))


def raced(
    place: Place, network: Network, ours: Ours, contenders: dict[str, Any], schedule: Schedule, lr: float, starts: int
) -> dict[str, Any]:
    """One race, as plain JSON."""
    factories: dict[str, Factory] = dict(contenders)
    result = race(
        ours.factory,
        factories,
        place.task(network, schedule.total, lr, 0),
        schedule=schedule,
        starts=starts,
        console=Console(),
    )
    row = result.row(device=place.device, environment=place.environment, seed=0, command=command_line())
    descriptions = {name: each.description for name, each in contenders.items()}
    return {"error": None, **describe_race(row, result, descriptions)}


def nothing(error: Exception) -> dict[str, Any]:
    """What is left of a combination that failed."""
    said = str(error) or type(error).__name__
    return {"error": said, "strongest": None, "ratio_to_strongest": None, "ratio_quartiles": None, "contenders": {}}


def show(console: Console, entries: Sequence[dict[str, Any]]) -> int:
    """A line per network; how many we do not win."""
    lost = 0
    console.print("width  batch  layers  ours us   strongest             us    ratio", highlight=False)
    for entry in entries:
        key, ratio = entry["key"], entry["ratio_to_strongest"]
        ours, strongest = entry["contenders"].get(OURS, {}), entry["contenders"].get(entry["strongest"], {})
        lost += ratio is None or ratio <= 1
        mine, theirs = (f"{each['us_per_step']:.2f}" if each.get("us_per_step") else "-" for each in (ours, strongest))
        name, compared = entry["strongest"] or "-", "-" if ratio is None else f"{ratio:.2f}x"
        why = entry["error"] or ours.get("error") or ""
        console.print(
            f"{key['width']:5d}  {key['batch']:5d}  {key['layers']:6d}  {mine:>7s}   {name:17s}{theirs:>7s}  "
            f"{compared:>7s}  {why}".rstrip(),
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
    return lost


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.variants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", type=whole_numbers, default=[128, 1024, 4096], help="(default: 128,1024,4096)")
    parser.add_argument("--batches", type=whole_numbers, default=[64, 128, 256, 512], help="(default: 64 to 512)")
    parser.add_argument(
        "--layers", type=whole_numbers, default=[1, 2, 3, 4, 5, 6], help="hidden ones (default: 1 to 6)"
    )
    parser.add_argument("--all", action="store_true", help="every combination of batch and layers")
    parser.add_argument(
        "--contenders", default="library,written_out_fused", help="PyTorch's forms, with commas (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="samples of each (default: 5)")
    parser.add_argument("--steps", type=int, default=5000, help="of a sample (default: 5000)")
    parser.add_argument("--starts", type=int, default=1, help="contenders that may start at once (default: 1)")
    parser.add_argument("--lr", type=float, default=0.003, help="(default: 0.003)")
    add_options(parser)
    options = parser.parse_args()
    for name in ("repeats", "steps", "starts"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)} measures nothing; give a whole number from 1.")
    return options


def main() -> int:
    options = parsed()
    contenders = {contender.name: contender for contender in chosen(options.contenders.split(","))}
    networks = combinations(options.widths, options.batches, options.layers, everything=options.all)
    place = Place.of(options, gpu_only=True)
    schedule = Schedule(steps=options.steps, repeats=options.repeats, longest_sample_s=2.0).rounded(STEPS_PER_GRAPH)
    entries, piece, console = Entries(options.out, place.head("variants")), Slice(options.slice), Console()
    left, asked = 0, []
    for network in networks:
        key: dict[str, Any] = {"width": network.width, "layers": network.layers, "batch": network.batch}
        settings = {"contenders": sorted(contenders), "repeats": options.repeats, "steps": options.steps}
        key |= {**settings, "starts": options.starts, "lr": options.lr}
        try:
            entry = entries.find({**key, "plan": place.ours(network, checked=False).plan})
            if entry is None and piece.over:
                left += 1
                continue
            if entry is None:
                ours = place.ours(network)
                key["plan"] = ours.plan
                console.print(f"{network.label}, batch {network.batch}. Engine: {ours.why}.", highlight=False)
                result = raced(place, network, ours, contenders, schedule, options.lr, options.starts)
                entry = entries.add(key, result)
        except (UserError, RuntimeError, MemoryError) as error:
            entry = entries.add(key, nothing(error))
        asked.append(entry)
    lost = show(console, asked)
    if left:
        console.print(f"{left} entries are left; run the same command again.", highlight=False)
    return 1 if lost else LEFT if left else 0


if __name__ == "__main__":
    script("benchmarks.variants", main)
