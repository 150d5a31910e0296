#!/usr/bin/env bash
# All machines of a hostfile by DeepSpeed's launcher, started once, on any of them:
#     bash examples/cluster/deepspeed.sh run_sft.py --deepspeed zero3 --model_name_or_path MODEL ...
# It logs in by ssh (pdsh where it is installed) and starts the same script, in the same folder, with the same python.
set -euo pipefail
cd "$(dirname "$0")/../.."

HOSTFILE=${HOSTFILE:-examples/cluster/hostfile}
MASTER_PORT=${MASTER_PORT:-29500}

# ssh hands on no variables but those with names that start with NCCL, PYTHON, MLFLOW, MV2 or UCX, and this file.
DS_ENV_FILE=$(mktemp)
export DS_ENV_FILE
trap 'rm -f "$DS_ENV_FILE"' EXIT
for name in HFTUNE_CACHE HF_HOME HF_HUB_OFFLINE GLOO_SOCKET_IFNAME OMP_NUM_THREADS; do
    [ -z "${!name:-}" ] || echo "$name=${!name}" >> "$DS_ENV_FILE"
done

deepspeed --hostfile "$HOSTFILE" --master_port "$MASTER_PORT" "$@"
