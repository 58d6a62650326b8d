"""What an H200 measured (benchmarks/trials-h200.json.gz), replayed: the model's ranking, and the early stop's price."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kernels
from trainer.report.ranking import TOP, spearman
from tuner.backends.model import Prediction, predict
from tuner.devices import find
from tuner.guesses import GUESSES, SAMPLE, best_guesses, expectation
from tuner.stopping import Patience
from tuner.types import Binary, CacheState, Config, Kind, Measurement, Problem, Status

FILE = Path(__file__).parents[1] / "benchmarks" / "trials-h200.json.gz"
DEVICE = find("h200")
GEMMS = ("linear_forward", "linear_backward")


class Trial(NamedTuple):
    """A row of the file; times in us, `low_us` the lower end of the median's interval."""

    config: Config
    registers: int
    shared_bytes: int
    spill_bytes: int
    us: float
    low_us: float


class Search(NamedTuple):
    problem: Problem
    cache: CacheState
    trials: list[Trial]

    @property
    def best_us(self) -> float:
        return min(trial.us for trial in self.trials)


def searches() -> Iterator[Search]:
    document: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    for entry in document["problems"]:
        problem = kernels.ALL[entry["kernel"]].problem(*entry["sizes"], **entry["options"])
        count = len(entry["params"])
        trials = [
            Trial(Config.of(dict(zip(entry["params"], row[:count], strict=True))), *row[count:])
            for row in entry["trials"]
        ]
        yield Search(problem, CacheState(entry["cache"]), trials)


SEARCHES = [search for search in searches() if search.problem.kernel in GEMMS]


def predicted(search: Search) -> list[float]:
    kernel = kernels.ALL[search.problem.kernel]
    found = []
    for trial in search.trials:
        launch = kernel.launch(search.problem, trial.config)
        static = trial.shared_bytes - launch.shared_bytes
        binary = Binary(Path(), kernel.name, DEVICE.arch, trial.registers, static, trial.spill_bytes)
        work = kernel.work(search.problem, trial.config)
        prediction = predict(DEVICE, launch, binary, work, search.cache)
        assert isinstance(prediction, Prediction)
        found.append(prediction.us)
    return found


PREDICTED = {search.problem: predicted(search) for search in SEARCHES}


def correlation(predictions: list[float], measured: list[float]) -> float:
    found = spearman(predictions, measured)
    assert found is not None
    return found


@pytest.mark.parametrize("name", GEMMS)
def test_the_model_ranks_what_was_measured(name: str) -> None:
    mine = [search for search in SEARCHES if search.problem.kernel == name]
    assert len(mine) == 9
    pairs = [(PREDICTED[search.problem], [trial.us for trial in search.trials]) for search in mine]
    pooled = correlation([us for guesses, _ in pairs for us in guesses], [us for _, times in pairs for us in times])
    each = [correlation(*pair) for pair in pairs]
    assert pooled > 0.95
    assert statistics.fmean(each) > 0.8
    # Half of the 4096 x 4096 trials are within a tenth of each other: there is little to rank.
    assert min(each) > 0.5


def test_among_the_models_best_guesses_is_a_good_configuration() -> None:
    costs = []
    for search in SEARCHES:
        best_first = sorted(zip(PREDICTED[search.problem], search.trials, strict=True), key=lambda pair: pair[0])
        costs.append(min(trial.us for _, trial in best_first[:TOP]) / search.best_us)
    assert statistics.median(costs) == 1.0
    assert max(costs) < 1.15


def test_stopping_early_rarely_costs_more_than_three_percent() -> None:
    costs, tried, allowed = [], 0, 0
    for search in SEARCHES:
        patience, best_us, count = Patience(len(search.trials)), float("inf"), 0
        for trial in search.trials:
            # Three samples whose smallest is the lower end of the interval, which three samples have whole.
            samples = (trial.low_us, trial.us, trial.us)
            patience.saw(
                Measurement(
                    search.problem,
                    trial.config,
                    Status.OK,
                    Kind.MEASURED,
                    samples_us=samples,
                    median_us=trial.us,
                )
            )
            best_us, count = min(best_us, trial.us), count + 1
            if patience.over:
                break
        costs.append(best_us / search.best_us - 1)
        tried, allowed = tried + count, allowed + len(search.trials)
    assert max(costs) < 0.03
    assert statistics.fmean(costs) < 0.005
    assert 0.85 < tried / allowed < 0.95


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.problem.label)
def test_guesses_before_anything_is_compiled_are_better_than_most(search: Search) -> None:
    """Of the configurations that were measured, as if they were the sample."""
    kernel = kernels.ALL[search.problem.kernel]
    times = {trial.config: trial.us for trial in search.trials}
    sample = list(times)[:SAMPLE]
    guesses = best_guesses(expectation(kernel, search.problem, DEVICE, search.cache), sample)
    assert len(guesses) == GUESSES
    assert min(times[config] for config in guesses) < statistics.quantiles(times.values(), n=4)[0]
