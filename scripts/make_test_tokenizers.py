"""Makes the small tokenizers that tests/text/test_formats.py loads, and the ids that reference libraries give for them.

One of each format, trained on ``scripts/demo_corpus.txt`` and a few lines in other scripts, so that the standard tests
need no downloads. The ids come from sentencepiece, tiktoken, mistral_common and transformers, never from this package.

    pip install 'mistral-common[sentencepiece]' transformers tokenizers
    python scripts/make_test_tokenizers.py [OUTPUT_DIR]
"""

from __future__ import annotations

import base64
import json
import random
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "tests" / "golden" / "tokenizers"
RANDOM_TEXTS = 120

OTHER_SCRIPTS = """\
Das größte Stück kostet 3,50 €; naïve Gäste zahlen später. Ça va? Où est l'élève? ¿Qué tal, señor?
日本語のテキストは空白で区切られません。漢字とかな。中文没有空格，北京是中国的首都。
Он сказал: «Привет, мир!» и ушёл. Το σπίτι είναι μεγάλο. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। 안녕하세요 세계.
def f(x):\n    return x ** 2  # 100 %\nfor i in range(10):\n\tprint(f"{i}: {f(i)}")
👍🏽 😀😀 ☕ → ≠ ½ ① ﬁ ß İ ſ
----------------------------------------------------------------
================================================================
"""
WORDS = [
    "the", "isn't", "WAS", "1998", "3.14", "I'LL", "naïve", "日本語", "слова", "한국어", "العربية", "हिन्दी", "x**2",
    "<b>", "http://a.b/c?d=1", '{"a": [1]}', "😀", "👍🏽", "e\u0301", "ﬁ", "½", "ß", "İ", "▁", "▁▁", "\u200d", "\u3000",
    "\xa0", "----", "====", "<0x0A>", "[INST", "<|", "CamelCase", "\x00", "\x85", "\ufeff", "𝔘", "𠀀", "Ａ", "漢字",
    "[REF]", "<tool>", "é", "don't", "...", "\u0338",
]  # fmt: skip
SPACES = [*[" "] * 8, "  ", "   ", "\n", "\n\n", "\t", "\r\n", "", "", "\u2028"]

# Special tokens of Mistral's tokenizers, by id.
MISTRAL_CONTROL = [
    "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
]  # fmt: skip
TEKKEN_SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]",
    "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]",
]  # fmt: skip
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = CL100K.replace("{1,3}", "")
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a café's town",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Orléans"}'}}
RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "name": "get_weather", "content": '{"degrees": 21}'}
CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hello there"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " a [INST] </s> b\n"}]},
    {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello. How is it?"},
            {"role": "user", "content": [{"type": "text", "text": "Good"}, {"type": "text", "text": "日本語"}]},
        ]
    },
    {"messages": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]},
    {"messages": [{"role": "user", "content": "Weather?"}], "tools": [WEATHER]},
    {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            RESULT,
            {"role": "assistant", "content": "21 degrees."},
            {"role": "user", "content": "And tomorrow?"},
        ],
        "tools": [WEATHER],
    },
    {
        "messages": [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "1, 2,"}],
        "continue_final_message": True,
    },
    {
        "messages": [
            {"role": "user", "content": "Think"},
            {"role": "assistant", "content": "42", "reasoning_content": "6 times 7"},
            {"role": "user", "content": "Why?"},
        ]
    },
]


# --- texts ---------------------------------------------------------------------------------------


def sample_texts() -> list[str]:
    """Texts of many kinds: lines of the corpus, and random ones that hold what tokenizers differ in."""
    chance = random.Random(20261201)
    lines = corpus().splitlines()
    texts = ["", " ", "  ", "\n", "▁", "a", *chance.sample(lines, 40), OTHER_SCRIPTS]
    for _ in range(RANDOM_TEXTS):
        parts = [chance.choice(WORDS) + chance.choice(SPACES) for _ in range(chance.randint(1, 12))]
        texts.append("".join(parts))
    for _ in range(30):
        pattern = "".join(chance.choice("ab-=* \n") for _ in range(chance.randint(1, 3)))
        texts.append(pattern * chance.randint(2, 15) + chance.choice(["", "x", " ", pattern[0]]))
    return texts


def corpus() -> str:
    """What all of them are trained on."""
    return (ROOT / "scripts" / "demo_corpus.txt").read_text(encoding="utf-8") + OTHER_SCRIPTS * 3


# --- sentencepiece -------------------------------------------------------------------------------


def sentencepiece_model(folder: Path, name: str, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """Trains one and writes it as `name`."""
    with tempfile.TemporaryDirectory() as scratch:
        text, rules = Path(scratch, "text"), Path(scratch, "rules.tsv")
        text.write_text(corpus(), encoding="utf-8")
        # A few rules of our own: the usual ones are 200 KB.
        rules.write_text("FF21\t41\nFB01\t66 69\n65 301\tE9\n3000\t20\nA0\t20\nBD\t31 2F 32\n9\t20\nA\t20\n", "utf-8")
        if options.pop("normalizes", False):
            options["normalization_rule_tsv"] = str(rules)
        else:
            options["normalization_rule_name"] = "identity"
        sentencepiece.SentencePieceTrainer.train(
            input=str(text),
            model_prefix=str(Path(scratch, "model")),
            character_coverage=0.995,
            minloglevel=2,
            num_threads=1,
            **options,
        )
        (folder / name).write_bytes(Path(scratch, "model.model").read_bytes())
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / name))


