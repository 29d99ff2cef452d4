"""The same study here, in processes and on a cluster of two nodes, of which one dies; workers that die or are stopped."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from cascade.conformal.promise import Promise
from cascade.errors import MissingExtraError, UsageError, WorkersLostError
from cascade.scale import spread
from cascade.studies.study import study
from unit.fitting.test_fit import drawn_log


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


def test_a_killed_worker_is_replaced_and_the_order_kept(tmp_path: Path) -> None:
    task = partial(gone_once, tmp_path / "died")
    assert list(spread(task, range(5), "processes")) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize(
    ("task", "on", "error"),
    [
        (gone, "processes", WorkersLostError),
        (refused, "processes", UsageError),
        (refused, "here", UsageError),
        (process, "moon", UsageError),
    ],
)
def test_what_cannot_be_done_is_one_typed_error(task, on: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        list(spread(task, [1], on))


def test_the_workers_of_a_closed_run_are_gone() -> None:
    with closing(spread(process, range(50), "processes")) as results:
        worker = next(results)
    assert worker != os.getpid()
    assert not alive(worker)


def test_without_ray_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[ray\]"):
        list(spread(process, [1], "ray"))


@pytest.mark.parametrize("on", ["processes"])
def test_a_study_has_the_same_figures_everywhere(on: str) -> None:
    log, promise = drawn_log(200), Promise("regret", 0.05, 0.9)
    assert repr(study(log, promise, splits=3, on=on)) == repr(study(log, promise, splits=3))


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_study_on_a_cluster_that_loses_a_node_has_the_same_figures() -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    log, promise = drawn_log(200), Promise("regret", 0.05, 0.9)
    node = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    other = cluster.add_node(**node)
    lost = list[int]()

    def show(_name: str, done: int, _total: int) -> None:
        if done == 2:
            cluster.remove_node(other, allow_graceful=False)
            lost.append(done)

    try:
        ray.init(cluster.address, log_to_driver=False)
        found = study(log, promise, splits=8, on="ray", show=show)
        with pytest.raises(UsageError, match="part 1"):
            list(spread(refused, [1], "ray"))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert lost == [2]
    assert repr(found) == repr(study(log, promise, splits=8))
