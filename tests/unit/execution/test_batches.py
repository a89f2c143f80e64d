"""Batches of any form, tensor by tensor."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.batches import mapped, on_device, tensors_of


def nested() -> TransitionBatch:
    obs = {"a": torch.zeros(2, 3), "b": torch.ones(2)}
    next_obs = {key: value + 2 for key, value in obs.items()}
    rows = [torch.full((2,), value) for value in (4.0, 5.0, 6.0, 7.0)]
    return TransitionBatch(obs, rows[0], rows[1], next_obs, rows[2], rows[3], indices=np.arange(2))


def test_all_tensors_in_order_but_the_indices() -> None:
    found = tensors_of((nested(), torch.full((1,), 8.0)))
    assert [float(tensor.max()) for tensor in found] == [0, 1, 4, 5, 2, 3, 6, 7, 8]
    assert tensors_of(torch.ones(1)) == [torch.ones(1)]


def test_a_mapped_batch_has_the_same_form() -> None:
    batch = nested()
    changed, number = mapped(lambda tensor: tensor * 10, (batch, torch.ones(1)))
    assert isinstance(changed, TransitionBatch) and isinstance(changed.obs, dict)
    assert [float(tensor.max()) for tensor in tensors_of(changed)] == [0, 10, 40, 50, 20, 30, 60, 70]
    assert float(number) == 10 and changed.indices is batch.indices
    assert float(tensors_of(batch)[1].max()) == 1, "the batch itself is left alone"
    assert mapped(Tensor.clone, {"x": torch.ones(2)})["x"].tolist() == [1, 1]


def test_a_batch_moves_as_a_whole_but_for_its_indices() -> None:
    batch = nested()
    assert on_device(batch.rewards, torch.device("cpu")) is batch.rewards
    moved = on_device(batch, torch.device("meta"))
    assert {tensor.device.type for tensor in tensors_of(moved)} == {"meta"} and moved.indices is batch.indices
