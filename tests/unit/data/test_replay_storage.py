import errno
import os

import pytest
import torch

from rl_training.data.replay_storage import Allocator
from rl_training.utils.errors import WriteError


def test_a_table_on_disk_has_all_of_its_pages_from_the_start(tmp_path):
    table = Allocator("cpu", tmp_path).table("obs", 1000, (50,), torch.float32)
    table.tensor.fill_(1.5)
    assert table.tensor.shape == (1000, 50) and bool((table.tensor == 1.5).all())


def test_pages_are_reserved_before_anything_is_written(tmp_path):
    Allocator("cpu", tmp_path).table("obs", 1000, (50,), torch.float32)
    # A file with holes would need pages later, when the disk may be full: the process then dies of SIGBUS.
    assert (tmp_path / "obs.bin").stat().st_blocks * 512 >= 1000 * 50 * 4


def test_a_table_that_does_not_fit_is_refused_with_its_size(tmp_path, monkeypatch):
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WriteError, match=r"replay_storage: disk needs 2\.00 GiB .* GiB left.*buffer_size"):
        Allocator("cpu", tmp_path).table("obs", 2**20, (512,), torch.float32)
    assert list(tmp_path.iterdir()) == []
