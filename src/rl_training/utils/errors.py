"""The errors users see. The command line turns each into one message and an exit code, never a traceback."""

from rl_training.utils.printable import message

NONFINITE_CAUSES = (
    "Usual causes: a learning rate that is too high; rewards or observations that are NaN, infinite or very large\n"
    "(`axiomrl check-env` looks for them; env.normalize_observations and env.normalize_rewards scale them)."
)
"""What to look at when training breaks."""


class AxiomError(Exception):
    """Base of every error AxiomRL raises on purpose: a failure of ours or of the environment (exit code 1)."""

    exit_code = 1

    def __str__(self) -> str:
        # Whatever file or name a message quotes, it can neither steer the terminal nor fill the screen.
        return message(super().__str__())


class UserError(AxiomError):
    """The user's mistake: the message says the cause and the way out (exit code 2)."""

    exit_code = 2


class ConfigError(UserError):
    """A config file, preset or override that is not valid."""


class SpaceError(UserError):
    """An observation or action space that the algorithm or the package does not support."""


class EnvCreationError(UserError):
    """An environment that does not exist or cannot be made."""


class CheckpointError(AxiomError):
    """A checkpoint that is damaged, incomplete or not ours."""


class WriteError(AxiomError):
    """A file could not be written: the disk is full, broken or read-only. What was saved before is untouched."""


class EnvFailure(AxiomError):
    """An environment raised, left, or returned what Gymnasium's API does not allow: its mistake, named with where it happened."""


class EnvWorkerError(AxiomError):
    """An environment worker process died."""


class ExecutionError(AxiomError):
    """A recorded function does not compute what it computes as written."""


class LearnerError(AxiomError):
    """The process that learns beside the collecting one died."""


class OutOfMemoryError(AxiomError):
    """The machine has not the memory that a run needs."""


class NonFiniteError(AxiomError):
    """A loss became NaN or infinite; nothing was applied to the weights."""