LLAMA_LIKE = {
    "model_type": "bpe", "vocab_size": 700, "byte_fallback": True, "split_digits": True,
    "allow_whitespace_only_pieces": True, "remove_extra_whitespaces": False, "control_symbols": MISTRAL_CONTROL,
}  # fmt: skip
SENTENCEPIECE_MODELS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sentencepiece-bpe": (LLAMA_LIKE, {"tokenizer_class": "LlamaTokenizer"}),
    "sentencepiece-bpe-symbols": (
        LLAMA_LIKE | {"user_defined_symbols": ["[REF]", "<tool>", "\n\n"]},
        {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True},
    ),
    "sentencepiece-bpe-no-prefix": (
        LLAMA_LIKE | {"user_defined_symbols": ["▁▁", "▁▁▁", "[REF]", "\n\n"], "add_dummy_prefix": False},
        {"tokenizer_class": "GemmaTokenizer"},
    ),
    "sentencepiece-bpe-normalizing": (
        {"model_type": "bpe", "vocab_size": 500, "normalizes": True},
        {"tokenizer_class": "BaichuanTokenizer", "add_bos_token": False},
    ),
    "sentencepiece-unigram": (
        {"model_type": "unigram", "vocab_size": 500, "normalizes": True, "pad_id": -1},
        {},
    ),
    "sentencepiece-unigram-bytes": (
        {
            "model_type": "unigram",
            "vocab_size": 700,
            "byte_fallback": True,
            "remove_extra_whitespaces": False,
            "user_defined_symbols": ["[REF]", "<tool>"],
            "pad_id": 3,
        },
        {"tokenizer_class": "T5Tokenizer", "extra_ids": 5},
    ),
}


def make_sentencepiece(output: Path, texts: list[str]) -> None:
    """All of them, with the ids of the library."""
    for name, (options, settings) in SENTENCEPIECE_MODELS.items():
        folder = new_folder(output / name)
        processor = sentencepiece_model(folder, "tokenizer.model", **options)
        write_json(folder / "tokenizer_config.json", settings)
        write_ids(folder, texts, processor.encode)
    # The same vocabulary as fairseq's models number it: one more, and the unknown piece is 3.
    folder = new_folder(output / "sentencepiece-fairseq")
    source = output / "sentencepiece-unigram" / "tokenizer.model"
    (folder / "sentencepiece.bpe.model").write_bytes(source.read_bytes())
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizer"})
    processor = sentencepiece.SentencePieceProcessor(model_file=str(source))
    write_ids(folder, texts, lambda text: [number + 1 if number else 3 for number in processor.encode(text)])


# --- byte ranks ----------------------------------------------------------------------------------


def byte_ranks(size: int) -> dict[bytes, int]:
    """A byte-level BPE vocabulary, as the tokens' bytes with their ranks."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus().splitlines(keepends=True), trainer)
    alphabet = bytes_by_character()
    learnt = sorted((number, token) for token, number in tokenizer.get_vocab().items() if len(token) > 1)
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(alphabet[char] for char in token) for _, token in learnt]
    return {token: rank for rank, token in enumerate(tokens)}


def bytes_by_character() -> dict[str, int]:
    """The alphabet that byte-level tokens are written in."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}


def make_tiktoken(output: Path, texts: list[str]) -> None:
    """A vocabulary as each known class ships it, with the ids of tiktoken."""
    ranks = byte_ranks(900)
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    first = len(ranks)
    kimi = {
        first: ("[BOS]", True), first + 1: ("[EOS]", True), first + 2: ("<|im_end|>", True),
        first + 7: ("<|tool_call_begin|>", False),
    }  # fmt: skip
    glm = {first: ("<|endoftext|>", True), first + 1: ("[gMASK]", True), first + 2: ("<sop>", True)}
    for name, file, pattern, composes, settings in (
        ("tiktoken-kimi", "tiktoken.model", KIMI, False, added_tokens("TikTokenTokenizer", kimi)),
        ("tiktoken-qwen", "qwen.tiktoken", QWEN, True, {"tokenizer_class": "QWenTokenizer"}),
        ("tiktoken-hunyuan", "hy.tiktoken", QWEN, True, {"tokenizer_class": "HYTokenizer"}),
        ("tiktoken-glm", "tokenizer.model", CL100K, False, added_tokens("ChatGLM4Tokenizer", glm)),
    ):
        folder = new_folder(output / name)
        (folder / file).write_bytes(lines)
        write_json(folder / "tokenizer_config.json", settings)
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        normalize = (lambda text: unicodedata.normalize("NFC", text)) if composes else str
        write_ids(
            folder,
            texts,
            lambda text, encode=encoding.encode_ordinary, normalize=normalize: encode(normalize(text)),
        )


