# EfficientBench on Ascend NPUs. From the root of the repository:
#
#   docker build -f launchers/images/cann.Dockerfile --build-arg BASE=IMAGE -t efficientbench:cann .
#
# IMAGE has Python 3.10 to 3.13 and CANN with the kernels of the chip, in a release that serves its torch-npu. Where it
# has torch and torch-npu they are used as they are; else constraints.txt has their versions, and all others. The driver
# is the host's. Never built: docs/clusters.md.
#
# --build-arg DIGEST=sha256:... pins the base; `docker buildx imagetools inspect IMAGE` prints the registry's. Without it,
# the build warns (--progress=plain shows that). It runs as user 10001, who can write to /workspace and to its home, and
# is in the group of the NPUs (HwHiAiUser) where the base has it.
ARG BASE
ARG DIGEST=""
FROM ${BASE}${DIGEST:+@$DIGEST}
# The base may have a user of its own, who cannot install.
USER root
ARG BASE
ARG DIGEST
LABEL org.opencontainers.image.base.name="$BASE" org.opencontainers.image.base.digest="$DIGEST"
RUN if [ -z "$DIGEST" ]; then \
    echo "warning: no --build-arg DIGEST=sha256:...: $BASE may be another image in the next build" >&2; fi
ENV PIP_NO_CACHE_DIR=1
WORKDIR /opt/efficientbench
COPY setup.py constraints.txt pyproject.toml ./
COPY data_tools data_tools
COPY efficientbench efficientbench
COPY experiments experiments
COPY launchers launchers
COPY metrics metrics
ARG EXTRAS=""
RUN if python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch_npu") is None)'; \
    then bash launchers/bootstrap.sh $EXTRAS; else bash launchers/bootstrap.sh npu $EXTRAS; fi
ENV PATH=/opt/efficientbench/.venv/bin:$PATH
RUN npus="$(getent group HwHiAiUser | cut -d : -f 1)"; \
    useradd --create-home --uid 10001 ${npus:+--groups "$npus"} efficientbench && install -d --owner efficientbench /workspace
USER 10001
WORKDIR /workspace
# Its first step is CANN's environment.
ENTRYPOINT ["bash", "/opt/efficientbench/launchers/job_scripts/in_container.sh", "--"]
CMD ["efficientbench", "doctor", "--device", "npu"]
