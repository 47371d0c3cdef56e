#!/usr/bin/env python3
"""Writes docs/records/reproduction.md: the papers' figures beside what `sluice simulate` gives.

  reproduce.py [--sluice PROGRAM] > docs/records/reproduction.md

Needs Python 3 alone, and about a quarter of an hour on two cores.
"""
import argparse
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

HEAD = """# The papers' figures, simulated

Written by `scripts/papers/reproduce.py`. Every figure is the engine's own run on a simulated machine ([simulate.md](../guide/simulate.md);
how true that is: [simulator.md](../design/simulator.md)). The machines' profiles have eight parameters that were fitted to LIA's Table 5 and
to figures of its sections 4 and 3.2, and one that was fitted to all of HeLM's ratios, all by `sluice plan` and not by simulation; three rates of
HeLM's GPU are from its authors' logs. No parameter was fitted to LIA's Table 4, but one reading, `reserve=paper`, was taken from it and Table 5
([plan-accuracy.md](plan-accuracy.md) says how, and what the plan alone makes of some figures).
"""

LIA = """
## LIA, Tables 4 and 5

OPT-30B on `spr-a100`, 256 tokens in, 32 out, seconds. Readings: residency leaves room for the KV of all layers until prefill ends
and for attention scores at full size (`reserve=paper`). The paper does not say so: it is inferred from Table 4's cells at B=64 (24.00
against 26.97 s) and Table 5, which the tables below are therefore no test of; the last table has what comes out without it. FlexGen keeps
no weights on the GPU at B=64 and 900 (its communication equals all weights, moved 32 times), and at B=1 its KV there (section 3). Table 5's
communication counts transfers that hide, too.
Both tables cannot be met together at two places: at B=900 Table 5's parts sum to 398 s where Table 4 without overlap says 444 s;
at B=64 to 28.5 s against 26.96 s.

"""

LIA_MISSES = """
The order of the rows is the paper's at each batch. Misses, and why:

- *`reserve=engine`, B=64* is too fast: where HBM holds only what the engine needs, 20 of 48 layers stay there and not 10.
- *no Optimization-2, B=900* is too fast: new KV leaves for DDR beside the next layer's work here, as StarPU has it. With everything
  in line, as `sluice plan` has it, it is 390 s; Table 5's parts sum to 398.
- *FlexGen's policy, B=64* would come out right with no layer resident; then *no Optimization-1* at B=64 would not.
- *FlexGen's CPU time* (Table 5): at B=1, with KV on the GPU, its CPU computes nothing here. At B=64 and 900 the paper's 20.9 and 505 s are
  KV read at 36 and 21 GB/s; with as much context AVX-512 attention has one rate, 22.5 GB/s.
- *FlexGen's GPU time at B=1*: 1.3 s for 59 GB of weights read 32 times are 1.46 TB/s, 94 % of the datasheet's, prompt included. LIA's 1.2 s for
  the 62 % of the layers that it has in HBM (section 5.2) are 1.0 TB/s. The GPU has one rate, section 4.2's 1.05 TB/s, which gives the second.
- *LIA's communication at B=1*: 17 MB pass in 32 iterations, two copies each; with 10 us a copy that is 3 ms. The paper's 0.1 s would be 1.6 ms
  a copy: not bytes, so perhaps starting and waiting, of which the profile's assumed 10 us have little.
- LIA's communication at B=64 and 900, FlexGen's at B=900: the tables count more bytes than weights, values and KV make up.
"""