def added_tokens(name: str, tokens: Mapping[int, tuple[str, bool]]) -> dict[str, Any]:
    """Settings that list the tokens behind the vocabulary."""
    listed = {str(number): {"content": text, "special": special} for number, (text, special) in tokens.items()}
    return {"tokenizer_class": name, "added_tokens_decoder": listed}


# --- mistral -------------------------------------------------------------------------------------


def make_tekken(output: Path, texts: list[str]) -> None:
    """A tokenizer of each version since v3, with the ids of mistral_common for texts and conversations."""
    ranks = byte_ranks(800)
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in ranks.items()
    ]
    for version in ("v3", "v7", "v11", "v13", "v15"):
        folder = new_folder(output / f"tekken-{version}")
        content: dict[str, Any] = {
            "config": {
                "pattern": TEKKEN_PATTERN,
                "num_vocab_tokens": len(vocabulary),
                "default_vocab_size": len(vocabulary) + 40 - 5,  # the file has more than the model uses
                "default_num_special_tokens": 40,
                "version": version,
            },
            "vocab": vocabulary,
        }
        if version != "v3":  # the first files had none
            content["special_tokens"] = [
                {"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(TEKKEN_SPECIAL)
            ]
        if version == "v15":
            effort = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
            content["model_settings_builder"] = {"reasoning_effort": effort}
        (folder / "tekken.json").write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
        write_json(folder / "params.json", {"dim": 64, "vocab_size": len(vocabulary) + 35, "max_seq_len": 4096})
        if version in ("v3", "v7"):  # the later ones tokenize texts alike
            tekken = Tekkenizer.from_file(folder / "tekken.json")
            write_ids(folder, texts, lambda text, tekken=tekken: tekken.encode(text, bos=False, eos=False))
        write_chats(folder, folder / "tekken.json")


def make_older_mistral(output: Path) -> None:
    """The SentencePiece tokenizer of the first versions."""
    source = (output / "sentencepiece-bpe" / "tokenizer.model").read_bytes()
    for version in ("v1", "v2", "v3", "v7"):
        folder = new_folder(output / f"mistral-{version}")
        (folder / f"tokenizer.model.{version}").write_bytes(source)
        write_json(folder / "params.json", {"dim": 64, "vocab_size": 700, "moe": {"num_experts": 2}})
        write_chats(folder, folder / f"tokenizer.model.{version}")


def write_chats(folder: Path, file: Path) -> None:
    """The ids of each conversation, or null where the library refuses it."""
    tokenizer = MistralTokenizer.from_file(str(file), mode=ValidationMode.test)
    ids: list[list[int] | None] = []
    for conversation in CONVERSATIONS:
        messages = json.loads(json.dumps(conversation["messages"]))
        if "[THINK]" not in file.read_text("utf-8", "replace") or folder.name in ("tekken-v7", "tekken-v11"):
            for message in messages:
                message.pop("reasoning_content", None)
        try:
            request = ChatCompletionRequest.from_openai(**(conversation | {"messages": messages}))
            ids.append(tokenizer.encode_chat_completion(request).tokens)
        except Exception as error:  # noqa: BLE001 - the library raises many kinds
            print(f"{folder.name}: refused: {error!r:.100}")
            ids.append(None)
    write_json(folder / "chats.json", ids)


# --- wordpiece -----------------------------------------------------------------------------------


def make_wordpiece(output: Path, texts: list[str]) -> None:
    """A vocabulary for texts in lower case and one for texts as they are, with the ids of transformers."""
    for name, settings in (
        ("wordpiece-uncased", {"tokenizer_class": "BertTokenizer", "do_lower_case": True}),
        (
            "wordpiece-cased",
            {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": False,
                "strip_accents": True,
                "tokenize_chinese_chars": False,
            },
        ),
    ):
        folder = new_folder(output / name)
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - a word
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=bool(settings["do_lower_case"]))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(corpus().splitlines(), trainer)
        tokens = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in tokens), encoding="utf-8")
        write_json(folder / "tokenizer_config.json", settings)
        reference = AutoTokenizer.from_pretrained(folder)
        write_ids(folder, texts, lambda text, encode=reference.encode: encode(text, add_special_tokens=False))


# --- files ---------------------------------------------------------------------------------------


def new_folder(folder: Path) -> Path:
    """An empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    return folder


def write_ids(folder: Path, texts: list[str], encode: Callable[[str], list[int]]) -> None:
    """The ids of every text, one line each."""
    lines = [json.dumps(encode(text), separators=(",", ":")) for text in texts]
    (folder / "ids.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def write_json(file: Path, content: object) -> None:
    """JSON that can be read."""
    file.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def main(output: Path = OUTPUT) -> None:
    """Writes all of them."""
    texts = sample_texts()
    output.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(text) for text in texts]
    (output / "texts.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    write_json(output / "conversations.json", CONVERSATIONS)
    make_sentencepiece(output, texts)
    make_tiktoken(output, texts)
    make_tekken(output, texts)
    make_older_mistral(output)
    make_wordpiece(output, texts)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    print(f"{output}: {size} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
