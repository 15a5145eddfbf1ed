import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as gguf_dequantize

from kvikk.files.gguf import GGUFFile, open_gguf
from kvikk.files.quantization import BLOCK_FORMATS, dequantize, dequantize_rows, num_bytes
from kvikk.files.sources import resolve
from kvikk.files.tensors import Tensor

NUM_ROWS = 300


def random_tensor(dtype: str) -> Tensor:
    """Rows of four blocks of any bytes, infinities and NaN included."""
    block = BLOCK_FORMATS[dtype]
    data = np.random.default_rng(7).integers(0, 256, NUM_ROWS * 4 * block.num_bytes, np.uint8)
    return Tensor("random", dtype, (NUM_ROWS, 4 * block.num_elements), data)


def by_gguf(tensor: Tensor) -> np.ndarray:
    rows = tensor.data.reshape(tensor.shape[0] if len(tensor.shape) > 1 else 1, -1)
    values = gguf_dequantize(rows, gguf.GGMLQuantizationType[tensor.dtype])
    return values.reshape(tensor.shape)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_random_bytes_dequantise_to_the_same_bits_as_the_gguf_package(dtype: str) -> None:
    tensor = random_tensor(dtype)
    values = dequantize(tensor)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.view(np.uint32), by_gguf(tensor).view(np.uint32))


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def real_file(request: pytest.FixtureRequest) -> GGUFFile:
    return open_gguf(resolve(request.param).path)


def test_real_tensors_of_every_type_dequantise_as_the_gguf_package_does(
    real_file: GGUFFile,
) -> None:
    # The first of each type and shape; only the largest, the embedding, is compared in part.
    of_each_kind = {(t.dtype, t.shape): t for t in reversed(real_file.tensors.values())}
    for tensor in of_each_kind.values():
        if tensor.num_elements > 10_000_000:
            rows = np.arange(0, tensor.shape[0], 97)
            part = tensor.data.reshape(tensor.shape[0], -1)[rows]
            tensor_part = Tensor(tensor.name, tensor.dtype, (len(rows), tensor.shape[1]), part)
            np.testing.assert_array_equal(dequantize_rows(tensor, rows), by_gguf(tensor_part))
        else:
            np.testing.assert_array_equal(dequantize(tensor), by_gguf(tensor))


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_rows_looked_up_equal_rows_of_the_whole(dtype: str) -> None:
    tensor = random_tensor(dtype)
    rows = np.array([299, 0, 17, 17])
    np.testing.assert_array_equal(dequantize_rows(tensor, rows), dequantize(tensor)[rows])


def test_block_formats_are_those_of_ggml() -> None:
    for dtype, block in BLOCK_FORMATS.items():
        expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
        assert (block.num_elements, block.num_bytes) == expected


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    assert num_bytes("Q4_K", (3, 512)) == 3 * 2 * 144
    with pytest.raises(ValueError, match="256"):
        num_bytes("Q4_K", (3, 300))
