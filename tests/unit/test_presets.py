"""Engine presets: they are usable, and their numbers follow from their sources."""

from __future__ import annotations

from fractions import Fraction

import pytest
from engine_cases import MOCK, drain
from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import PRESETS, EngineSpec


def test_specs_out_of_range_are_refused():
    for change, text in [
        ({"base_ps": 999}, "base_ps"),
        ({"prefill_token_ps": -1}, "prefill_token_ps"),
        ({"kv_token_ps": 1 << 40}, "kv_token_ps"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 255}, "max_num_batched_tokens"),
        ({"kv_blocks": 0}, "kv_blocks"),
    ]:
        spec = EngineSpec(**{**vars(MOCK), **change})
        with pytest.raises(ValueError, match=text):
            Fleet(1, spec, 16)
    for workers, block_size in ((0, 16), (1, 0), (1, 1 << 20)):
        with pytest.raises(ValueError, match=" must be "):
            Fleet(workers, MOCK, block_size)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_work_at_any_block_size(name):
    spec = PRESETS[name]
    assert spec.name == name
    for block_size in (16, 512):
        scaled = spec.scaled(block_size)
        assert scaled.kv_blocks == spec.kv_tokens // block_size
        fleet = Fleet(2, spec, block_size)
        assert fleet.blocks(1) == (scaled.kv_blocks, 0, [])
        fleet.submit(0, "r", 0, 1_000, 100, (), 0)
        assert len(drain(fleet)) >= 2


@pytest.mark.parametrize(
    ("name", "weights", "kv_bytes", "gpus", "bandwidth", "flops"),
    [
        ("llama-8b-a100", "16.06e9", 131_072, 1, "2.039e12", "312e12"),
        ("llama-8b-h100", "16.06e9", 131_072, 1, "3.35e12", "989.4e12"),
        ("llama-70b-4xh100", "141.1e9", 327_680, 4, "3.35e12", "989.4e12"),
    ],
)
def test_presets_follow_from_their_sources(name, weights, kv_bytes, gpus, bandwidth, flops):
    spec = PRESETS[name]
    read_ps = Fraction(10**12) / (Fraction("0.70") * gpus * Fraction(bandwidth))
    assert spec.base_ps == round(Fraction(weights) * read_ps)
    assert spec.kv_token_ps == round(kv_bytes * read_ps)
    # A parameter is two bytes, and two FLOP a token.
    assert spec.prefill_token_ps == round(Fraction(weights) * 10**12 / (Fraction("0.50") * gpus * Fraction(flops)))