FIGURES = """
## LIA, the other figures

What the text says of Figures 3, 4, 8b and 9 to 14, of Table 3, and in sections 5.2 and 8, by `scripts/papers/lia_figures.py`. No parameter was
fitted to any of it, but for the 1 s and the 10.2 % of Figure 4. IPEX is `cpu-only`; FlexGen is `flexgen` with AVX-512's rates and as many
weights in HBM as fit; at B=1 its KV is there, too, and of OPT-175B then none of the weights (section 3, which has this of `spr-a100`; 58 % of OPT-30B's stay by section 5.2, which is what
fits). Ranges are of the least and the greatest of our points, each with its error. Readings:

- Which lengths the figures show is not in the text, but for the longest, 2016 tokens in with 32 out and 1792 with 256: 32, 256 and these are
  taken.
- Points for which the machine is too small are simulated with more DDR: LIA's bars with stars come from a model that knows no
  capacity.
- Figures 3 and 4: all weights and KV come from DDR for each iteration and nothing overlaps; shares are of the sum of transfers
  and computation. "1 s vs. 0.4 s" is L=64, where KV's bytes take 0.4 s. Of L=64 and 128 the text says that compute-offloading makes decode
  longer (section 3.2), and not by how much.
- Figure 8a is no result here: that two CXL expanders reach the GPU as fast as DDR does over PCIe 4.0, and at 34 GB/s over PCIe 5.0, is
  what the profiles take from it. What follows from it is in Table 3's rows.
- Figure 8b: decode of OPT-175B with 1 to 900 sequences of 512 tokens on the CPU, by `plan`; the text does not say which sizes its ranges span.
- Figure 9 is the policy's choice by the cost model, which is the same in `plan` and in a simulation: asked by `plan`.
- Table 3's 43.1 % is read as OPT-30B with 900 sequences of 32 tokens in and 32 out, whose weights are 43 % of weights and KV, and "the same
  DDR memory" as 1580 of them (1.76 x 900), whose KV takes what the weights have left.
- Energy and price: [how they are counted](../reference/simulate.md#energy-and-price). No watts are in the paper; TDP/W of section 7.6 counts CPU and GPU.
- Section 7.6's "gap" is a ratio of latencies; its change from Sapphire to Granite Rapids is averaged over the points of Figures 10 and 11.
- Figure 14: eight A100 as one GPU with their rates and memories together, and with an all-reduce after each half of a layer (`dgx-a100`). LIA has
  them from Vidur, a simulator that predicts from measurements of such GPUs; the profile's rates are these measurements (github.com/microsoft/vidur,
  `scripts/papers/vidur_gpus.py`). 50 % of AMX's theory is 144 TFLOP/s on 128 cores (section 4.1).
- Section 8's model is not named: OPT-175B.

"""

