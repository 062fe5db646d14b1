"""Named engine presets: what one iteration costs and what a worker can hold.

Unit of time: the picosecond, as an integer. An iteration lasts exactly

    base_ps + prefill_token_ps * prefill tokens + decode_seq_ps * decoding sequences + kv_token_ps * their tokens

so runs are the same on every machine. Nothing here is measured by this project: the numbers of the Llama presets follow
from published ones by three rules, each held against published measurements of vLLM.

- base, kv_token: bytes read / (0.70 * memory bandwidth). An iteration reads all weights once, and the keys and values
  of every token of its decoding sequences. 0.70 is what vLLM reaches: one sequence of Llama 3 8B decodes in 7.05 ms on
  an H100 SXM (68 %) and in 11.4 ms on an A100 80 GB (69 %) [1]; in 6.48 ms (74 %) on an H100 [2]; at 77 % of the
  bandwidth on an A100 40 GB [3].
- prefill_token: 2 * parameters FLOP / (0.50 * dense BF16 peak). First token of ten prompts with 1,369 tokens together:
  62 ms on the H100 and 127 ms on the A100 [1] against 51 and 152 ms here. 70B on four H100s: 76 us a token by the fit
  of [4] against 71 here.
- decode_seq: one more decoding sequence apart from its KV cache, as fitted to vLLM 0.8.4 by [4]: 5.999, 18.206 and
  66.844 us.

Models [5]. Llama 3.1 8B: 8.03e9 parameters, 16.06 GB; 2 * 32 layers * 8 KV heads * 128 * 2 bytes = 131,072 bytes a
token. 70B: 70.55e9 parameters, 141.1 GB; 80 layers, 327,680 bytes a token.
GPUs. H100 SXM: 989.4 TFLOPS, 3,350 GB/s, 80 GB [6]. A100 80 GB SXM: 312 TFLOPS, 2,039 GB/s [7].
KV cache: 0.90 (gpu_memory_utilization, vLLM's default [8]) of 79.1 GiB, less weights (15.0 GiB; 32.9 GiB a GPU for 70B
on four), less some 2 GiB for activations and CUDA graphs: 54 GiB; 36 GiB a GPU. In blocks of 16, vLLM's default.
max_num_batched_tokens, max_num_seqs: defaults of vLLM's server [9], 8,192 and 1,024 on GPUs of 70 GiB or more, but
2,048 and 256 on an A100 and on smaller ones.

[1] github.com/LambdaLabsML/vllm-benchmark, results/prompt_10/1xH100-80GB-SXM and 1xA100-80GB-SXM,
    Meta-Llama-3-8B-Instruct_tp1_len2048.json (vLLM 0.6.0, ten steps at a time: ITL / 10, of the last request left)
[2] yobitelcomm.github.io/bench/recipes/concurrency-sweep (vLLM 0.21.0, May 2026)
[3] johnmusgrave.com/p/vllm-throughput-latency-sweep-on (vLLM 0.23.0)
[4] github.com/inference-sim/inference-sim, defaults.yaml, beta_coeffs (vLLM 0.8.4), microseconds
[5] Grattafiori et al., The Llama 3 Herd of Models, arXiv 2407.21783, table 3; the models' config.json
[6] NVIDIA H100 Tensor Core GPU datasheet (figures with sparsity halved)   [7] NVIDIA A100 80GB datasheet
[8] docs.vllm.ai, configuration/optimization   [9] vllm/engine/arg_utils.py, EngineArgs.get_batch_defaults
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_US_PS = 1_000_000
_MS_PS = 1_000_000_000


@dataclass(frozen=True)
class EngineSpec:
    """One kind of worker.

    base_ps: of every iteration, 1,000 or more. prefill_token_ps: per prompt token computed. decode_seq_ps: per sequence
        that decodes. kv_token_ps: per token, prompt and output, of the sequences that decode.
    max_num_batched_tokens: tokens of one iteration, a decoding sequence counts one; not below max_num_seqs, as in vLLM.
    max_num_seqs: running sequences.
    kv_blocks, block_size: the KV cache, in blocks of so many tokens.
    """

    name: str
    base_ps: int
    prefill_token_ps: int
    decode_seq_ps: int
    kv_token_ps: int
    max_num_batched_tokens: int
    max_num_seqs: int
    kv_blocks: int
    block_size: int = 16

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_size

    def scaled(self, block_size: int) -> EngineSpec:
        """The same engine with the same memory in blocks of another size; what does not fill a block is lost."""
        return replace(self, kv_blocks=self.kv_tokens // block_size, block_size=block_size)


_ALL = (
    # llama-8b-h100 in round figures, for questions that are not about a GPU; the defaults of vLLM for smaller GPUs.
    EngineSpec("generic", 7 * _MS_PS, 30 * _US_PS, 10 * _US_PS, 60_000, 8_192, 256, 27_648),
    # Made for hand computation: 10 ms an iteration and 10 us a prompt token; decoding costs nothing more.
    EngineSpec("mock", 10 * _MS_PS, 10 * _US_PS, 0, 0, 2_048, 256, 8_192),
    # 16.06e9 / (0.70 * 2.039e12) s; 16.06e9 / (0.50 * 312e12) s; [4]; 131,072 / (0.70 * 2.039e12) s; 54 GiB / 128 KiB
    EngineSpec("llama-8b-a100", 11_252_014_293, 102_948_718, 18_205_606, 91_832, 2_048, 256, 27_648),
    # 16.06e9 / (0.70 * 3.35e12) s; 16.06e9 / (0.50 * 989.4e12) s; [4]; 131,072 / (0.70 * 3.35e12) s; 54 GiB / 128 KiB
    EngineSpec("llama-8b-h100", 6_848_614_072, 32_464_120, 5_999_144, 55_894, 8_192, 1_024, 27_648),
    # 141.1e9 / (0.70 * 4 * 3.35e12) s; 141.1e9 / (0.50 * 4 * 989.4e12) s; [4]; 327,680 / (0.70 * 4 * 3.35e12) s;
    # 4 * 36 GiB / 320 KiB
    EngineSpec("llama-70b-4xh100", 15_042_643_923, 71_305_842, 66_843_962, 34_934, 8_192, 1_024, 29_491),
)
PRESETS: dict[str, EngineSpec] = {spec.name: spec for spec in _ALL}
