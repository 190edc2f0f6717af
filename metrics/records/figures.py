"""The table of figures: each field is a row, from which every record, report and page follows.

A formula's `m` is `records.facts.Measured`. Without a formula the run's configuration, or the measurement of all ranks,
has the figure under the same name. Published columns keep their places: a new row of `Metrics` stands last.
"""

from __future__ import annotations

from pydantic import BaseModel

from efficientbench.metrics.formulas import definitions
from efficientbench.metrics.records.figure import (
    Count,
    Headline,
    Name,
    Positive,
    average,
    count,
    fact,
    figure,
    furthest_from_1,
    percent,
    three_digits,
)
from efficientbench.metrics.records.stored import STRICT, Stored

# Unformatted to the end, as a table is read by its rows: one argument in each line would make a page of every five.
# fmt: off

WITH = " (with "
"""Between the name of a variant and what a run has in place of its layers: see `other_layers`."""


class Subject(Stored):
    """What was run."""

    run: Name = fact("",
        "`<variant>_<size>`, `__<key>=<value>` after it in a sweep", "llm-foundry Model")
    variant: Name = fact("", "the architectural choice that the run stands for")
    size: Name = fact("", "the backbone's size")
    smoke: bool = fact("", "true: a scaled-down model, whose figures do not stand for the named one's", default=False)
    seed: int = fact("", "of the weights, and of the data order where no `data_seed` says otherwise")
    parameters: Positive | None = fact("", "P, all of the model's", "llm-foundry NumParams", default=None,
        headline=Headline(0, "params", count))
    parameters_active: Positive | None = fact("", "those that one token uses; fewer than P in a mixture of experts",
        default=None)

    @property
    def backbone(self) -> str:
        """Return `<variant>_<size>`, before what the run has in place of its variant's layers."""
        named, sign, other = self.variant.partition(WITH)
        return f"{named}_{self.size}{sign}{other}"


class Identity(Subject):
    """What was trained, and on what."""

    flops_per_token: float | None = fact("FLOP",
        "forward and backward, matmuls only, causal attention halved, no recomputation", default=None)
    devices: Positive = fact("", "D: accelerators, or hosts where the host is the device", "llm-foundry # GPUs")
    device_name: str = fact("", "as the driver gives it", "llm-foundry GPU")
    dtype: str | None = fact("", "of the matrix products", "llm-foundry Precision", default=None)
    seq_len: Positive = fact("tokens", "of a training sequence", "llm-foundry SeqLen (T)")
    micro_batch_size: Positive = fact("sequences", "of one forward and backward on one replica",
        "nanotron micro_batch_size")
    global_batch_size: Positive = fact("sequences", "of one optimizer step over all replicas",
        "llm-foundry GlobalBatchSize")
    tp: Positive = fact("ranks", "tensor parallel", "nanotron tp", default=1)
    pp: Positive = fact("ranks", "pipeline parallel", "nanotron pp", default=1)
    dp: Positive = fact("ranks", "data parallel", "nanotron dp")
    ep: Positive = fact("ranks", "expert parallel, among those of cp × dp", default=1)
    cp: Positive = fact("ranks", "context parallel", default=1)
    tokens: Count = fact("tokens", "K, trained on inside the measured window")
    steps_measured: Count = fact("steps", "N, optimizer steps inside the measured window")