FIGURES_MISSES = """
LIA is ahead of IPEX and of FlexGen at every point of Figures 10 to 12, as in the paper. Misses, and why:

- *Figures 10 and 11, over IPEX*: upper ends of latency are too high where a prompt is long: the model gives IPEX no more than its measured
  GEMM rate, also for attention. Of throughput the lower ends, which come with 256 tokens out, are the paper's but for OPT-66B; the upper ones are
  too low. At B=900 the paper's IPEX takes longer (1217 s in Table 5 where we have 1072); at B=64 with 2016 tokens in, both systems spend most of
  decode in the CPU's attention, which seems to be too slow here:
- *Prefill's share, IPEX*: our prefill is 466 s, of which GEMMs have 452, decode 101 s, of which reading KV at 60.7 GB/s has 91. That rate is
  fitted to Table 5's contexts of 256 to 288 tokens. With 180 GB/s, near what the memory gives, the share is the paper's 92 %, and LIA is 5.4
  times as fast as IPEX at this point instead of 3.8. Nothing else in the text says that long contexts are read faster, so the profile does not.
- *Over FlexGen*: OPT-66B on an H100 is as if FlexGen had used 22 to 34 GB of the 80: with all that fits ours is too fast (2.8 to 3.6), with no
  weights in HBM too slow (6.6 to 8.5). With as many of OPT-175B's as fit, instead of section 3's none, its rows were 6.2 to 8.2 on `spr-a100`
  and 3.9 to 4.7 on `spr-h100`; where KV is at B=1 moves rows by 1 %, long prompts of OPT-175B on `spr-a100` by 9 %. Of throughput the lower ends
  come right with AVX-512 attention that is slower over short contexts (Figure 4, below; without that they were 1.04 on `spr-a100` and 1.65 on
  `spr-h100` for OPT-175B); the same makes OPT-66B's upper end too high (5.3, before 2.8).
- *Figure 3, shares*: the GPU reads weights at 1.05 TB/s here, and that adds to arithmetic. With the 1.46 TB/s of FlexGen's GPU time in Table 5
  decode's share is 98.4 % and prefill's at L=64 97.3 %. That KV crosses here, while section 3 has it on the GPU at B=1, is 0.2 points at most.
- *Figure 3, bytes moved*: values between layers stay on the GPU here; FlexGen puts them back into CPU memory.
- *Figure 8b*: the model has no caches, so that from memory at 17 % of DDR's rate 83 % are lost wherever reading is all there is: KV at any
  batch, parameters of few rows. Parameters of 900 rows hide all of it behind arithmetic, where the paper still loses 11 %. That attention
  loses as much of its own rate as CXL memory lacks of DDR's is how the model is made; the 82 % were not fitted to.
- *Figure 4*: AVX-512 attention reads KV at 38.4 GB/s over long contexts, at half of that over 188 tokens: two of the eight parameters, fitted to
  Table 5's CPU times of FlexGen, to the 1 s at L=64 and to the 10.2 % at L=1024, all at once. That offloading costs time at L=64 and 128 no
  parameter has seen. With one rate for all contexts, 22 GB/s by Table 5 alone, it cost 1.2 % at L=1024 and saved 0.3 % at L=64, the wrong way round.
- *Table 3, 1580 sequences*: Optimization-1 keeps 12 layers in HBM at B=900 and 7 at B=1580; without it both batches stream all. At B=1580 a
  token takes 2.7 s where `plan` has 2.4: values that come back from the CPU are on the critical path and wait behind the weights that were
  sent for before them (`sluice trace`), while `plan` lets them pass first; and where the GPU's memory is full, StarPU frees the places of
  earlier values for weights, which, as `cudaFree` does, waits for all transfers. The DDR memory includes activations.
- *Figure 12*: the assumed watts leave more between idle and busy than the paper's machine evidently has: its FlexGen, whose devices mostly
  wait, pays 0.86 of its latency's ratio in energy (10.3 of 12), ours 0.6 (5.4 of 8.9). Latency's misses add to it.
- *Section 7.6*: Granite Rapids has 1.7 times Sapphire Rapids' bandwidth here, as section 4.2 measures, and decode is bound by it at B=1. The
  paper's own lead over FlexGen grows more than that, from 4.0 to 7.0 on `spr-h100` to 10 to 19 on `gnr-h100`; Figure 13 follows
  from the same at B=1 and 64. At B=900 decode with 256 tokens out is mostly the CPU's attention here, which Granite Rapids does
  1.7 times as fast. With the 180 GB/s that IPEX's share of prefill asks for, and 1.7 times that, at all lengths, the 0.91 are
  0.70.
- *tokens/s/W(TDP)*: the profiles' 750 W of `gnr-a100` beside 680 of `spr-h100` make 1.08 of 1.20 times the tokens. The paper's own ratios (1.4 to 2.0
  at B=1, at most 1.9, 0.7 on average) have a mean of 1.5 at most, 1.4 by these watts: for its 1.6 `spr-h100` would have to take more
  than `gnr-a100`. Which TDP it counts is not in the text.
- *Figure 14, B=1, the other way round*: the text's ratios do not follow from the simulator that it names. Of a token that LIA takes 0.97 s for
  (315 GB of weights from 337 GB/s of DDR) they make 170 to 220 ms on eight A100. Vidur's measurements make 43 ms: an eighth of a layer's weights is read at
  1.39 TB/s, norms and the like of a layer take 25 us, and 24 kB are added up among eight GPUs in 30 us, with 20 more for the launch, 192 times. To come out as
  in the text, weights would be read at 210 to 280 GB/s a GPU, as if the eight took turns, as in a pipeline; then B=1 is 1.0 to 1.8, and B=64 0.7 to 1.3.
  The text says "8-way Tensor Parallelism". What else that run of Vidur counted is not in it. The price follows from it.
- *Figure 14, B=64*: computation hides more of that, and the miss is smaller. That AMX at half of its theory changes next to nothing here is the
  profile's roofline: reading the weights hides the arithmetic of 64 rows. Where both add up, as in LIA's equation 8, LIA gains 1.01 to 1.5 times by
  it (most with 32 tokens in); the paper's ratio grows by 1.6 to 1.9. Table 5 was fitted with the roofline.
- *Section 8*: 450 GB/s each way, half of the 900 that the text names, since it also says that the link is 10 % slower than the CPU's
  memory, which has 512. Weights that stream at that rate leave no more than this over `gnr-h100`.
"""

