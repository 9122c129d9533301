"""Ids and offsets equal to those of transformers, for every tokenizer class that bertie reads, and each set of files."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers

from bertie.tokenizers import transformers_tokenizer
from bertie.tokenizers.classes import CLASSES as OWN
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import encode

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
CLASSES: dict[str, tuple[str, str, list[str]]] = {  # class: model_type, kind of vocabulary, its first entries
    "BertTokenizer": ("bert", "wordpiece", BERT),
    "ElectraTokenizer": ("electra", "wordpiece", BERT),
    "DistilBertTokenizer": ("distilbert", "wordpiece", BERT),
    "MPNetTokenizer": ("mpnet", "wordpiece", [*ROBERTA[:3], "[UNK]", "<mask>"]),
    "RobertaTokenizer": ("roberta", "bytes", [*ROBERTA, "<mask>"]),
    "DebertaTokenizer": ("deberta", "bytes", BERT),
    "GPT2Tokenizer": ("gpt2", "bytes", ["<|endoftext|>"]),
    "OpenAIGPTTokenizer": ("openai-gpt", "suffix", ["<unk>"]),
    "XLMRobertaTokenizer": ("xlm-roberta", "unigram", ["<unk>", "<s>", "</s>"]),
    "CamembertTokenizer": ("camembert", "unigram", ["<unk>", "<s>", "</s>"]),
    "AlbertTokenizer": ("albert", "unigram", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    "XLNetTokenizer": ("xlnet", "unigram", ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]),
    "DebertaV2Tokenizer": ("deberta-v2", "unigram", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]),
    "BarthezTokenizer": ("mbart", "unigram", ["<unk>", "<s>", "</s>"]),
    "BigBirdTokenizer": ("big_bird", "unigram", ["<pad>", "<unk>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]"]),
    "HerbertTokenizer": ("bert", "suffix", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    "LukeTokenizer": ("luke", "bytes", [*ROBERTA, "<mask>"]),
    "RemBertTokenizer": ("rembert", "unigram", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
}  # fmt: skip
FILES = {"XLMRobertaTokenizer": "sentencepiece.bpe.model", "CamembertTokenizer": "sentencepiece.bpe.model",
         "BarthezTokenizer": "sentencepiece.bpe.model", "DebertaV2Tokenizer": "spm.model",
         "RemBertTokenizer": "sentencepiece.model"}  # fmt: skip
"""Names of SentencePiece models that are not spiece.model."""
OWN_CLASSES = [name for name in CLASSES if name in OWN]
ADDED = {"[E1]": True, "<url>": False, "São Paulo": False}


@pytest.fixture(scope="session")
def lines(shared_data: Path) -> list[str]:
    """Sentences of nine languages, and naughty strings."""
    found = []
    for file in sorted((shared_data / "multilingual").glob("*.txt")):
        found += file.read_text(encoding="utf-8").split("\n")[:: 100 if file.name != "blns.txt" else 6]
    return found


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    alphabet = "aB cé\u0301\u00a0\u2028\x1c\t\r\n'.``''s<>[]中文日本ไทย😀İßﬁ①ｱ▁_##,123 the São Paulo [E1] <url>"
    ranges = [
        (0x20, 0x2FF),
        (0x300, 0x4FF),
        (0x900, 0xE7F),
        (0x2000, 0x30FF),
        (0x4E00, 0x9FFF),
        (0xAC00, 0xD7A3),
        (0xF900, 0x1F64F),
    ]
    draw = [lambda: rng.choice(alphabet), lambda: chr(rng.randint(*rng.choice(ranges)))]
    return ["".join(rng.choice(draw)() for _ in range(rng.randint(0, 30))) for _ in range(count)]


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, value: bytes | int) -> bytes:
    key = varint(number << 3 | (0 if isinstance(value, int) else 2))
    return key + varint(value) if isinstance(value, int) else key + varint(len(value)) + value


def spm(pieces: list[tuple[str, float]], control: set[str], charsmap: bytes = b"") -> bytes:
    """Return a SentencePiece model of the unigram kind."""
    written = b""
    for piece, score in pieces:
        kind = 2 if piece in ("<unk>", "[UNK]") else 3 if piece in control else 1
        number = b"\x15" + struct.pack("<f", score)
        written += field(1, field(1, piece.encode()) + number + field(3, kind))
    unk = next(i for i, (piece, _) in enumerate(pieces) if piece in ("<unk>", "[UNK]"))
    written += field(2, field(3, 1) + field(40, unk))
    return written + field(3, field(1, b"nmt_nfkc") + (field(2, charsmap) if charsmap else b""))


def charsmap() -> bytes:
    """Return SentencePiece's table for one rule, "ﬁ" to "fi": a trie of three nodes, of units as Darts has them."""
    units = [0] * 1280
    position, base = 0, 256
    path = "ﬁ".encode()
    units[0] = base << 10
    place = base
    for depth, byte in enumerate(path):
        node, following = place ^ byte, 256 * (depth + 2)
        last = depth == len(path) - 1
        units[node] = byte | (node ^ following) << 10 | (1 << 8 if last else 0)
        place = following
    units[place] = 1 << 31 | position
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + b"fi\0"


