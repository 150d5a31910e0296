# hftune for NVIDIA GPUs, on one machine or as the image of a cluster's jobs.
#     docker build -f docker/cuda.Dockerfile -t hftune:cuda .
#     docker run --rm --gpus all --ipc host -v "$PWD:/workspace" hftune:cuda hftune sft --config /workspace/sft.yaml
# BASE: CUDA as the torch of constraints.txt was built with, and its compiler, with which DeepSpeed makes its optimizers.
ARG BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04
FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 PATH=/opt/venv/bin:$PATH

# openssh and pdsh: `deepspeed --hostfile` reaches the other machines by them.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential git ninja-build openssh-client openssh-server pdsh python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv

WORKDIR /opt/hftune
COPY constraints.txt ./
RUN pip install "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY hftune hftune
COPY ds_configs ds_configs
COPY examples examples
COPY run_pt.py run_sft.py run_rm.py run_dpo.py run_rl.py run_distill.py merge_peft_adapter.py ./
RUN pip install '.[gpu,serve,math,sentencepiece]' -c constraints.txt

# Any user may be asked for (`docker run --user`), so that results belong to whoever started the run.
ENV HOME=/home/hftune HFTUNE_CACHE=/home/hftune/cache
RUN mkdir -p "$HFTUNE_CACHE" && chmod -R 1777 /home/hftune
USER 1000
WORKDIR /workspace
CMD ["hftune", "--help"]
