#!/usr/bin/env bash
# sbatch docs/cluster/slurm.sh --model Qwen/Qwen2-0.5B-Instruct --task gsm8k --fsdp --output_dir outputs/big
# Two machines of 8 GPUs each. Written, not run here.
#SBATCH --job-name=grpo-lab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=08:00:00
set -euo pipefail
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# One torchrun on each machine; it starts a process for each GPU. All of them see the same output_dir.
srun torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 8 --rdzv_id "$SLURM_JOB_ID" \
    --rdzv_backend c10d --rdzv_endpoint "$first:29500" -m grpo_lab.train --engine trl "$@"
