"""The same study here, in processes and on a cluster of two nodes, of which one dies; workers that die or are stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cascade import parallel
from cascade.checks import refuse
from cascade.errors import MissingExtraError, UsageError, WorkersLostError
from cascade.parallel import parallel_map  # nothing heavier: each worker imports this file

NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


def gone_once(mark: Path, part: int) -> int:
    if part == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return part * part


def gone(_part: int) -> None:
    os._exit(1)


def refused(part: int) -> int:
    raise UsageError(f"part {part}")


def process(_part: int) -> int:
    return os.getpid()


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_killed_worker_is_replaced_and_the_order_kept(tmp_path):
    task = partial(gone_once, tmp_path / "died")
    assert list(parallel_map(task, range(5), "processes")) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize(
    ("task", "on", "error"),
    [
        (gone, "processes", WorkersLostError),
        (refused, "processes", UsageError),
        (refused, "here", UsageError),
        (process, "moon", UsageError),
        (process, "ray://localhost:10001", UsageError),
    ],
)
def test_what_cannot_be_done_is_one_typed_error(task, on, error):
    with pytest.raises(error):
        list(parallel_map(task, [1], on))


def test_the_workers_of_a_closed_run_are_gone():
    with closing(parallel_map(process, range(50), "processes")) as results:
        worker = next(results)
    assert worker != os.getpid()
    assert not alive(worker)


def test_without_ray_the_error_has_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[ray\]"):
        list(parallel_map(process, [1], "ray"))


def of_study(on: str) -> str:
    """Return a small study to the last bit."""
    from cascade.conformal.promise import Promise
    from cascade.studies.study import study
    from unit.fitting.test_fit import drawn_log

    return repr(study(drawn_log(200), Promise("regret", 0.05, 0.9), splits=8, on=on))


def test_a_study_has_the_same_figures_in_processes():
    assert of_study("processes") == of_study("here")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of Ray: two nodes on this machine, at its own address."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setattr("conftest._is_loopback", {"127.0.0.1", ray.util.get_node_ip_address()}.__contains__)
    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    nodes.add_node(**NODE)
    try:
        ray.init(nodes.address, log_to_driver=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_verbs_on_a_cluster_that_loses_a_node_each_have_the_same_bytes(cluster):
    from cascade import Promise, compare, prove

    lost, quiet = list[int](), lambda *_: None

    def show(_name: str, done: int, _total: int) -> None:
        if done == 2:
            (other,) = cluster.worker_nodes
            cluster.remove_node(other, allow_graceful=False)
            lost.append(done)

    for number, verb in enumerate((compare, prove), 1):
        study = partial(verb, "demo-ladder", Promise("regret", 0.1, 0.9), splits=8, tell=quiet)
        here, there = study(), study(on="ray", show=show)
        assert json.dumps(there.to_dict()) == json.dumps(here.to_dict())
        assert (there.text(details=True), lost) == (here.text(details=True), [2] * number)
        cluster.add_node(**NODE)
    for task, error in ((refuse, UsageError), (refused, WorkersLostError)):  # the nodes do not have this file
        with pytest.raises(error):
            list(parallel_map(task, [["no"]], "ray"))


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_lost_head_node_is_a_typed_error(cluster, monkeypatch):
    monkeypatch.setattr(parallel, "_HEAD_S", 0.0)
    with closing(parallel_map(abs, range(-4, 0), "ray")) as results, pytest.raises(WorkersLostError):
        assert next(results) == 4
        cluster.head_node.kill_all_processes(check_alive=False)
        list(results)
