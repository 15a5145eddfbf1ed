import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.errors import ModelError
from kvikk.files.sources import ModelSource
from kvikk.text.gguf_tokenizer import load_gguf_tokenizer
from kvikk.text.merges import sentencepiece_merges
from kvikk.text.pretokenizers import PRETOKENIZERS
from kvikk.text.tokenizer import load_tokenizer


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
@pytest.mark.parametrize("mode", ["special", "plain"])
def test_both_models_give_llama_cpps_ids(model, mode, llama_cpp, request):
    tokenizer = request.getfixturevalue(f"{model}_tokenizer")
    for text, expected in zip(llama_cpp["texts"], llama_cpp[model][mode], strict=True):
        token_ids = tokenizer.encode(text, special=mode == "special", add_bos=False)
        assert token_ids == expected, repr(text)


@pytest.mark.parametrize("pre", sorted(PRETOKENIZERS.keys() - {"llama-v3"}))
def test_each_pretokenizer_cuts_as_llama_cpp_does(pre, llama_cpp, smollm2_source):
    # Same vocabulary under another name: only the cuts differ. The families that compose characters
    # first, as they were trained, differ from llama.cpp where a text is not composed.
    file = smollm2_source.gguf
    metadata = {**file.metadata, "tokenizer.ggml.pre": pre}
    tokenizer = load_gguf_tokenizer(replace(file, metadata=metadata))
    for text, expected in zip(llama_cpp["texts"], llama_cpp["pretokenizers"][pre], strict=True):
        if not PRETOKENIZERS[pre].compose or unicodedata.is_normalized("NFC", text):
            assert tokenizer.encode(text, special=False, add_bos=False) == expected, repr(text)


def test_smollm2_gives_transformers_ids_and_texts(
    llama_cpp, smollm2_tokenizer, transformers_smollm2_tokenizer
):
    for text in llama_cpp["texts"]:
        if "Ⅷ" in text:  # transformers does not part such digits when it reads a GGUF file
            continue
        token_ids = smollm2_tokenizer.encode(text)
        assert token_ids == transformers_smollm2_tokenizer(text)["input_ids"]
        assert smollm2_tokenizer.decode(
            token_ids, special=True
        ) == transformers_smollm2_tokenizer.decode(token_ids)
        plain = transformers_smollm2_tokenizer.decode(token_ids, skip_special_tokens=True)
        assert smollm2_tokenizer.decode(token_ids) == plain


def test_a_folder_gives_transformers_ids(llama_cpp, transformers_smollm2_tokenizer, tmp_path):
    transformers_smollm2_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    tokenizer = load_tokenizer(ModelSource("folder", tmp_path))
    for text in llama_cpp["texts"]:
        token_ids = tokenizer.encode(text)
        assert token_ids == transformers_smollm2_tokenizer(text)["input_ids"]
        assert tokenizer.decode(token_ids, special=True) == transformers_smollm2_tokenizer.decode(
            token_ids
        )
    assert tokenizer.vocabulary_size == len(transformers_smollm2_tokenizer)
    assert tokenizer.eos_token_ids >= {2, 7}


def test_a_sentencepiece_folder_gives_transformers_ids_and_texts(tmp_path):
    from tokenizers import AddedToken, decoders, models, normalizers, processors
    from tokenizers import Tokenizer as Encoder
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "a", "b", "ab", "\u2581a", "\u2581ab"]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    merges = [("a", "b"), ("\u2581", "a"), ("\u2581", "ab")]
    encoder = Encoder(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    encoder.normalizer = normalizers.Replace(" ", "\u2581")
    encoder.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    encoder.add_special_tokens(["<s>", "</s>"])
    encoder.add_tokens([AddedToken("\u2581\u2581", normalized=False)])
    encoder.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    encoder.enable_truncation(4)
    encoder.enable_padding()
    encoder.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}'
    )
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    theirs.backend_tokenizer.no_truncation()
    ours = load_tokenizer(ModelSource("folder", tmp_path))
    assert ours.adds_bos
    assert (ours.bos_token_id, ours.eos_token_id) == (1, 2)
    for text in ("ab ab  ab", "é漢😀 a", "\u2581\u2581a</s>b<s>", " \n\ta"):
        token_ids = ours.encode(text)
        assert token_ids == theirs(text)["input_ids"]
        assert ours.decode(token_ids, special=True) == theirs.decode(token_ids)
        assert ours.decode(token_ids) == theirs.decode(token_ids, skip_special_tokens=True)


def test_encoding_and_decoding_give_any_text_back(smollm2_tokenizer, gemma3_tokenizer):
    # SmolLM2's vocabulary lacks six control characters and the first byte of unassigned planes.
    characters = st.characters(
        max_codepoint=0x3FFFF,
        exclude_categories=["Cs"],
        exclude_characters="\x04\x06\x13\x14\x16\x1d",
    )

    @settings(max_examples=100)
    @given(st.text(characters, max_size=200))
    def check(text):
        assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text, special=False)) == text
        # SentencePiece has one mark for a space, and reads that character as one.
        spaced = text.replace("\u2581", " ")
        token_ids = gemma3_tokenizer.encode(text, special=False, add_bos=False)
        assert gemma3_tokenizer.decode(token_ids) == spaced

    check()


