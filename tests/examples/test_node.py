"""The example for Node.js computes what the formulas and the Python runtime do."""

import json
import re

import numpy as np
import pytest
import tokenizers
from support import languages
from support.tiny_bundle import TinyBundle

import wiola_runtime as wr

TOKENIZER = languages.EXAMPLES.parent / "wiola_export/demo/tokenizer.json"
LAYOUTS = {
    "shared": TinyBundle(),
    "growing": TinyBundle(cache="growing", target="portable"),
    "shared float16": TinyBundle(cache_dtype="float16"),
}
# Reads a list of texts, writes the token ids of each and the text of those ids.
ENCODE = """
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";
const { path, texts } = JSON.parse(readFileSync(0, "utf8"));
const tokenizer = new Tokenizer(JSON.parse(readFileSync(path, "utf8")), {});
const ids = texts.map((text) => tokenizer.encode(text).ids);
const options = { skip_special_tokens: true, clean_up_tokenization_spaces: false };
const back = ids.map((these) => tokenizer.decode(these, options));
console.log(JSON.stringify({ ids, back }));
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_self_test_gives_what_the_formulas_say(layout, tmp_path):
    bundle = languages.write_tested(LAYOUTS[layout], tmp_path / "b")

    done = languages.node("generate.mjs", bundle, "--self-test", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    golden = languages.read_golden(bundle)
    assert result["tokenIds"] == golden["token_ids"]
    assert result["maxDifference"] <= golden["tolerance"]
    assert result["mismatch"] is None


def test_a_self_test_that_passes_is_told_in_words(tmp_path):
    bundle = languages.write_tested(TinyBundle(), tmp_path / "b")

    done = languages.node("generate.mjs", bundle, "--self-test")

    assert (done.returncode, done.stderr) == (0, "")
    pattern = r"self-test passed: logits differ by at most [\d.e-]+, the bundle allows 0\.0001\n"
    assert re.fullmatch(pattern, done.stdout)


def test_another_token_fails_the_self_test(tmp_path):
    bundle = languages.write_tested(TinyBundle(), tmp_path / "b")
    golden = languages.read_golden(bundle)
    right = golden["token_ids"][5]
    golden["token_ids"][5] = right + 1
    golden["logits"] = golden["logits"][:2]
    languages.change_manifest(bundle, self_test=golden)

    done = languages.node("generate.mjs", bundle, "--self-test")

    assert done.returncode == 1
    expected = f"self-test: token 5 of the reply is {right}, the bundle says {right + 1}\n"
    assert done.stderr == expected


def test_a_logit_that_is_off_fails_the_self_test(tmp_path):
    bundle = languages.write_tested(TinyBundle(), tmp_path / "b")
    golden = languages.read_golden(bundle)
    golden["logits"][1]["values"][0] += 0.5
    languages.change_manifest(bundle, self_test=golden)

    done = languages.node("generate.mjs", bundle, "--self-test")

    assert done.returncode == 1
    assert done.stderr == "self-test: a logit is off by 0.500, the bundle allows 0.0001\n"


@pytest.mark.parametrize("layout", ["shared", "growing"])
def test_a_long_reply_is_the_runtimes(layout, tmp_path):
    """So long that a shared cache moves to a larger buffer twice."""
    bundle = LAYOUTS[layout].write(tmp_path / "b")
    prompt = "日本語 😀 in want of a wife"
    with wr.load(bundle) as model:
        expected = model.generate(prompt, max_new_tokens=540, temperature=0.0)

    done = languages.node("generate.mjs", bundle, "--prompt", prompt, "--max-new-tokens", 540)

    assert done.returncode == 0
    assert expected.finish_reason == "length"
    assert done.stdout == expected.text + "\n"
    assert done.stderr.endswith(" tokens a second\n")


@pytest.mark.parametrize("length", [0, 9])
def test_a_reply_ends_where_the_manifest_says(length, tmp_path):
    prompt = "It is a truth"
    with wr.load(TinyBundle().write(tmp_path / "endless")) as model:
        ids = model.generate(prompt, max_new_tokens=16, temperature=0.0).token_ids
    bundle = TinyBundle(eos_ids=(ids[length],)).write(tmp_path / "b")
    with wr.load(bundle) as model:
        expected = model.generate(prompt, max_new_tokens=16, temperature=0.0)

    done = languages.node("generate.mjs", bundle, "--prompt", prompt, "--max-new-tokens", 16)

    assert expected.finish_reason == "eos"
    assert len(expected.token_ids) <= length
    assert done.stdout == expected.text + "\n"


def test_what_does_not_fit_is_refused(tmp_path):
    bundle = TinyBundle(context_length=20).write(tmp_path / "b")

    done = languages.node("generate.mjs", bundle, "--prompt", "truth " * 20)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(" tokens do not fit the context of 20\n")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.onnx.data", lambda b: bytes([b[0] ^ 1]) + b[1:], "is not the file that was export"),
        ("tokenizer.json", lambda b: b + b" ", " bytes, the manifest says "),
    ],
)
def test_files_are_those_of_the_manifest(name, change, message, tmp_path):
    bundle = languages.write_tested(TinyBundle(), tmp_path / "b")
    path = bundle / name
    path.write_bytes(change(path.read_bytes()))

    done = languages.node("generate.mjs", bundle, "--self-test")

    assert done.returncode == 2
    assert done.stderr.startswith(str(path))
    assert message in done.stderr


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format_version": 2}, "bundle format 2 is newer than this host reads (1)\n"),
        (
            {
                "graph": {
                    "file": "model.onnx",
                    "opset": 21,
                    "domains": [],
                    "minimum_onnxruntime": "1.100.0",
                }
            },
            "tiny needs ONNX Runtime 1.100.0 or newer, found 1.",
        ),
        ({"self_test": None}, "tiny carries no self-test\n"),
        ({"inputs": []}, "the manifest lists no token_ids; export again\n"),
    ],
)
def test_what_the_host_cannot_read_is_refused(fields, message, tmp_path):
    bundle = TinyBundle().write(tmp_path / "b")
    languages.change_manifest(bundle, **fields)

    done = languages.node("generate.mjs", bundle, "--self-test")

    assert done.returncode == 2
    assert done.stderr.startswith(message)


def refusal(*arguments):
    """Return what the program says where it prints nothing and ends with exit code 2."""
    done = languages.node("generate.mjs", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_what_is_no_bundle_is_refused(tmp_path):
    path = tmp_path / "manifest.json"

    assert refusal(tmp_path, "--self-test") == (
        f"{path} not found; is {tmp_path} an exported bundle?\n"
    )
    path.write_text("{", encoding="utf-8")
    found = refusal(tmp_path, "--self-test")
    assert found.startswith(f"{path} is not readable JSON (")
    assert found.endswith("); export again\n")
    path.write_text("[]", encoding="utf-8")
    expected = "the manifest has no format_version; is that an exported bundle?\n"
    assert refusal(tmp_path, "--self-test") == expected


def test_a_file_that_is_absent_is_named(tmp_path):
    bundle = TinyBundle().write(tmp_path / "b")
    (bundle / "model.onnx.data").unlink()

    found = refusal(bundle, "--prompt", "It is")

    assert found == f"{bundle / 'model.onnx.data'} not found; copy the bundle again\n"


@pytest.mark.parametrize(
    "words", [[], ["--prompt", ""], ["--prompt", "It is", "--self-test"], ["b", "--self-test"]]
)
def test_arguments_that_say_nothing_show_how(words, tmp_path):
    found = refusal(tmp_path, *words)

    assert found.startswith("usage: node generate.mjs BUNDLE --prompt TEXT ")
    assert "--threads N" in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--prompt", "It is", "--max-new-tokens", "abc"],
            '--max-new-tokens is "abc"; expected a whole number of 0 or more',
        ),
        (
            ["--prompt", "It is", "--threads", "1025"],
            '--threads is "1025"; expected a whole number from 0 to 1024',
        ),
        (["--prompt", "It is", "--json"], "--json has no effect without --self-test"),
        (
            ["--self-test", "--max-new-tokens", "9"],
            "--max-new-tokens has no effect on --self-test; leave it out",
        ),
    ],
)
def test_options_out_of_range_or_without_effect_are_refused(words, message, tmp_path):
    assert refusal(tmp_path, *words) == message + "\n"


def test_help_is_there_without_a_bundle():
    done = languages.node("generate.mjs", "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: node generate.mjs BUNDLE --prompt TEXT ")
    for option in ("--max-new-tokens", "--self-test", "--json", "--threads"):
        assert f"\n  {option}" in done.stdout


def test_the_demo_gives_its_golden_tokens(request):
    languages.program("node", needs="node")  # skips before it exports
    demo_int8 = request.getfixturevalue("demo_int8")

    done = languages.node("generate.mjs", demo_int8, "--self-test", "--json")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["mismatch"] is None


def test_both_tokenizers_agree():
    rng = np.random.default_rng(3)
    words = ["It", " is", "a", "  truth", "\n\n", "Mr. ", "don't", "1813", " — ", "é", "日本", "😀"]
    texts = ["".join(rng.choice(words, rng.integers(1, 30))) for _ in range(200)]
    native = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    ids = [native.encode(text).ids for text in texts]
    back = [native.decode(these) for these in ids]

    done = languages.node(
        "--input-type=module",
        "-e",
        ENCODE,
        text=json.dumps({"path": str(TOKENIZER), "texts": texts}),
    )

    assert done.stderr == ""
    assert json.loads(done.stdout) == {"ids": ids, "back": back}
