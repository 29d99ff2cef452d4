"""The same study here, in processes and on a cluster of two nodes, of which one dies; workers that die or are stopped."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from cascade.checks import refuse
from cascade.errors import MissingExtraError, UsageError, WorkersLostError
from cascade.scale import spread  # nothing heavier: each worker imports this file


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
        (process, "ray://localhost:10001", UsageError),
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
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[ray\]"):
        list(spread(process, [1], "ray"))


def of_study(on: str, show=lambda *_: None) -> str:
    """Return a small study to the last bit."""
    from cascade.conformal.promise import Promise
    from cascade.studies.study import study
    from unit.fitting.test_fit import drawn_log

    return repr(study(drawn_log(200), Promise("regret", 0.05, 0.9), splits=8, on=on, show=show))


def test_a_study_has_the_same_figures_in_processes() -> None:
    assert of_study("processes") == of_study("here")


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_study_on_a_cluster_that_loses_a_node_has_the_same_figures() -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

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
        found = of_study("ray", show)
        for task, error in ((refuse, UsageError), (refused, WorkersLostError)):  # the nodes do not have this file
            with pytest.raises(error):
                list(spread(task, [["no"]], "ray"))
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert lost == [2]
    assert found == of_study("here")
