"""What users of SB3, RL Zoo and CleanRL call things, and what they are called here.

This is the one list: error messages give the right name from it, and docs/from-sb3.md shows every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl_training.experiment.registry import TrainerKind

Where = Literal["constructor", "learn", "evaluate", "predict", "save", "load", "method", "callback", "command"]

SAME = "the same"


@dataclass(frozen=True)
class Row:
    """One name of theirs."""

    theirs: str
    ours: str
    """The name here, in Markdown, with what differs; `SAME` if nothing does."""
    family: TrainerKind | None = None
    """The algorithms it holds for; None for all."""

    @property
    def line(self) -> str:
        """The row of a Markdown table."""
        of = {"on_policy": " (PPO, A2C, TRPO)", "off_policy": " (DQN, SAC, TD3, ...)", "offline": "", None: ""}
        return f"| `{self.theirs}`{of[self.family]} | {self.ours} |"


def _same(*names: str) -> tuple[Row, ...]:
    return tuple(Row(name, SAME) for name in names)


NAMES: dict[Where, tuple[Row, ...]] = {
    "constructor": (
        Row("policy", "left out: the network follows from the observation space; `policy={'hidden_sizes': [64, 64]}`"),
        Row("env", "the first argument: an id, a callable, an env or a vector env"),
        Row("env_id", "the first argument"),
        Row("policy_kwargs", "`policy={'hidden_sizes': [64, 64], 'activation': 'relu'}`"),
        Row("net_arch", "`policy={'hidden_sizes': [64, 64]}`, with `actor_hidden_sizes`, `critic_hidden_sizes`"),
        Row("activation_fn", "`policy={'activation': 'relu'}`"),
        Row("ortho_init", "`policy={'orthogonal_init': True}`"),
        Row("log_std_init", "`policy={'log_std_init': -0.5}`"),
        Row("features_extractor_class", "`policy={'encoder': MyEncoder}`"),
        Row("verbose", "`logging={'console': 'plain'}`; `output_dir='runs'` turns reports on"),
        Row("tensorboard_log", "`output_dir='runs'`: event files lie in the run folder's `tensorboard`"),
        Row("total_steps", "`total_timesteps`"),
        Row("n_timesteps", "`total_timesteps`"),
        Row("n_envs", "`num_envs`"),
        *_same("learning_rate", "gamma", "gae_lambda", "vf_coef", "max_grad_norm", "target_kl", "seed", "device"),
        Row("learning_rate_schedule", "`learning_rate={'start': 3e-4, 'end': 0.0}`"),
        Row("anneal_lr", "`learning_rate={'start': 3e-4, 'end': 0.0}`"),
        Row("n_steps", "`num_steps`", "on_policy"),
        Row("n_steps", "`n_step`", "off_policy"),
        Row(
            "batch_size",
            "`num_minibatches`, which is `num_steps * num_envs / batch_size` (A2C has one; TRPO: `critic_minibatches`)",
            "on_policy",
        ),
        Row("minibatch_size", "`num_minibatches`: `num_steps * num_envs / minibatch_size`", "on_policy"),
        Row("batch_size", SAME, "off_policy"),
        Row("n_epochs", "`update_epochs`"),
        Row("clip_range", "`clip_coef`"),
        Row("clip_range_vf", "`clip_value_loss=True`, with `clip_coef` as the range"),
        Row("clip_vloss", "`clip_value_loss`"),
        Row("normalize_advantage", "`normalize_advantages`"),
        Row("norm_adv", "`normalize_advantages`"),
        Row("ent_coef", "the same; for SAC `'auto'` or a number, and `initial_ent_coef` for `'auto_0.1'`"),
        Row("autotune", "`ent_coef='auto'`"),
        Row("alpha", "`ent_coef`"),
        *_same("target_entropy", "buffer_size", "learning_starts", "tau", "policy_delay", "target_noise_clip"),
        Row("train_freq", "`train_frequency`, in environment steps; there is no episode unit"),
        Row("gradient_steps", "the same, without -1: give the number"),
        Row("action_noise", "the same, by name: `action_noise='gaussian'`, with its size in `exploration_noise`"),
        Row("target_policy_noise", "`target_noise`"),
        Row("noise_clip", "`target_noise_clip`"),
        Row("policy_frequency", "`policy_delay`"),
        Row("policy_lr", "`actor_learning_rate`"),
        Row("q_lr", "`learning_rate`"),
        Row("target_network_frequency", "`target_update_interval`, in environment steps"),
        Row("target_update_interval", "the same, in environment steps"),
        Row("exploration_fraction", "`epsilon={'start': 1.0, 'end': 0.05, 'fraction': 0.1}`"),
        Row("exploration_initial_eps", "`epsilon={'start': 1.0, 'end': 0.05, 'fraction': 0.1}`"),
        Row("exploration_final_eps", "`epsilon={'start': 1.0, 'end': 0.05, 'fraction': 0.1}`"),
        Row("start_e", "`epsilon={'start': 1.0, 'end': 0.05, 'fraction': 0.1}`"),
        Row("end_e", "`epsilon={'start': 1.0, 'end': 0.05, 'fraction': 0.1}`"),
        Row("n_quantiles", "`num_quantiles`"),
        Row("n_critics", "`num_critics`"),
        Row("top_quantiles_to_drop_per_net", "`drop_quantiles`"),
        Row("use_rms_prop", "`optimizer='rmsprop'` or `'adam'`"),
        Row("rms_prop_eps", "`rmsprop_eps`"),
        Row("cg_max_steps", "`cg_iterations`"),
        Row("line_search_shrinking_factor", "`backtrack_coef`"),
        Row("line_search_max_iter", "`backtrack_steps`"),
        Row("n_critic_updates", "`critic_epochs`"),
        Row("sub_sampling_factor", "`fisher_fraction`, which is 1 / `sub_sampling_factor`"),
        Row("replay_buffer_class", "`prioritized=True`, `n_step=3` or `hindsight=0.8`"),
        Row("replay_buffer_kwargs", "`prioritized=True`, `n_step=3` or `hindsight=0.8`, each with its own settings"),
        Row("optimize_memory_usage", "left out: observations are stored once; `replay_storage='disk'` for large ones"),
        Row("normalize", "`env={'normalize_observations': True, 'normalize_rewards': True}`, saved with the agent"),
        Row("env_wrapper", "`env={'wrappers': [{'name': 'FrameStackObservation', 'stack_size': 4}]}`"),
        Row("frame_stack", "`env={'wrappers': [{'name': 'FrameStackObservation', 'stack_size': 4}]}`"),
        Row("env_kwargs", "`env={'kwargs': {...}}`"),
        Row("vec_env_cls", "`env={'backend': 'async'}` for processes, `'sync'` for none"),
        Row("vec_env_type", "`env={'backend': 'async'}` for processes, `'sync'` for none"),
        Row(
            "monitor_dir", "left out: episode returns and lengths are always recorded; `output_dir='runs'` writes them"
        ),
        Row("use_sde", "not there; `noise_correlation` makes SAC's exploration smooth in time"),
        Row("sde_sample_freq", "not there; `noise_correlation` makes SAC's exploration smooth in time"),
        Row("stats_window_size", "left out: means are over the last 100 episodes"),
        Row("rollout_buffer_class", "not there: an algorithm of your own, see docs/extending.md"),
        Row("rollout_buffer_kwargs", "not there: an algorithm of your own, see docs/extending.md"),
        Row("torch_deterministic", "left out: a seeded run always repeats bit for bit"),
        Row("cuda", "`device='cuda'`"),
        Row("track", "`output_dir='runs'`; TensorBoard's files can be synchronised by other tools"),
        Row("capture_video", "`video={'every': 50_000}` with `output_dir='runs'`"),
        Row("_init_setup_model", "left out"),
    ),
    "learn": (
        Row("total_timesteps", "the same, but it counts earlier calls: a second call continues to the new total"),
        Row("total_steps", "`total_timesteps`"),
        Row("callback", "`callbacks`: one or a list"),
        Row("log_interval", "`logging={'every': 1000}` of the constructor, in environment steps"),
        Row("tb_log_name", "left out: each run has a folder of its own under `output_dir`"),
        Row("reset_num_timesteps", "left out: `total_timesteps` counts earlier calls; a new agent starts at 0"),
        Row("progress_bar", "`logging={'console': 'live'}` of the constructor"),
        Row("eval_env", "`evaluation={'every': 10_000}` of the constructor"),
        Row("eval_freq", "`evaluation={'every': 10_000}` of the constructor"),
        Row("n_eval_episodes", "`evaluation={'episodes': 10}` of the constructor"),
    ),
    "evaluate": (
        Row("n_eval_episodes", "`num_episodes`"),
        Row("n_episodes", "`num_episodes`"),
        Row("episodes", "`num_episodes`"),
        Row("env", SAME),
        Row("deterministic", SAME),
        Row("model", "the agent whose method it is: `agent.evaluate()`"),
        Row("return_episode_rewards", "left out: the result has `returns` and `lengths` of every episode"),
        Row("reward_threshold", "`stopping={'reward': 475}` of the constructor"),
        Row("render", "`agent.record('out.mp4')`, or `evaluate(env=gym.make(ID, render_mode='human'))`"),
        Row("warn", "left out"),
    ),
    "predict": (
        Row("observation", SAME),
        Row("obs", "`observation`"),
        Row("state", SAME),
        Row("deterministic", "the same, but True by default"),
        Row("episode_start", SAME),
        Row("mask", "`episode_start`"),
        Row("action_masks", SAME),
    ),
    "save": (
        Row("path", "the same; it is a folder"),
        Row("exclude", "`include_replay=False` leaves out the large part"),
        Row("include", "left out: everything is saved"),
    ),
    "load": (
        Row("path", "the same; a run folder and a checkpoint will do, too"),
        Row("env", "the same; its spaces are compared at once"),
        Row("device", SAME),
        Row("custom_objects", "left out; settings are keywords: `PPO.load(path, learning_rate=1e-4)`"),
        Row("print_system_info", "left out: `axiomrl doctor` prints it"),
        Row("force_reset", "left out: a loaded agent goes on in the middle of its episodes"),
    ),
    "method": (
        Row("learn", SAME),
        Row("predict", SAME),
        Row("save", SAME),
        Row("load", "the same; `load_agent(path)` for any algorithm"),
        Row("get_parameters", "the same, as one flat dict"),
        Row("set_parameters", "the same; names and shapes must fit exactly"),
        Row("replay_buffer", SAME),
        Row("save_replay_buffer", "left out: `save(path)` includes it, `save(path, include_replay=False)` does not"),
        Row("load_replay_buffer", "left out: `load(path)` brings it back"),
        Row("set_env", "`PPO.load(path, env=ENV)`"),
        Row("get_env", "`agent.config.env_id`; give the agent a vector env of yours if you need to hold it"),
        Row("get_vec_normalize_env", "left out: statistics are part of `agent.policy` and saved with it"),
        Row("set_random_seed", "`seed=` of the constructor"),
        Row("set_logger", "`output_dir='runs'` writes metrics.jsonl and TensorBoard's files"),
        Row("logger", "`trainer.log(name, value)` in a callback"),
        Row("rollout_buffer", "`on_step(trainer, step)` of a callback sees every step"),
        Row("train", "`learn`, which collects and updates"),
        Row("collect_rollouts", "`learn`, which collects and updates"),
        Row("num_timesteps", SAME),
        Row("evaluate_policy", "`agent.evaluate(num_episodes=20)`"),
        Row("make_vec_env", "`num_envs=8`, and `env={'backend': 'async'}` for processes"),
        Row("check_env", "`rl_training.check_env(env)`, or `axiomrl check-env ID`"),
    ),
    "callback": (
        Row("BaseCallback", "`rl_training.Callback`"),
        Row("_on_training_start", "`on_training_start(self, trainer)`"),
        Row("_on_rollout_start", "`on_iteration_end(self, trainer)` of the iteration before"),
        Row("_on_step", "`on_step(self, trainer, step)`: `step.infos`, `step.rewards`, `step.actions`, ..."),
        Row("_on_rollout_end", "`on_iteration_end(self, trainer)`"),
        Row("_on_training_end", "`on_training_end(self, trainer)`"),
        Row("return False", "`trainer.stop('why')`"),
        Row("self.locals['infos']", "`step.infos` in `on_step`"),
        Row("self.num_timesteps", "`trainer.global_step`"),
        Row("self.logger.record", "`trainer.log(name, value)`"),
        Row("EvalCallback", "`evaluation={'every': 10_000, 'episodes': 10}`"),
        Row("CheckpointCallback", "`checkpoint={'every': 20_000, 'keep': 3}`"),
        Row("StopTrainingOnRewardThreshold", "`stopping={'reward': 475}`"),
        Row("StopTrainingOnNoModelImprovement", "`stopping={'patience': 5}`"),
        Row("StopTrainingOnMaxEpisodes", "a callback that reads `trainer.episode_summary()['episodes']`"),
        Row("ProgressBarCallback", "`logging={'console': 'live'}`"),
        Row("CallbackList", "a list"),
        Row("Monitor(info_keywords=...)", "`logging={'info_keys': ['key']}`"),
        Row("VecNormalize", "`env={'normalize_observations': True, 'normalize_rewards': True}`"),
        Row("VecFrameStack", "`env={'wrappers': [{'name': 'FrameStackObservation', 'stack_size': 4}]}`"),
        Row("HerReplayBuffer", "`hindsight=0.8`"),
        Row("linear_schedule", "`{'start': 3e-4, 'end': 0.0}` as the value of a setting"),
    ),
    "command": (
        Row("python -m rl_zoo3.train --algo sac --env Pendulum-v1", "`axiomrl train --algo sac --env Pendulum-v1`"),
        Row("--hyperparams learning_rate:1e-3", "`--set hyperparams.learning_rate=1e-3`"),
        Row("--n-timesteps 50000", "`--total-timesteps 50000`"),
        Row("--eval-freq, --eval-episodes", "`--set evaluation.every=5000 --set evaluation.episodes=10`"),
        Row("--save-freq", "`--set checkpoint.every=10000`"),
        Row("--env-kwargs", "`--set env.kwargs.NAME=VALUE`"),
        Row("--gym-packages", "`--import MODULE`"),
        Row("--vec-env subproc", "`--set env.backend=async`"),
        Row("-i trained_agent.zip", "`axiomrl resume RUN`"),
        Row("python -m rl_zoo3.enjoy --algo sac --env Pendulum-v1", "`axiomrl eval RUN`"),
        Row("python -m rl_zoo3.benchmark", "`axiomrl zoo list`, `axiomrl leaderboard`"),
        Row("tensorboard --logdir", "the same: `tensorboard --logdir runs`"),
    ),
}


def right_name(where: Where, name: str, family: TrainerKind | None = None) -> str | None:
    """What a name of theirs is called here; None if it is not one, or called the same."""
    for row in NAMES[where]:
        if row.theirs == name and row.ours != SAME and family in (None, row.family or family):
            return row.ours
    return None
