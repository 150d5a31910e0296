# hftune for machines without a GPU: trying things out, tokenising, merging, exporting.
#     docker build -f docker/cpu.Dockerfile -t hftune:cpu .
#     docker run --rm -v "$PWD:/workspace" hftune:cpu hftune doctor /workspace/outputs
# TORCH_INDEX: a package index with CPU builds of torch, a tenth of the size of those with CUDA.
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1

# DeepSpeed compiles some of its parts when they are first used; git is for datasets and models of the Hub.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git ninja-build \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/hftune
COPY constraints.txt ./
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY hftune hftune
COPY ds_configs ds_configs
COPY examples examples
COPY run_pt.py run_sft.py run_rm.py run_dpo.py run_rl.py run_distill.py merge_peft_adapter.py ./
RUN pip install '.[serve,math,sentencepiece]' -c constraints.txt

# Any user may be asked for (`docker run --user`), so that results belong to whoever started the run.
ENV HOME=/home/hftune HFTUNE_CACHE=/home/hftune/cache
RUN mkdir -p "$HFTUNE_CACHE" && chmod -R 1777 /home/hftune
USER 1000
WORKDIR /workspace
CMD ["hftune", "--help"]
