"""The command lines at the end of each command's help."""

from __future__ import annotations

_SUITE = "output/efficientllm_benchmark"

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("doctor", "list gqa", "run gqa_0.5B --smoke", f"report {_SUITE}", "run --help"),
    "run": ("run gqa_0.5B --smoke", "run mla_1.5B --data data/ tokens=1B lr=2e-4", "run gqa_7B dlc tp=2 pp=4"),
    "sweep": ("sweep --only attention --sizes 0.5B --repeat 3", "sweep --only gqa --set seq_len=1024,2048 --dry-run"),
    "study": ("study mine.yaml --dry-run", "study gqa,mla,nsa --target 1.5B@20x --budget '400 device-hours'"),
    "plan": ("plan gqa_1.5B seq_len=4096", "plan gqa_3B --world 64 --device 'H100 SXM' --search gbs=512"),
    "report": (f"report {_SUITE}", f"report {_SUITE} --paper", f"report {_SUITE} --only gqa,mla --columns al_s,mfu"),
    "plot": (f"plot {_SUITE} --format pdf",),
    "compare": (
        f"compare {_SUITE}/gqa_0.5B {_SUITE}/mla_0.5B",
        "compare base/gqa_0.5B new/gqa_0.5B --fail-if 'tokens_per_s<-3%' --junit compare.xml",
    ),
    "export": (f"export {_SUITE}/gqa_0.5B exported",),
    "import": ("import exported",),
    "scripts": ("scripts --check",),
    "doctor": ("doctor", "doctor --device npu"),
    "share": (f"share {_SUITE}/gqa_0.5B",),
    "calibrate": ("calibrate gqa_1.5B tp=2", "calibrate gqa_0.5B --smoke dp=2 dtype=fp32 --seconds 30"),
    "status": ("status", f"status {_SUITE}"),
    "profile": ("profile gqa_0.5B --smoke",),
    "list": ("list", "list gqa", "list 7B"),
    "keys": ("keys", "keys parallel", "keys batch"),
    "chat": (f"chat {_SUITE}/sft_d12", f"chat {_SUITE}/sft_d12 --prompt 'What is 6*7?'"),
    "serve": (f"serve {_SUITE}/sft_d12 --port 8080",),
    "evaluate": (f"evaluate {_SUITE}/gqa_0.5B", f"evaluate {_SUITE}/sft_d12 --tasks mmlu,gsm8k --limit 100"),
    "finetune": ("finetune lora_7B --plan", "finetune lora_tiny --smoke", "finetune lora_7B --data mine.jsonl lr=1e-4"),
    "generate": (f"generate {_SUITE}/gqa_0.5B --prompt 'Once upon a time'", f"generate {_SUITE}/gqa_0.5B --measure"),
    "launch": (
        "launch gqa_1.5B --nodes 2 --to slurm --sbatch partition=gpu --output job.sh",
        "launch gqa_1.5B --nodes 2 --to torchrun --container efficientbench:cuda --output job.sh",
    ),
    "speedrun": ("speedrun --short", "speedrun --variant mla --depth 16 --dry-run"),
    "check-variant": ("check-variant mla", "check-variant my_window:VARIANT"),
    "new-variant": ("new-variant my_window --like gqa",),
}
"""Command, or "" for the program itself → command lines after the program's name."""
