"""What columns of tables of trainings are called, and what their cells say, in other programs too."""

from __future__ import annotations

import re


def _names(text: str) -> list[str]:
    return text.split()


SHARES = _names("accuracy acc accuracy_score exact_match em")
"""Scores that are the share of right rows: the number of rows tells how far they are luck."""
HIGHER = SHARES + _names(
    "balanced_accuracy f1 f1_score f1_macro f1_micro macro_f1 micro_f1 mcc matthews matthews_correlation auc auroc roc_auc "
    "pearson pearsonr spearman spearmanr bleu rouge1 rouge2 rouge_l chrf reward win_rate"
)
LOWER = _names("loss nll log_loss cross_entropy perplexity ppl rmse mse mae wer cer bpb error_rate")
SPLIT = re.compile(r"(?:(train|training)|eval|test|val|valid|validation|dev)_")
PARTS = {
    "score": (HIGHER, LOWER),
    "size": (
        _names("trainable_params trainable_parameters num_trainable_params num_trainable_parameters n_trainable_params"),
        _names("params parameters num_params num_parameters n_params n_parameters param_count parameter_count"),
    ),
    "seed": (_names("seed random_seed random_state rng_seed training_seed data_seed fold repeat replicate"),),
    "task": (_names("task task_name dataset dataset_name benchmark"),),
    "examples": (_names("eval_samples eval_examples test_samples test_examples reported_examples scored_examples n_test"),),
    "answers": (_names("answers answers_file answers_path"),),
    "status": (_names("status state"),),
    "seconds": (_names("seconds train_runtime train_time training_time"),),
}
"""Canonical names of parts, those of a score also behind a split; a later list counts where a table has none of the first."""
SETTINGS = _names(
    "configuration method peft_type adapter model base_model model_name model_name_or_path optimizer optim scheduler "
    "lr_scheduler_type lr learning_rate rank ranks r alpha dropout batch_size weight_decay warmup_ratio warmup_steps betas "
    "modules target_modules projections layers num_layers hidden_size max_steps num_train_epochs train_examples dtype"
)
"""Names of settings, also behind another word (`lora_rank`)."""
PROGRESS = _names("epoch step global_step train_step iteration iter training_iteration checkpoint ckpt")
RUN = _names("run_id id trial_id uuid")
RUN_NAMES = RUN + _names("name run_name")
ABOUT = RUN_NAMES + _names(
    "experiment_id experiment_name job_id sweep_id number index row notes user tags group created created_at "
    "updated sweep hostname commit duration runtime experiment artifact_uri start_time end_time timestamp date pid done "
    "url error error_msg error_message stop_reason output_dir logging_dir log_dir logdir save_dir job_type experiment_tag "
    "source_name source_type direction study_direction"
)
MEASURED = _names("minutes hours runtime time memory bytes flops std stderr sem train_loss")
TRACKED = re.compile(r"(params?|parameters?|config|hparams|(metrics?|summary|values?|user_attrs|system_attrs|tags))([./_])")
"""How MLflow and W&B (with a point) and Optuna (with `_`) begin the names of settings, and of what else a run has."""
FINISHED = _names("finished complete completed success succeeded done terminated")
STOPPED = _names("pruned stopped early_stopped")
FAILED = _names(
    "failed fail failure error errored crashed killed preempted oom timeout aborted cancelled canceled lost diverged running "
    "waiting scheduled pending paused queued created interrupted"
)
EMPTY = {"", "nan", "none", "null", "<na>", "nat"}
MISWRITTEN = re.compile(r"[\d.,' ]*\d[\d.,' ]*[%kKmM]?")
"""A number that is not written as one."""