def test_a_lone_surrogate_is_read_as_the_replacement_character(smollm2_tokenizer, gemma3_tokenizer):
    for tokenizer in (smollm2_tokenizer, gemma3_tokenizer):
        assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")
        # A pair written as two halves is the character it stands for.
        assert tokenizer.encode("\ud83d\ude00") == tokenizer.encode("\U0001f600")


def test_threads_that_encode_at_once_do_not_disturb_each_other(llama_cpp, smollm2_tokenizer):
    work = [(text, special) for text in llama_cpp["texts"] * 5 for special in (True, False)]

    def encode(item):
        text, special = item
        return smollm2_tokenizer.encode(text, special=special)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(encode, work)) == [encode(item) for item in work]


def test_names_of_control_tokens_are_tokens_only_where_asked(smollm2_tokenizer):
    assert smollm2_tokenizer.encode("<|im_end|>") == [2]
    plain = smollm2_tokenizer.encode("<|im_end|>", special=False)
    assert len(plain) > 1
    assert smollm2_tokenizer.decode(plain) == "<|im_end|>"


def test_a_beginning_mark_comes_where_the_model_wants_one(smollm2_tokenizer, gemma3_tokenizer):
    assert smollm2_tokenizer.encode("a")[0] != smollm2_tokenizer.bos_token_id
    assert gemma3_tokenizer.encode("a")[0] == gemma3_tokenizer.bos_token_id == 2
    assert gemma3_tokenizer.encode("a", add_bos=False) == gemma3_tokenizer.encode("a")[1:]
    assert smollm2_tokenizer.encode("a", add_bos=True) == [1, *smollm2_tokenizer.encode("a")]


def test_all_the_tokens_that_end_an_answer_are_known(smollm2_tokenizer, gemma3_tokenizer):
    assert smollm2_tokenizer.eos_token_ids == {0, 2}  # <|endoftext|>, <|im_end|>
    assert gemma3_tokenizer.eos_token_ids == {1, 106}  # <eos>, <end_of_turn>


def test_ids_outside_the_vocabulary_stand_for_nothing(smollm2_tokenizer):
    assert smollm2_tokenizer.decode([-1, 49152, 10**9, 19556]) == "Hello"


def test_an_unknown_pretokenizer_is_refused_by_name(smollm2_source):
    file = smollm2_source.gguf
    file = replace(file, metadata={**file.metadata, "tokenizer.ggml.pre": "klingon"})
    with pytest.raises(ModelError, match="pre-tokeniser 'klingon' is not supported"):
        load_gguf_tokenizer(file)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.model", None, "no tokeniser"),
        ("tokenizer.ggml.model", "rwkv", "'rwkv' is not supported"),
        ("tokenizer.ggml.tokens", None, "tokens is missing"),
        ("tokenizer.ggml.merges", None, "merges is missing"),
        ("tokenizer.ggml.token_type", np.zeros(3, np.int32), "one number a token"),
        ("tokenizer.ggml.eos_token_id", 10**6, "eos_token_id 1000000 is not one of"),
        ("tokenizer.ggml.bos_token_id", "first", "bos_token_id is 'first'"),
    ],
)
def test_damaged_metadata_is_one_clear_line(key, value, message, smollm2_source):
    file = smollm2_source.gguf
    metadata = {name: item for name, item in file.metadata.items() if name != key}
    if value is not None:
        metadata[key] = value
    with pytest.raises(ModelError, match=message) as caught:
        load_gguf_tokenizer(replace(file, metadata=metadata))
    assert "\n" not in str(caught.value)


def test_a_folder_without_or_with_a_damaged_tokenizer_is_one_clear_line(tmp_path):
    with pytest.raises(ModelError, match=r"no tokenizer\.json in this folder"):
        load_tokenizer(ModelSource("folder", tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="not a readable tokeniser"):
        load_tokenizer(ModelSource("folder", tmp_path))


def test_kept_merges_are_rebuilt_when_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("KVIKK_HOME", str(tmp_path))
    pieces = ["a", "b", "ab", "aba", "<x>"]
    types = [1, 1, 1, 1, 3]
    scores = np.array([0, 0, -2, -1, -9], np.float32)
    expected = [("ab", "a"), ("a", "b")]
    assert sentencepiece_merges(pieces, types, scores) == expected
    (kept,) = Path(tmp_path / "tokenizers").iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-1] + b"\x01", bytes(len(whole))):
        kept.write_bytes(damaged)
        assert sentencepiece_merges(pieces, types, scores) == expected
        assert kept.read_bytes() == whole


def test_merges_need_no_writable_cache_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVIKK_HOME", str(tmp_path / "file" / "below"))
    scores = np.zeros(3, np.float32)
    assert sentencepiece_merges(["a", "b", "ab"], [1, 1, 1], scores) == [("a", "b")]