@pytest.fixture(scope="session")
def vocabularies(lines: list[str]) -> dict[str, Any]:
    """Vocabularies of each kind, learned from text: tokenizers of the library."""
    engines: dict[str, Any] = {}
    learned = {
        "wordpiece": (models.WordPiece(unk_token="[UNK]"), pre_tokenizers.BertPreTokenizer(), trainers.WordPieceTrainer),
        "bytes": (models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), trainers.BpeTrainer),
        "suffix": (models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), pre_tokenizers.BertPreTokenizer(), None),
    }  # fmt: skip
    for name, (model, splitter, kind) in learned.items():
        trainer = kind or trainers.BpeTrainer
        engine = tokenizers.Tokenizer(model)
        engine.pre_tokenizer = splitter
        if name != "bytes":
            engine.normalizer = normalizers.BertNormalizer(lowercase=False)
        options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()} if name == "bytes" else {}
        options |= {"end_of_word_suffix": "</w>"} if name == "suffix" else {}
        special = ["[UNK]"] if name == "wordpiece" else ["<unk>"] if name == "suffix" else []
        engine.train_from_iterator(
            lines, trainer(vocab_size=2500, special_tokens=special, show_progress=False, **options)
        )
        engines[name] = json.loads(engine.to_str())["model"]
    engine = tokenizers.Tokenizer(models.Unigram())
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    engine.normalizer = normalizers.NFKC()
    trainer = trainers.UnigramTrainer(vocab_size=4000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    engine.train_from_iterator(lines, trainer)
    engines["unigram"] = json.loads(engine.to_str())["model"]
    return engines


def write_vocabulary(folder: Path, name: str, vocabularies: dict[str, Any], **config: object) -> None:
    """Write the vocabulary files of a class, config.json and tokenizer_config.json."""
    model_type, kind, first = CLASSES[name]
    model = vocabularies[kind]
    folder.mkdir(parents=True)
    entries = [entry if isinstance(entry, str) else entry[0] for entry in model["vocab"]]
    if kind != "unigram":
        entries = sorted(model["vocab"], key=model["vocab"].__getitem__)
    entries = [*first, *(entry for entry in entries if entry not in first)]
    if kind == "wordpiece":
        (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    elif kind == "unigram":
        scores = {entry: score for entry, score in model["vocab"] if entry not in first}
        control = set(first) - {"<unk>", "[UNK]"}
        path = folder / FILES.get(name, "spiece.model")
        path.write_bytes(spm([(entry, scores.get(entry, 0.0)) for entry in entries], control, charsmap()))
    else:
        (folder / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
        (folder / "merges.txt").write_text(
            "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"])
        )
    if name == "LukeTokenizer":
        entities = {"[MASK]": 0, "[UNK]": 1, "[PAD]": 2, "[MASK2]": 3}
        (folder / "entity_vocab.json").write_text(json.dumps(entities))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **config}))


def unused(*_: object) -> None:
    pytest.fail("transformers reads the folder")


def without_spaces(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(end - len(text[start:end].lstrip()), end) if text[start:end].strip() else (0, 0) for start, end in offsets]


