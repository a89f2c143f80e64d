from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_training.experiment.run.event_file import EventFile


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_written_at_once_and_forgets_what_is_taken_again(tmp_path):
    first = EventFile(tmp_path)
    for step in (100, 200, 300):
        first.add_scalars({"a": step / 100, "b": -1.0}, step)
    assert scalars(tmp_path) == {
        "a": [(100, 1.0), (200, 2.0), (300, 3.0)],
        "b": [(100, -1.0), (200, -1.0), (300, -1.0)],
    }
    EventFile(tmp_path, purge_step=201).add_scalars({"a": 9.0, "b": 9.0}, 300)
    assert scalars(tmp_path)["a"] == [(100, 1.0), (200, 2.0), (300, 9.0)]