MODELS = """
## LIA, section 7.7, by `sluice plan`

Other models on four machines. LIA has these from its analytical model, so they are `sluice plan`'s and not simulated
(`scripts/papers/lia_ratios.py`); 32 and 256 tokens out, 32, 256, 1024 and 2016 (1792) in. "latency" is of B=1, "throughput" of 64 and 900.

"""

MODELS_MISSES = """
Ranges are wider than the paper's at both ends: its text does not say which lengths they span, and long prompts move ours most. Granite
Rapids' rates, and FlexGen's on it, are derived from Sapphire Rapids' by the ratios of section 4.
"""

HELM = """
## HeLM, sections IV-B to V-D

OPT-175B, and OPT-30B where it says so, on HeLM's machine, 128 tokens in, 21 out; 16 bits in Figures 4 and 5, else 4.5. Readings: FlexGen
has 20 % of OPT-175B's weights on the GPU in Figures 4 and 5, too, and 60 % of OPT-30B's, of which its rule makes half, as the script that
the authors ran has it (github.com/Sacusa/FlexLLMGen, `flexllmgen/apps/run_batch.sh`); batches are 32 and 8. The GPU's rates are from the
logs of OPT-175B's computation in the same repository (`scripts/papers/helm_gpu.py`). HeLM lets CXL memory at 28 GB/s
past PCIe; so do `cxl-asic`'s figures here, whose links say `bypasses_pcie`, and the last four rows are of the same machine without these
words, which holds it to what DRAM reaches over PCIe (24.9 GB/s). The paper draws no such case: their "paper" is the uncapped figure.
Section V-D's text gives 4.74 x and 5.04 x for "CXL-ASIC and CXL-FPGA", in this order, and is read so. Figure 11a's transfers, and what hides
behind what in Figures 12d and 12e and in section V-D, are sums over a layer's sublayers by the cost model; "within 25 % and 6 % of DRAM" is
Figure 6's, and "1 % degradation" and "5 % gain" of Figure 12 are read as of both batches.

The paper's tokens/s are words: the authors' program (`flexllmgen/apps/completion.py`) counts the words of the texts that it writes, which
are sampled. "The same in tokens" is what their own logs of TTFT and TBT, which the paper's TTFT and TBT are from, make of 21 tokens a sequence
(`scripts/papers/helm_times.py`). The second table has these logs in seconds. Nothing was fitted to the seconds themselves: the GPU's
rates are from other logs, those of the links from section IV-A; dequantisation was fitted to the ratios of the first table.

"""

