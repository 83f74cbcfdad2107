#!/usr/bin/env bash
# GSM8K with verl 0.9.1 on one machine of 8 GPUs, with the settings of
#   grpo-lab train --model Qwen/Qwen2-0.5B-Instruct --task gsm8k --output_dir outputs/one
# in verl's own environment. Written, not run here; a test compares the names with verl's configuration.
# The two parquet files: docs/cluster.md says how grpo_lab writes them.
set -euo pipefail
python3 -m verl.trainer.main_ppo \
    data.train_files=outputs/verl/train.parquet \
    data.val_files=outputs/verl/test.parquet \
    data.train_batch_size=8 \
    data.max_prompt_length=512 \
    data.max_response_length=256 \
    reward.custom_reward_function.path=docs/cluster/verl_reward.py \
    algorithm.adv_estimator=grpo \
    algorithm.norm_adv_by_std_in_grpo=True \
    actor_rollout_ref.model.path=Qwen/Qwen2-0.5B-Instruct \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.ppo_epochs=1 \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.2 \
    actor_rollout_ref.actor.clip_ratio_c=10000 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.optim.lr=2e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=5 \
    actor_rollout_ref.actor.optim.weight_decay=0 \
    actor_rollout_ref.actor.optim.clip_grad=1.0 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
    trainer.total_training_steps=100 \
    trainer.save_freq=50 \
    trainer.test_freq=50 \
    trainer.logger='["console"]' \
    trainer.nnodes=1 \
    trainer.n_gpus_per_node=8
