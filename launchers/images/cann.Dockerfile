# EfficientBench on Ascend NPUs. From the root of the repository:
#
#   docker build -f launchers/images/cann.Dockerfile --build-arg BASE=IMAGE -t efficientbench:cann .
#
# IMAGE has Python 3.10 to 3.13 and CANN with the kernels of the chip, in a release that serves its torch-npu. Where it
# has torch and torch-npu they are used as they are; else constraints.txt has their versions, and all others. The driver
# is the host's. Never built: docs/clusters.md.
ARG BASE
FROM ${BASE}
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
WORKDIR /workspace
# Its first step is CANN's environment.
ENTRYPOINT ["bash", "/opt/efficientbench/launchers/job_scripts/in_container.sh", "--"]
CMD ["efficientbench", "doctor", "--device", "npu"]