HELM_MISSES = """
Misses, and why:

- *Figure 4, OPT-30B, and Figure 5's transfers*: NVDRAM has one rate in a simulation, 20 % below DRAM's, as section IV-A measures up to
  4 GB. The paper's +33 % and 32.78 % are a rate 25 % and 33 % below: its weights pass the address buffer's reach (15.52 GB/s at 32 GB,
  37 % below), as section IV-A says.
- *MemoryMode, OPT-175B*: 348 GB of 16-bit weights outgrow its direct-mapped DRAM cache of 275 GB, so that 42 % of the reads miss
  ([machine profiles](../reference/machine-profiles.md#a-cache-in-front-of-ddr)), which no figure was fitted to. With 4.5 bits all weights fit.
- *MemoryMode, OPT-30B, in seconds*: its rate is 6 % below DRAM's here, by Figure 6's transfers of 4.5 bits; with 16 bits it is DRAM's in the logs.
- *TTFT, OPT-30B, B=32 above B=1, and Figure 5*: one GEMM rate, 190 TFLOP/s, is what OPT-175B's logs have on average. OPT-30B's own logs say
  204 in attention's half and 246 in the FFN's, and at B=1 reading and arithmetic take longer together than the longer of them: 1.45 ms a
  layer, of which we have 1.25. They are not used, since these rows would follow from them. On NVDRAM the rate above adds to it: where
  weights took as long as the paper's, they would hide more computation.
- *tokens/s*, in words: *OPT-175B, MemoryMode above NVDRAM, B=1* has 0.6 % beside a TBT that is 7.69 % shorter, *OPT-30B, NVDRAM below DRAM* less
  than its TBT gives, and *FSDAX above SSD, B=1* 35.31 % where +50 % follows from TTFT and TBT. The rows in tokens have none of that.
- *FSDAX and SSD*: the SSD's rate is derived from these 33.5 % by another sum, so that these rows are no independent check; that FSDAX is
  between SSD and NVDRAM is. In seconds both are a third too short: FSDAX's rate is section IV's of Optane and of PCIe, one after the other
  (11.1 GB/s), while in the logs the 203 GB that a token brings from there take 39 s beside all else. What the program's own copying threads do to
  it is not in the paper, and a rate from these logs would be fitted to these rows.
- *Compute time, 4.5 bits over 16*: the paper's are those of the logs that the GPU's rates are from, so that these rows try dequantisation
  alone. At B=8 one GEMM rate is too fast for the FFN of 1024 rows (145 TFLOP/s in the log), by which the 16-bit time is too short.
- *Largest batches*: ours are of memory alone, and nothing in them is fitted. Neither the paper nor the repository says how its batches were
  chosen. Powers of two explain 32 and 8 in 16 bits, and 8 stays with 4.5 bits; but the repository has logs of 44, 56 and 96 sequences,
  too, so that this is a guess. 44 is not explained: a power of two would be 32, and 57 fit (53 in 16 bits).
- *All-CPU, B=1 and 8*: the paper's tokens/s (+5 %) contradict its TTFT and TBT, which are 1 % longer with the same batch. In tokens they are
  0.1 and 0.5 % fewer, as here. Of the 1 % we have 0.1 to 0.5: in decode all that All-CPU moves more, a quarter of attention's weights, hides.
- *All-CPU on MemoryMode above DRAM, on NVDRAM below DRAM*: words as well ("at-par", and 6 %). In tokens MemoryMode is 3.8 % below DRAM and NVDRAM 11 %.
- *All-CPU of B=44 over FlexGen of B=8, `cxl-asic`*: the authors' script (`flexllmgen/apps/output/scripts/plot_throughput_ac_cxl.py`) takes
  1.45 words a token at B=44 and 1.57 at B=8, which with its logs gives 4.74, too; in tokens that is 5.13, the row below. `cxl-fpga`'s 5.04
  does not follow from the same sum (4.62, or 5.01 in tokens).
- Capped at PCIe, CXL-ASIC's weights take longer, so that placing them well gains more. That with HeLM the FFN's come faster than attention
  computes, on CXL-ASIC alone (section V-D), holds only past PCIe: at 24.9 GB/s they take 3 % longer than attention.
"""

REST = """
## Not here

LIA's Figure 15 (PowerInfer), its minimum-cost comparison with V100s (section 8). NEO's figures are on [a page of their
own](neo.md).
"""


def run(program, script, *options):
    command = [sys.executable, os.path.join(HERE, script), "--sluice", program, *options]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="sluice", help="the program")
    program = parser.parse_args().sluice
    parts = (HEAD, LIA, run(program, "lia_tables.py", "--simulate"), LIA_MISSES, FIGURES, run(program, "lia_figures.py"),
             FIGURES_MISSES, MODELS, run(program, "lia_ratios.py", "--section", "7.7"), MODELS_MISSES, HELM,
             run(program, "helm_tables.py", "--simulate"), HELM_MISSES, REST)
    sys.stdout.write("".join(parts))


if __name__ == "__main__":
    main()