class Metrics(BaseModel):
    """The measured figures; None stands for one that could not be measured, and `unavailable` has the reason."""

    model_config = STRICT

    amu_gb: float | None = figure("GB", "AMU: mean memory used, (1/T) ∫ memory dt, mean over devices",
        source="EfficientLLM eq. 1", better="lower", compared="AMU, GB",
        headline=Headline(5, "AMU GB", "{:,.2f}".format, "Memory (AMU), GB"))
    amu_fraction: float | None = figure("", "AMU over the device's capacity", better="lower")
    pcu: float | None = figure("", "PCU: mean busy fraction, (1/T) ∫ utilization dt, mean over devices",
        source="EfficientLLM eq. 2", better="higher", compared="PCU",
        headline=Headline(6, "PCU", percent, "Utilization (PCU)"))
    al_s: float | None = figure("s", "AL: mean synchronized time of a step, the slowest rank's",
        lambda m: definitions.average_latency(m.step_times_s), source="EfficientLLM eq. 3", better="lower",
        compared="AL, s/step",
        headline=Headline(2, "AL ms", lambda al_s: f"{al_s * 1e3:,.1f}", "Latency (AL), ms a step"))
    al_s_p50: float | None = figure("s", "median time of a step", lambda m: definitions.percentile(m.step_times_s, 50),
        better="lower", compared="median step, s")
    al_s_p90: float | None = figure("s", "90th percentile of the time of a step",
        lambda m: definitions.percentile(m.step_times_s, 90), better="lower")
    al_s_p99: float | None = figure("s", "99th percentile of the time of a step",
        lambda m: definitions.percentile(m.step_times_s, 99), better="lower")
    al_s_ci_low: float | None = figure("s",
        "lower end of AL's 95 % confidence interval; n/a below 30 steps, and at least so wide below 400",
        lambda m: m.noise.mean[0])
    al_s_ci_high: float | None = figure("s", "upper end of AL's 95 % confidence interval", lambda m: m.noise.mean[1],
        headline=Headline(3, "±95%", percent))
    tt_tokens_per_param_s: float | None = figure("tokens / parameter / s", "TT: tokens over P over step time",
        lambda m: m.throughput(m.of_model("parameters")), source="EfficientLLM eq. 4", better="higher",
        compared="TT", headline=Headline(4, "TT tok/param/s", "{:.2e}".format))
    tokens_per_s: float | None = figure("tokens/s", "over all devices", lambda m: m.throughput(1), better="higher",
        known_as="nanotron tokens_per_sec; llm-foundry Throughput (T/s)",
        compared="tokens/s", headline=Headline(1, "tokens/s", "{:,.0f}".format, "Throughput, tokens/s"))
    tokens_per_s_per_device: float | None = figure("tokens/s", "of one device",
        lambda m: m.throughput(m.facts.devices), better="higher",
        known_as="nanotron tokens_per_sec_per_gpu; llm-foundry Throughput (T/s/GPU)")
    aec_w: float | None = figure("W", "AEC: mean power of one device, (1/T) ∫ power dt, whatever its name says",
        source="EfficientLLM eq. 8", compared="AEC, W",
        headline=Headline(7, "AEC W", "{:,.0f}".format, "Mean power (AEC), W a device"))
    power_w_sum: float | None = figure("W", "mean power of all devices together")
    energy_j: float | None = figure("J", "of the measured window, all devices", better="lower")
    energy_j_per_token: float | None = figure("J/token", "energy over K: what energies are compared by",
        lambda m: definitions.energy_per_token(m.measured("energy_j"), m.run.tokens), better="lower",
        compared="J/token", headline=Headline(8, "J/token", three_digits, "Energy, J/token"))
    energy_scope: str | None = figure("", "what the energy is of: gpu, npu, cpu-package, node")
    mfu: float | None = figure("",
        "model FLOPs over what the devices could do in the steps' time, causal attention halved",
        lambda m: m.share_of_peak(m.of_model("flops_per_token")), known_as="llm-foundry MFU", better="higher",
        compared="MFU", headline=Headline(9, "MFU", percent, "MFU"))
    mfu_full_square: float | None = figure("",
        "MFU with the full square of attention scores counted (PaLM's convention)",
        lambda m: m.utilization(m.of_model("flops_per_token_full_square")), better="higher")
    hfu: float | None = figure("",
        "MFU with recomputation, scores computed again in the backward pass and padding added",
        lambda m: m.share_of_peak(m.of_model("flops_per_token_hardware")), known_as="llm-foundry HFU", better="higher")
    peak_memory_allocated_bytes: int | None = figure("bytes", "the allocator's peak of tensors", better="lower",
        known_as="nanotron peak_allocated_MiB", compared="peak, torch, GB")
    peak_memory_reserved_bytes: int | None = figure("bytes", "the allocator's peak with its cache", better="lower",
        known_as="nanotron peak_reserved_MiB")
    peak_memory_device_bytes: int | None = figure("bytes", "the driver's peak for the whole device", better="lower",
        known_as="nanotron memory_usage_MiB", compared="peak, device, GB")
    train_loss: float | None = figure("nats", "training loss, mean of the last 10 steps",
        lambda m: m.learned("train_loss", "no step was trained"), better="lower",
        known_as="nanotron lm_loss; Megatron lm loss")
    validation_loss: float | None = figure("nats", "mean over the tokens of the validation text",
        lambda m: m.validation_loss, better="lower", compared="validation loss",
        headline=Headline(10, "val loss", "{:.3f}".format, "Validation loss, nats"))
    perplexity: float | None = figure("", "exp(validation loss)", lambda m: definitions.perplexity(m.validation_loss),
        known_as="EfficientLLM PPL", better="lower", headline=Headline(11, "ppl", "{:,.1f}".format))
    bits_per_byte: float | None = figure("bits", "validation loss per UTF-8 byte: comparable between tokenizers",
        lambda m: definitions.bits_per_byte(m.validation_loss, *m.validation_size), better="lower",
        compared="bits/byte", headline=Headline(12, "bits/byte", "{:.3f}".format))
    device_scope: str | None = figure("", "what AMU, PCU, AEC and the device's peak are of: gpu, npu or host")
    amu_gb_max: float | None = figure("GB", "AMU of the device that used most", better="lower")
    amu_fraction_max: float | None = figure("", "AMU over capacity, of the device that used most", better="lower")
    memory_idle_gb: float | None = figure("GB", "memory used before the model was built, mean over devices")
    memory_kind: str | None = figure("",
        "how memory was counted: driver (all of the device), pss or rss (the run's processes)")
    memory_allocated_mean_gb: float | None = figure("GB", "the allocator's own mean over the window", better="lower")
    al_s_std: float | None = figure("s", "standard deviation of the time of a step", lambda m: m.step_time_std_s,
        better="lower")
    al_s_cv: float | None = figure("", "standard deviation over mean of the time of a step: its noise",
        lambda m: m.step_time_std_s / definitions.average_latency(m.step_times_s), better="lower")
    tt_tokens_per_active_param_s: float | None = figure("tokens / parameter / s", "TT over the active parameters",
        lambda m: m.throughput(m.of_model("parameters_active")), better="higher")
    energy_j_per_step: float | None = figure("J/step", "energy of one optimizer step",
        lambda m: m.measured("energy_j") / len(m.step_times_s), better="lower", compared="J/step")
    tokens_per_j: float | None = figure("tokens/J", "tokens trained on for one joule",
        lambda m: 1 / definitions.energy_per_token(m.measured("energy_j"), m.run.tokens), better="higher")
    energy_source: str | None = figure("", "counter (a register of the device) or integrated power (polled)")
    window_s: float | None = figure("s", "T, length of the measured window",
        lambda m: m.step_times_s and m.run.window_s)
    sample_interval_s: float | None = figure("s",
        "longest mean interval of a device between readings of memory, utilization or power",
        lambda m: m.longest_sample_interval_s)
    peak_flops: float | None = figure("FLOP/s", "of one device for the dtype, dense: what MFU is a fraction of",
        lambda m: m.peak_flops)
    peak_flops_source: str | None = figure("", "datasheet or configuration that the peak is from",
        lambda m: m.peak_flops and m.facts.peak_flops_source)
    auxiliary_loss: float | None = figure("",
        "load-balancing loss of a mixture of experts, without its factor, over what model.moe.auxiliary_over says",
        lambda m: m.learned("auxiliary_loss", "the model has no experts", like="tokens_per_expert"))
    expert_load_imbalance: float | None = figure("",
        "tokens of the busiest expert over its layer's mean, mean over layers",
        lambda m: average(definitions.load_imbalance(m.learned("tokens_per_expert", "the model has no experts"))),
        better="lower")
    al_s_p50_ci_low: float | None = figure("s", "lower end of the median's 95 % confidence interval",
        lambda m: m.noise.median[0])
    al_s_p50_ci_high: float | None = figure("s", "upper end of the median's 95 % confidence interval",
        lambda m: m.noise.median[1])
    al_s_block_steps: int | None = figure("steps",
        "for so many steps neighbours are alike; steps further apart are independent",
        lambda m: m.noise.block_steps, over_repeats=None)
    al_s_drift_ratio: float | None = figure("", "time of a step at the window's end over that at its beginning",
        lambda m: m.drift.ratio, over_repeats=furthest_from_1)
    al_s_drift_ratio_low: float | None = figure("", "lower end of the ratio's 95 % confidence interval",
        lambda m: m.drift.low, over_repeats=None)
    al_s_drift_ratio_high: float | None = figure("", "upper end of the ratio's 95 % confidence interval",
        lambda m: m.drift.high, over_repeats=None)
    al_s_drift_p: float | None = figure("", "chance of so clear a trend where there is none",
        lambda m: m.drift.p_value, over_repeats=None)
    al_s_drift_flagged: bool | None = figure("",
        "true: the drift is significant and large (throttling, a shared device)", lambda m: m.drift.flagged)
    outlier_steps: int | None = figure("steps", "steps that took much longer than the others",
        lambda m: m.step_times_s and len(m.outliers), better="lower", over_repeats=sum)
    validation_loss_se: float | None = figure("nats",
        "standard error of the validation loss over its documents, or the repeats",
        lambda m: m.learned("validation_loss_se", "no validation ran", like="validation_loss"))
    tokens_trained: int | None = figure("tokens", "trained on since the start, warm-up included",
        lambda m: m.text.tokens)
    tokens_per_parameter: float | None = figure("", "tokens_trained over P; below 1 the row is speed only",
        lambda m: m.text.tokens / m.of_model("parameters"))
    unique_tokens: int | None = figure("tokens", "different tokens of the text among tokens_trained",
        lambda m: definitions.text_read(m.text.tokens, m.text.sources)[0])
    epochs: float | None = figure("",
        "how often the training text was read, its most repeated source; above 4: speed only",
        lambda m: definitions.text_read(m.text.tokens, m.text.sources)[1])
    unigram_entropy: float | None = figure("nats",
        "of the text's single tokens; a validation loss above it: speed only", lambda m: m.text.unigram_entropy)
    exposed_communication_s: float | None = figure("s",
        "of a step in which a device waits for ranks of its stage, mean over ranks",
        lambda m: average(m.waited("communication_s")), better="lower", compared="exposed communication, s")
    pipeline_bubble_s: float | None = figure("s",
        "of a step in which a device waits for other stages, mean over ranks",
        lambda m: average(m.waited("pipeline_s")), better="lower", compared="pipeline bubble, s")
    supervised_tokens: int | None = figure("tokens",
        "those of K that are learned; of conversations what the mask marks",
        lambda m: m.supervised_tokens)
    supervised_tokens_per_s: float | None = figure("tokens/s", "supervised tokens, over all devices",
        lambda m: m.throughput(1) * m.supervised_tokens / m.run.tokens, better="higher")
    energy_j_per_supervised_token: float | None = figure("J/token", "energy over the supervised tokens",
        lambda m: definitions.energy_per_token(m.measured("energy_j"), m.supervised_tokens), better="lower")
    trainable_parameters: int | None = figure("", "parameters that a fine-tuning trains",
        lambda m: m.tuning.trainable_parameters)
    examples_per_s: float | None = figure("examples/s", "examples of a fine-tuning over step time, all devices",
        lambda m: m.throughput(1) * m.tuning.samples / m.run.tokens, better="higher", compared="examples/s")
    st_samples_per_param_s: float | None = figure("samples / parameter / s",
        "ST: a fine-tuning's examples over P over step time; as TT, since its equation could not be read",
        lambda m: m.throughput(m.of_model("parameters")) * m.tuning.samples / m.run.tokens, better="higher",
        compared="ST")
    energy_j_per_sample: float | None = figure("J/sample", "energy over the examples of a fine-tuning",
        lambda m: definitions.energy_per_token(m.measured("energy_j"), m.tuning.samples), better="lower",
        compared="J/sample")
    padding_share: float | None = figure("", "share of padding in what a fine-tuning's micro-batches hold",
        lambda m: m.tuning and m.step_times_s and 1 - m.run.tokens / m.tuning.padded_tokens, better="lower")
    mfu_of_measured_peak: float | None = figure("",
        "as MFU, over `measured_peak_flops`: of devices whose peak is not known, above the MFU that they would have",
        lambda m: m.utilization(m.of_model("flops_per_token"), m.measured_peak), better="higher")
    measured_peak_flops: float | None = figure("FLOP/s",
        "the fastest of some large matrix products on one device, just before the run", lambda m: m.measured_peak)
    wall_s: float | None = figure("s", "wall time of all attempts of the run, the sum of the parts that follow",
        lambda m: m.wall.wall_s, better="lower")
    goodput: float | None = figure("", "productive_s over wall_s", lambda m: m.wall.goodput,
        better="higher")
    start_s: float | None = figure("s", "set-up, up to the first step", lambda m: m.wall.start_s, better="lower")
    first_steps_s: float | None = figure("s",
        "what the first steps took beyond the median of later ones: compilation, caches",
        lambda m: m.wall.first_steps_s, better="lower")
    productive_s: float | None = figure("s", "all else of the steps, and what reinforcement learning samples",
        lambda m: m.wall.productive_s)
    data_wait_s: float | None = figure("s", "rank 0's device had nothing to do but to wait for its micro-batch",
        lambda m: m.wall.data_wait_s, better="lower")
    evaluation_s: float | None = figure("s", "validations, evaluations, rechecks", lambda m: m.wall.evaluation_s)
    checkpoints_s: float | None = figure("s", "training stood still for checkpoints",
        lambda m: m.wall.checkpoints_s, better="lower")
    restarts_s: float | None = figure("s",
        "set-up of later attempts, and work after the checkpoint that they resumed from, which was lost",
        lambda m: m.wall.restarts_s, better="lower")
    rest_s: float | None = figure("s", "between steps: logs, reports, clean-up", lambda m: m.wall.rest_s)
    power_idle_w: float | None = figure("W", "of all devices together before the model was built")
    energy_net_j: float | None = figure("J", "energy_j less power_idle_w over the window: what the work itself took",
        lambda m: m.net_energy_j, better="lower")
    energy_net_j_per_token: float | None = figure("J/token", "net energy over K",
        lambda m: definitions.energy_per_token(m.net_energy_j, m.run.tokens), better="lower")
    checkpoint_bound_s: float | None = figure("s",
        "training that a kill loses at most, beside the step under way: by then a checkpoint falls due",
        lambda m: m.kill_bound_s, better="lower")
