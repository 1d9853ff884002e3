"""The real headers stepped through interleavings by the explorer, and the mistakes that it must find.

SHARDPOOL_LONG=1 searches deeper (about an hour on one core).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from explorer.planted import FAULTS, Fault, plant
from native_programs import compile_program, run_program

EXPLORER = Path(__file__).parent / "explorer"
LONG = os.environ.get("SHARDPOOL_LONG") == "1"
TIMEOUT = 3600.0 if LONG else 55.0

SHORT_RUNS = (
    "admission",
    "admission --position=456 --preemptions=1",
    "admission --lane=1 --preemptions=1",
    "admission --objects=2 --preemptions=1",
    "admission --suspend --preemptions=1",
    "admission --seal=unseal --preemptions=1",
    "admission --seal=vacate --preemptions=1",
    "admission --random=1 --producers=3 --messages=4 --objects=2 --lane=2 --suspend --runs=20000",
)
SHORT_PRODUCER_DEATHS = (
    "admission --die=producer --preemptions=1",
    "admission --die=producer --preemptions=0 --position=456 --successor",
    "admission --die=producer --preemptions=0 --lane=1",
    "admission --die=producer --preemptions=0 --seal=unseal",
    "admission --die=producer --preemptions=0 --seal=vacate",
    "admission --die=stop --preemptions=1",
    "admission --die=producer --random=2 --producers=3 --messages=4 --objects=2 --lane=2 --successor --runs=20000",
)
SHORT_SHARD_DEATHS = (
    "admission --die=shard --messages=1 --preemptions=1",
    "admission --die=shard --messages=1 --preemptions=0 --deaths=2",
    "admission --die=shard --preemptions=0 --suspend",
    "admission --die=shard --messages=1 --preemptions=0 --lane=1",
    "admission --die=shard --preemptions=0 --seal=unseal",
    "admission --die=shard --preemptions=0 --seal=vacate",
    "admission --die=shard --random=3 --producers=3 --messages=4 --objects=2 --lane=2 --suspend --runs=20000",
)
SHORT_BOTH_DEATHS = (
    "admission --die=both --messages=1 --preemptions=0",
    "admission --die=both --random=4 --producers=3 --messages=4 --objects=2 --lane=2 --suspend --successor "
    "--runs=20000",
)
SHORT_DIRECTORY = (
    "directory --rounds=1",
    "directory --die=claimer --preemptions=1 --rounds=1",
    "directory --die=stop --preemptions=1",
)
LONG_RUNS = (
    "admission --messages=1 --preemptions=3",
    "admission --preemptions=3",
    "admission --lane=1 --preemptions=2",
    "admission --objects=2",
    "admission --suspend",
    "admission --seal=unseal",
    "admission --seal=vacate",
    "admission --random=1 --producers=3 --messages=7 --objects=2 --lane=2 --suspend --runs=1000000",
)
LONG_PRODUCER_DEATHS = (
    "admission --die=producer --messages=1 --preemptions=2",
    "admission --die=producer --successor --preemptions=1 --position=456",
    "admission --die=producer --lane=1 --preemptions=1",
    "admission --die=producer --seal=unseal --preemptions=1",
    "admission --die=producer --seal=vacate --preemptions=1",
    "admission --die=stop --preemptions=2",
    "admission --die=producer --random=2 --producers=3 --messages=7 --objects=2 --lane=2 --successor --runs=1000000",
)
LONG_SHARD_DEATHS = (
    "admission --die=shard --preemptions=1",
    "admission --die=shard --messages=1 --preemptions=1 --deaths=2",
    "admission --die=shard --preemptions=1 --suspend",
    "admission --die=shard --messages=1 --preemptions=1 --lane=1",
    "admission --die=shard --messages=1 --preemptions=1 --seal=unseal",
    "admission --die=shard --messages=1 --preemptions=1 --seal=vacate",
    "admission --die=shard --random=3 --producers=3 --messages=7 --objects=2 --lane=2 --suspend --runs=1000000",
)
LONG_BOTH_DEATHS = (
    "admission --die=both --preemptions=0",
    "admission --die=both --messages=1 --preemptions=0 --suspend",
    "admission --die=both --messages=1 --preemptions=0 --seal=unseal",
    "admission --die=both --messages=1 --preemptions=0 --seal=vacate",
    "admission --die=both --messages=1 --preemptions=0 --lane=1",
    "admission --die=both --messages=1 --preemptions=0 --objects=2",
    "admission --die=both --messages=1 --preemptions=0 --successor",
    "admission --die=both --random=4 --producers=3 --messages=7 --objects=2 --lane=2 --suspend --successor "
    "--runs=1000000",
)
LONG_DIRECTORY = (
    "directory",
    "directory --rounds=1 --preemptions=3",
    "directory --die=claimer --preemptions=2 --rounds=1",
    "directory --die=stop --preemptions=2 --rounds=1",
)

Explore = Callable[[str], None]


@pytest.fixture(scope="module")
def explore(tmp_path_factory: pytest.TempPathFactory) -> Explore:
    directory = tmp_path_factory.mktemp("explorer")
    built = {name: compile_program(EXPLORER / f"{name}.c", directory / name) for name in ("admission", "directory")}

    def run(line: str) -> None:
        name, _, arguments = line.partition(" ")
        done = run_program(directory / name, arguments, TIMEOUT)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}built by: {built[name]}"

    return run


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("line", LONG_RUNS if LONG else SHORT_RUNS)
def test_every_accepted_message_runs_once_and_nothing_is_left(explore: Explore, line: str) -> None:
    """M-5, M-6, M-8, M-9, M-10, M-11, M-12, M-19: in every interleaving of producers, executor and doorbell."""
    explore(line)


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("line", LONG_PRODUCER_DEATHS if LONG else SHORT_PRODUCER_DEATHS)
def test_a_producer_may_die_at_any_step(explore: Explore, line: str) -> None:
    """M-15, M-19: what is in the ring runs, what is not leaves nothing; one that only stops delays only its own."""
    explore(line)


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("line", LONG_SHARD_DEATHS if LONG else SHORT_SHARD_DEATHS)
def test_a_shard_may_die_at_any_step(explore: Explore, line: str) -> None:
    """M-16, M-19: its successor runs what had not begun; what had begun is reported once."""
    explore(line)


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("line", LONG_BOTH_DEATHS if LONG else SHORT_BOTH_DEATHS)
def test_a_producer_and_the_shard_may_both_die(explore: Explore, line: str) -> None:
    """M-15, M-16, M-19: one after the other or at once, settled in either order."""
    explore(line)


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("line", LONG_DIRECTORY if LONG else SHORT_DIRECTORY)
def test_of_all_claims_of_an_id_one_creates(explore: Explore, line: str) -> None:
    """P-26: also if a claimer dies, or stops without being dead."""
    explore(line)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_mistake_is_found(tmp_path: Path, fault: Fault) -> None:
    """M-18, M-19: the explorer sees what it must see, and the schedule that it prints shows it again."""
    plant(fault, tmp_path)
    program = tmp_path / fault.program
    compile_program(EXPLORER / f"{fault.program}.c", program, headers=tmp_path, flags=("-O1", "-w"))
    found = run_program(program, fault.run, 55)
    assert found.returncode == 1, found.stdout
    said, replay = found.stdout.splitlines()
    again = run_program(program, replay.removeprefix(f"replay: {program}"), 55)
    assert again.returncode == 1, again.stdout
    assert again.stdout.partition(": ")[2].splitlines()[0] == said.partition(": ")[2]