def assert_equal(ours: Tokenizer, theirs: Any, texts: list[str], pairs: bool = True) -> None:
    """Compare tokens and offsets of texts, and whole sequences of pairs; roles in a text are left out."""
    roles = [getattr(theirs, f"{role}_token") for role in ("bos", "eos", "cls", "sep", "pad", "unk", "mask")]
    texts = [text for text in texts if not any(role and role.lower() in text.lower() for role in roles)]
    expected = theirs(texts, add_special_tokens=False, return_offsets_mapping=True)
    for text, encoding, ids, offsets in zip(
        texts, ours.encode_with_offsets(texts), expected["input_ids"], expected["offset_mapping"], strict=True
    ):
        assert encoding.ids == ids, text
        if ours.algorithm == "bpe":  # whether the space before a word belongs to its token is up to the class
            encoding_offsets, offsets = (without_spaces(text, each) for each in (encoding.offsets, offsets))
        else:
            encoding_offsets = encoding.offsets
        assert encoding_offsets == [tuple(pair) for pair in offsets], text
    if not pairs:
        return
    first, second = texts[::2][:50], texts[1::2][:50]
    expected = theirs(first, second)
    for number, sequence in enumerate(encode(ours, first[: len(second)], second, max_length=100_000)):
        assert sequence.input_ids.tolist() == expected["input_ids"][number]
        if "token_type_ids" in expected:
            assert sequence.token_type_ids.tolist() == expected["token_type_ids"][number]
    for sequence, ids in zip(encode(ours, first, max_length=100_000), theirs(first)["input_ids"], strict=True):
        assert sequence.input_ids.tolist() == ids


