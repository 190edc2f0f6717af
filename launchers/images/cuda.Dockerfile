# EfficientBench on NVIDIA GPUs. From the root of the repository:
#
#   docker build -f launchers/images/cuda.Dockerfile -t efficientbench:cuda .
#   docker build -f launchers/images/cuda.Dockerfile --build-arg EXTRAS="gpu finetune chat" -t efficientbench:cuda .
#
# --build-arg DIGEST=sha256:... pins the base; `docker buildx imagetools inspect ubuntu:24.04` prints the registry's. Without
# it, the build warns (--progress=plain shows that). It runs as user 10001, who can write to /workspace and to its home.
#
# constraints.txt has every version. torch's wheels bring CUDA and NCCL; the driver is the host's, which NVIDIA's
# container toolkit brings in. Never built: docs/clusters.md.
ARG BASE=ubuntu:24.04
ARG DIGEST=""
FROM ${BASE}${DIGEST:+@$DIGEST}
ARG BASE
ARG DIGEST
LABEL org.opencontainers.image.base.name="$BASE" org.opencontainers.image.base.digest="$DIGEST"
RUN if [ -z "$DIGEST" ]; then \
    echo "warning: no --build-arg DIGEST=sha256:...: $BASE may be another image in the next build" >&2; fi
# Triton compiles its launchers: gcc and Python's headers. NCCL looks for InfiniBand's libraries.
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
    ca-certificates g++ gcc git ibverbs-providers libibverbs1 python3 python3-dev python3-venv && \
    rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility PIP_NO_CACHE_DIR=1
WORKDIR /opt/efficientbench
COPY setup.py constraints.txt pyproject.toml ./
COPY data_tools data_tools
COPY efficientbench efficientbench
COPY experiments experiments
COPY launchers launchers
COPY metrics metrics
ARG EXTRAS="gpu"
RUN bash launchers/bootstrap.sh $EXTRAS
ENV PATH=/opt/efficientbench/.venv/bin:$PATH
RUN useradd --create-home --uid 10001 efficientbench && install -d --owner efficientbench /workspace
USER 10001
WORKDIR /workspace
ENTRYPOINT ["bash", "/opt/efficientbench/launchers/job_scripts/in_container.sh", "--"]
CMD ["efficientbench", "doctor"]
