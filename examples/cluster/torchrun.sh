#!/usr/bin/env bash
# Several machines by torchrun, no ssh needed: start this on each of them, with the same variables and arguments.
#     NNODES=2 RDZV_HOST=node1 bash examples/cluster/torchrun.sh run_sft.py --deepspeed zero3 --model_name_or_path MODEL ...
# The machines meet at RDZV_HOST, which is one of them; which one gets rank 0 is settled there, unless NODE_RANK (0, 1,
# ...) says it. Say it where machines do not share their files: a run that resumes needs each where it was.
set -euo pipefail
cd "$(dirname "$0")/../.."

: "${NNODES:?the number of machines}" "${RDZV_HOST:?the name or address of one of them}"
RDZV_PORT=${RDZV_PORT:-29400}
GPUS=${GPUS:-gpu}

if [ -n "${NODE_RANK:-}" ]; then
    meet=(--node_rank "$NODE_RANK" --master_addr "$RDZV_HOST" --master_port "$RDZV_PORT")
else
    meet=(--rdzv_backend c10d --rdzv_endpoint "$RDZV_HOST:$RDZV_PORT" --rdzv_id "${RDZV_ID:-hftune}")
fi
exec torchrun --nnodes "$NNODES" --nproc_per_node "$GPUS" "${meet[@]}" "$@"