@pytest.mark.parametrize("name", OWN_CLASSES)
def test_every_class_and_every_set_of_files(
    name: str, tmp_path: Path, lines: list[str], vocabularies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without transformers."""
    monkeypatch.setattr(transformers_tokenizer, "load", unused)
    theirs = transformers.AutoTokenizer
    texts = ["The <url>São Paulo[E1]x [e1] são paulo", "``a'' ﬁ  b\n c", *random_texts(100), *lines]
    around = name != "GPT2Tokenizer"
    write_vocabulary(tmp_path / "files", name, vocabularies)
    reference = theirs.from_pretrained(tmp_path / "files")
    assert type(reference).__name__ == CLASSES_OF_TRANSFORMERS.get(name, name)
    assert_equal(Tokenizer.load(tmp_path / "files"), reference, texts, around)
    # transformers 5: tokenizer.json and tokenizer_config.json, with added tokens of each kind
    reference.add_tokens(
        [AddedToken(token, special=special, normalized=not special) for token, special in ADDED.items()]
    )
    reference.save_pretrained(tmp_path / "five")
    (tmp_path / "five" / "config.json").write_bytes((tmp_path / "files" / "config.json").read_bytes())
    # transformers 4.20: vocabulary, added_tokens.json and special_tokens_map.json
    write_vocabulary(tmp_path / "four", name, vocabularies)
    size = len(reference) - len(ADDED)
    (tmp_path / "four" / "added_tokens.json").write_text(json.dumps({token: size + i for i, token in enumerate(ADDED)}))
    marks = {"additional_special_tokens": ["[E1]"], "unk_token": str(reference.unk_token)}
    (tmp_path / "four" / "special_tokens_map.json").write_text(json.dumps(marks))
    for folder in (tmp_path / "five", tmp_path / "four"):
        ours, loaded = Tokenizer.load(folder), theirs.from_pretrained(folder)
        assert ours.size == len(loaded)
        assert_equal(ours, loaded, texts, around)
        ours.save(folder / "saved")
        (folder / "saved" / "config.json").write_bytes((tmp_path / "files" / "config.json").read_bytes())
        again = Tokenizer.load(folder / "saved")
        assert again.fingerprint == ours.fingerprint
        assert again.extra == ours.extra
        few = [*texts[:2], *texts[2::4]]  # two equal tokenizers give equal tokens: this is what transformers reads
        assert_equal(again, theirs.from_pretrained(folder / "saved"), few, around)


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in OWN])
def test_transformers_reads_other_classes_and_a_copy_needs_it_no_more(
    name: str, tmp_path: Path, lines: list[str], vocabularies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_vocabulary(tmp_path / "files", name, vocabularies)
    size = Tokenizer.load(tmp_path / "files").size
    (tmp_path / "files" / "added_tokens.json").write_text(
        json.dumps({token: size + i for i, token in enumerate(ADDED)})
    )
    ours = Tokenizer.load(tmp_path / "files")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "files")
    assert type(reference).__name__ == name
    assert ours.size == len(reference)
    texts = ["The <url>São Paulo[E1]x [e1] são paulo", *random_texts(30), *lines[::9]]
    assert_equal(ours, reference, texts, name != "OpenAIGPTTokenizer")
    roles = sorted(set(ours.special.names().values()) - {ours.special.unk})
    for ids in ours.encode([f"a {role} b" for role in roles]):
        assert not set(ids.tolist()) & (set(ours.special_ids.tolist()) - {ours.unk_id})
    ours.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_bytes((tmp_path / "files" / "config.json").read_bytes())
    monkeypatch.setattr(transformers_tokenizer, "load", unused)
    again = Tokenizer.load(tmp_path / "saved")
    assert again.fingerprint == ours.fingerprint
    assert again.templates == ours.templates


def test_googles_albert_calls_its_model_otherwise(tmp_path: Path, vocabularies: dict[str, Any]) -> None:
    write_vocabulary(tmp_path / "huggingface", "AlbertTokenizer", vocabularies)
    (tmp_path / "google").mkdir()
    model = (tmp_path / "huggingface" / "spiece.model").read_bytes()
    (tmp_path / "google" / "30k-clean.model").write_bytes(model)
    google, huggingface = (Tokenizer.load(tmp_path / name) for name in ("google", "huggingface"))
    assert google.fingerprint == huggingface.fingerprint
    assert google.decode(google.encode(["The"])[0]) == "the"


CLASSES_OF_TRANSFORMERS = {"ElectraTokenizer": "BertTokenizer"}


PUBLISHED = {  # BERT's own vocabularies: file, settings
    "uncased": ("bert-base-uncased", {"do_lower_case": True}),
    "cased": ("bert-base-cased", {"do_lower_case": False}),
    "multilingual": ("bert-base-multilingual-cased", {"do_lower_case": False}),
    "chinese": ("bert-base-chinese", {"do_lower_case": True}),
    "accents": ("bert-base-multilingual-cased", {"do_lower_case": True, "strip_accents": False}),
    "cased without accents": ("bert-base-multilingual-cased", {"do_lower_case": False, "strip_accents": True}),
    "joined chinese": ("bert-base-chinese", {"do_lower_case": False, "tokenize_chinese_chars": False}),
}
SETTINGS: dict[str, dict[str, Any]] = {"RobertaTokenizer": {"add_prefix_space": True}}
"""Settings that tokenizers of these classes have now and then, besides the defaults."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [*PUBLISHED, *OWN_CLASSES, *(f"{name} with settings" for name in SETTINGS), "ModernBERT"]
)
def test_ten_thousand_random_strings(
    kind: str, tmp_path: Path, shared_data: Path, vocabularies: dict[str, Any]
) -> None:
    """And every line of the multilingual files: ids, offsets, and sequences of pairs."""
    folder, name = tmp_path / "files", kind.removesuffix(" with settings")
    if kind in PUBLISHED:
        folder.mkdir()
        vocabulary, config = PUBLISHED[kind]
        (folder / "vocab.txt").write_bytes((shared_data / "vocab" / f"{vocabulary}.txt").read_bytes())
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    elif kind == "ModernBERT":
        write_modernbert(folder, vocabularies["bytes"])
    else:
        write_vocabulary(folder, name, vocabularies, **(SETTINGS[name] if name != kind else {}))
    files = sorted((shared_data / "multilingual").glob("*.txt"))
    texts = [line for file in files for line in file.read_text(encoding="utf-8").split("\n")] + random_texts(10_000)
    around = name not in ("GPT2Tokenizer", "OpenAIGPTTokenizer")
    assert_equal(Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder), texts, around)


def write_modernbert(folder: Path, model: dict[str, Any]) -> None:
    """Write a tokenizer.json of the generic class: byte-level BPE in NFC, with entries for runs of spaces."""
    entries = [*BERT, *(entry for entry in sorted(model["vocab"], key=model["vocab"].__getitem__))]
    engine = tokenizers.Tokenizer(
        models.BPE({e: i for i, e in enumerate(entries)}, [tuple(m) for m in model["merges"]])
    )
    engine.normalizer, engine.pre_tokenizer = normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.add_tokens([AddedToken(" " * count) for count in (4, 3, 2)])
    engine.add_special_tokens([AddedToken(token, lstrip=token == "[MASK]", normalized=False) for token in BERT])
    ids = [(token, engine.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    pair = "[CLS] $A [SEP] $B [SEP]"
    engine.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=ids)
    folder.mkdir()
    engine.save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
