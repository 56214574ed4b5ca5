# SPDX-License-Identifier: Apache-2.0
"""The plugins with the servers' own code: registries, parsing of arguments, loaders and models.

tools/test --servers installs it (tests/servers/install.py) and sets FSTFS_SERVERS, the folder of
the releases, and FSTFS_SERVERS_PYTHON, which has what they import."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, HERE, SLOW

torch = pytest.importorskip("torch")
import files  # noqa: E402
from python.module import fstfs  # noqa: E402, F401

from .install import RELEASES, SERVING, environment  # noqa: E402
from .loading import SIGNATURES, signatures  # noqa: E402

FOLDER = os.environ.get("FSTFS_SERVERS")
if FOLDER is None:
    pytest.skip("the servers are not installed (tools/test --servers installs them)",
                allow_module_level=True)

PYTHON = os.environ["FSTFS_SERVERS_PYTHON"]
VLLM = ("the_plugin_is_registered", "the_stubs_agree", "arguments", "wrong_arguments", "tensors",
        "tensors_on_a_mount", "tensors_in_a_subfolder", "local_experts", "unused_shards", "a_model")
SGLANG = ("the_plugin_is_registered", "the_stubs_agree", "arguments", "wrong_arguments", "tensors",
          "the_hook_on_a_mount", "the_hook_elsewhere", "quantizations_that_need_another_loader",
          "a_model")
CASES = [(release, check) for release in RELEASES
         for check in (VLLM if release.startswith("vllm") else SGLANG)]
ran = {}  # {release: {check: result}}


@pytest.fixture(scope="session")
def llama(shared_place):
    """The directory of a small model with a tokenizer."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    path = shared_place / "llama"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, vocab_size=512, max_position_embeddings=256,
        tie_word_embeddings=False)).to(torch.bfloat16).save_pretrained(path, max_shard_size="1MB")
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(512)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0", bos_token="t2",
                            eos_token="t1").save_pretrained(path)
    return path


def run(place, command, *paths, seconds):
    done = subprocess.run([PYTHON, *command], capture_output=True, text=True, cwd=place,
                          timeout=seconds * SLOW, env=environment(place, FOLDER, BUILD, *paths))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.limit(600)
@pytest.mark.parametrize("release, check", CASES)
def test_release(place, stubs, mount, llama, model, release, check):
    if release not in ran:
        server = release.split("-")[0]
        with open(place / "settings.json", "w") as file:
            json.dump({"checkpoint": os.fspath(model[0]),
                       "mount": mount(model[0], "--shards=3", limit=400 * SLOW) / "shards",
                       "model": os.fspath(llama), "rendezvous": os.fspath(place / "rendezvous"),
                       "signatures": signatures(SIGNATURES[server])}, file)
        # Entry points of the place's Python are found too; the release's own code comes first.
        ran[release] = json.loads(run(
            place, [HERE / f"servers/program_{server}.py", place / "settings.json"],
            Path(FOLDER) / release, seconds=400)[-1])
    assert ran[release].get(check) == "ok", ran[release].get(check)


def test_all_checks_are_listed():
    assert {tuple(results) for results in ran.values()} <= {VLLM, SGLANG}


SERVE = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], load_format=sys.argv[2], enforce_eager=True, max_model_len=128,
              kv_cache_memory_bytes=64 << 20, dtype="bfloat16")
    made = llm.generate([{"prompt_token_ids": [2, 5, 9, 33, 7]}],
                        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
                        use_tqdm=False)
    print()
    print(json.dumps(list(made[0].outputs[0].token_ids)))
"""


@pytest.mark.limit(600)
def test_a_server_answers(place, llama):
    """vLLM's CPU build generates the same tokens from a model loaded by its own loader and by the
    plugin."""
    (place / "serve.py").write_text(SERVE)
    answers = []
    for load_format in ("auto", "fstfs"):
        files.forget(llama)
        lines = run(place, [place / "serve.py", llama, load_format], seconds=250)
        answers.append(next(line for line in reversed(lines) if line.startswith("[")))
        said = any(f"libfstfs reads {len(list(llama.glob('*.safetensors')))} files" in line
                   for line in lines)
        assert said == (load_format == "fstfs"), "\n".join(lines)
    assert answers[0] == answers[1] and len(json.loads(answers[0])) == 20, (answers, SERVING)
