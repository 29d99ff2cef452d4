"""What is made anew in a forked child, and when a fork waits."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
import time
from contextlib import closing

import pytest
from patience import PATIENCE_S, in_child

from cascade import forks
from cascade.forks import after_fork, no_fork
from cascade.records.database import Database
from cascade.resilience.portal import run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


class Owner:
    def __init__(self) -> None:
        self.renewed = 0
        after_fork(self.renew)

    def renew(self) -> None:
        self.renewed += 1


def test_a_method_is_called_in_the_child_and_not_in_the_parent():
    owner = Owner()
    assert in_child(lambda: owner.renewed == 1)
    assert owner.renewed == 0


def test_an_owner_is_not_kept_alive():
    before = len(forks._renewals)
    for _ in range(100):
        Owner()
    gc.collect()
    owner = Owner()
    assert owner.renewed == 0
    assert len(forks._renewals) <= before + 1


def test_a_fork_waits_for_an_import_in_another_thread():
    begun, imported = threading.Event(), threading.Event()

    def imports() -> None:
        with no_fork():
            begun.set()
            time.sleep(0.1)
            imported.set()

    thread = threading.Thread(target=imports)
    thread.start()
    assert begun.wait(PATIENCE_S)
    assert in_child(imported.is_set)
    thread.join()


async def seven() -> int:
    return 7


def test_a_child_has_a_background_loop_of_its_own():
    assert run(seven()) == 7
    assert in_child(lambda: run(seven()) == 7)
    assert run(seven()) == 7


@pytest.mark.parametrize("reading", [False, True])
def test_who_waits_for_a_locked_file_holds_up_no_fork_and_no_other_thread(tmp_path, reading):
    database = Database(f"sqlite:///{tmp_path}/records.db", limit_s=PATIENCE_S)
    database._lock_s = PATIENCE_S
    done = threading.Event()

    def waits() -> None:
        with database.transaction(reading=reading):
            done.set()

    with closing(sqlite3.connect(tmp_path / "records.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        thread = threading.Thread(target=waits)
        thread.start()
        for _ in range(3):
            with no_fork(PATIENCE_S / 2):
                assert not done.is_set()
        assert in_child(lambda: 7) == 7
        other.execute("ROLLBACK")
    thread.join()
    assert done.is_set()
    with no_fork():
        errors = list[Exception]()

        def late() -> None:
            try:
                with no_fork(0.01):
                    pass
            except TimeoutError as error:
                errors.append(error)

        (thread := threading.Thread(target=late)).start()
        thread.join()
    assert len(errors) == 1
    database.close()
