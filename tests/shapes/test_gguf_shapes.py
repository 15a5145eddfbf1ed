"""A model's GGUF header gives the shape that its published configuration gives."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvikk.errors import ModelError
from kvikk.files.gguf import GGUFFile
from kvikk.files.gguf_config import config_from_gguf
from kvikk.files.sources import resolve
from kvikk.shapes.families import read_shape
from kvikk.shapes.shape import LayerCache, LayerKind, ModelShape, StateCache
from tests.shapes.configurations import published

# As convert_hf_to_gguf.py writes them; a heads' list is an array of one number a layer.
HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-Meta-Llama-3.1-8B": (
        "llama",
        {"block_count": 32, "embedding_length": 4096, "attention.head_count": 32}
        | {"attention.head_count_kv": 8},
    ),
    "deepseek_v2-deepseek-v2-lite": (
        "deepseek2",
        {"block_count": 27, "embedding_length": 2048, "attention.head_count": 16}
        | {"attention.head_count_kv": 1, "attention.kv_lora_rank": 512}
        | {"attention.key_length": 576, "rope.dimension_count": 64},
    ),
    "gpt_oss-gpt-oss-20b": (
        "gpt-oss",
        {"block_count": 24, "embedding_length": 2880, "attention.head_count": 64}
        | {"attention.head_count_kv": 8, "attention.key_length": 64}
        | {"attention.value_length": 64, "attention.sliding_window": 128},
    ),
    "gemma2-GaMS-9B-Instruct": (
        "gemma2",
        {"block_count": 42, "embedding_length": 3584, "attention.head_count": 16}
        | {"attention.head_count_kv": 8, "attention.key_length": 256}
        | {"attention.sliding_window": 4096},
    ),
    "gemma4-gemma-4-26B-A4B": (
        "gemma4",
        {"block_count": 30, "embedding_length": 2816, "attention.head_count": 16}
        | {"attention.head_count_kv": [8, 8, 8, 8, 8, 2] * 5, "attention.key_length": 512}
        | {"attention.key_length_swa": 256, "attention.sliding_window": 1024}
        | {"attention.sliding_window_pattern": [True, True, True, True, True, False] * 5}
        | {"attention.shared_kv_layers": 0},
    ),
    "llama4-Llama-4-Scout-17B-16E-Instruct": (
        "llama4",
        {"block_count": 48, "embedding_length": 5120, "attention.head_count": 40}
        | {"attention.head_count_kv": 8, "attention.key_length": 128},
    ),
    "mimo_v2_flash-MiMo-V2-Flash": (
        "mimo2",
        {"block_count": 48, "embedding_length": 4096, "attention.head_count": 64}
        | {"attention.head_count_kv": [4, 8, 8, 8, 8] + [4, 8, 8, 8, 8, 8] * 7 + [4]}
        | {"attention.key_length": 192, "attention.value_length": 128}
        | {"attention.sliding_window": 128}
        | {"attention.sliding_window_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0]},
    ),
    "nemotron-nas-Llama-3_3-Nemotron-Super-49B-v1": (
        "deci",
        {"block_count": 80, "embedding_length": 8192, "attention.head_count": 64}
        | {"attention.head_count_kv": [], "attention.key_length": 128},
    ),
    "qwen3_5-Qwen3.5-27B": (
        "qwen35",
        {"block_count": 65, "nextn_predict_layers": 1, "embedding_length": 5120}
        | {"attention.head_count": 24, "attention.head_count_kv": 4, "attention.key_length": 256}
        | {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16}
        | {"ssm.time_step_rank": 48, "ssm.inner_size": 6144, "full_attention_interval": 4},
    ),
    "nemotron_h-NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (
        "nemotron_h_moe",
        {"block_count": 52, "embedding_length": 2688, "attention.head_count": 32}
        | {"attention.head_count_kv": [], "attention.key_length": 128, "feed_forward_length": []}
        | {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 8}
        | {"ssm.time_step_rank": 64, "ssm.inner_size": 4096},
    ),
    "kimi_k3-Kimi-K3": (
        "kimi-linear",
        {"block_count": 93, "embedding_length": 7168, "attention.head_count": 96}
        | {"attention.head_count_kv": [0, 0, 0, 1] * 23 + [1], "attention.kv_lora_rank": 512}
        | {"rope.dimension_count": 64, "kda.head_dim": 128, "ssm.conv_kernel": 4},
    ),
    "lfm2_vl-LFM2.5-VL-1.6B": (
        "lfm2",
        {"block_count": 16, "embedding_length": 2048, "attention.head_count": 32}
        | {"attention.head_count_kv": [], "shortconv.l_cache": 3},
    ),
}


def metadata(name: str) -> dict[str, Any]:
    architecture, keys = HEADERS[name]
    config = published(name)
    if architecture == "deci":
        attention = [block["attention"] for block in config["block_configs"]]
        heads = [0 if one["no_op"] else 64 // one["n_heads_in_group"] for one in attention]
        keys = {**keys, "attention.head_count_kv": heads}
    elif architecture == "nemotron_h_moe":
        letters = config["hybrid_override_pattern"]
        keys = {
            **keys,
            "attention.head_count_kv": [2 if letter == "*" else 0 for letter in letters],
            "feed_forward_length": [1856 if letter == "E" else 0 for letter in letters],
        }
    elif architecture == "lfm2":
        types = config["text_config"]["layer_types"]
        keys = {**keys, "attention.head_count_kv": [8 * ("full" in kind) for kind in types]}
    return {
        "general.architecture": architecture,
        f"{architecture}.context_length": 4096,
        **{f"{architecture}.{key}": _array(value) for key, value in keys.items()},
    }


def _array(value: Any) -> Any:
    return np.array(value) if isinstance(value, list) else value


def of_header(values: dict[str, Any]) -> ModelShape:
    return read_shape(config_from_gguf(GGUFFile(Path("test.gguf"), values, {})))


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_gives_the_layers_of_the_published_configuration(name: str) -> None:
    assert of_header(metadata(name)).layers == read_shape(published(name)).layers


@pytest.mark.parametrize(
    ("architecture", "keys", "elements"),
    [
        ("falcon", {"attention.head_count": 71, "attention.head_count_kv": 1}, 2 * 64),
        ("starcoder", {"attention.head_count": 16, "attention.head_count_kv": 1}, 2 * 284),
        ("chatglm", {"attention.head_count": 32, "attention.head_count_kv": 2}, 2 * 2 * 142),
        ("mpt", {"attention.head_count": 32, "attention.head_count_kv": 32}, 2 * 4544),
        ("dbrx", {"attention.head_count": 32, "attention.head_count_kv": 8}, 2 * 8 * 142),
    ],
)
def test_kv_heads_are_those_of_the_header_in_families_with_a_way_of_their_own(
    architecture: str, keys: dict[str, int], elements: int
) -> None:
    shape = of_header(
        {
            "general.architecture": architecture,
            f"{architecture}.block_count": 2,
            f"{architecture}.embedding_length": 4544,
            **{f"{architecture}.{key}": value for key, value in keys.items()},
        }
    )
    assert [layer.key_elements + layer.value_elements for layer in shape.layers] == [elements] * 2


def test_a_header_gives_recurrent_models_their_states() -> None:
    rwkv = {"general.architecture": "rwkv7", "rwkv7.block_count": 3, "rwkv7.embedding_length": 768}
    shape = of_header({**rwkv, "rwkv7.wkv.head_size": 64, "rwkv7.token_shift_count": 2})
    assert (
        shape.layers == (LayerCache(LayerKind.STATE, state=StateCache(2 * 768, 12 * 64 * 64)),) * 3
    )
    keys = {"block_count": 4, "embedding_length": 4096, "attention.head_count": 32}
    keys |= {"attention.head_count_kv": np.array([0, 4, 0, 4]), "attention.key_length": 128}
    keys |= {"ssm.time_step_rank": 64, "ssm.state_size": 64, "ssm.conv_kernel": 4}
    header = {f"plamo2.{key}": value for key, value in keys.items()}
    plamo = of_header({"general.architecture": "plamo2", **header}).layers
    assert [layer.key_elements for layer in plamo] == [0, 4 * 128, 0, 4 * 128]
    assert plamo[0].state == StateCache(8192 * 3, 8192 * 64)


def test_weights_of_any_type_do_not_keep_a_header_from_being_read(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(128)
    writer.add_head_count(2)
    rows = np.zeros((4, 17), np.uint8)
    writer.add_tensor("blk.0.weight", rows, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    writer.add_tensor("output.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = resolve(str(path), weights=False)
    assert read_shape(source.config).num_layers == 2
    assert source.config["tie_word_embeddings"] is False
    with pytest.raises(ModelError, match="type MXFP4, which is not read"):
        _ = source.tensors
