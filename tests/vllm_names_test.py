"""Names of what the plugin keeps: all that the numbers in a KV cache depend on is in them. Runs in
a virtual environment with vLLM and kvcake."""
import os
import pathlib
import tempfile
import types
import unittest
import unittest.mock

os.environ.setdefault("KVCAKE_VLLM_ANY", "1")

import torch  # noqa: E402

from kvcake.vllm import config, connector, identity  # noqa: E402
from kvcake.vllm.connector import KvcakeConnector  # noqa: E402

CHUNK = 4


class NameSpaceTest(unittest.TestCase):
    def name_space(self, images, *, rank=0, **changed):
        space = types.SimpleNamespace
        model = {"dtype": torch.bfloat16, "max_model_len": 16, "quantization": None, **changed}
        config_of = {"hidden_size": 4, **model.pop("config", {})}
        plugin = object.__new__(KvcakeConnector)
        plugin.config = config.Config(weights_id=model.pop("weights", "w"))
        plugin._block, plugin._ranks = model.pop("block", CHUNK), model.pop("ranks", 1)
        layout = model.pop("layout", {"shape": [1]})
        plugin._vllm_config = space(
            cache_config=space(cache_dtype=model.pop("cache_dtype", "auto")),
            model_config=space(hf_config=space(to_dict=lambda: config_of),
                               multimodal_config=images, **model))
        return identity.name_space(plugin._facts(space(layout=lambda: layout), rank))

    def test_all_that_numbers_depend_on_counts(self):
        dynamic = {"rope_scaling": {"rope_type": "dynamic", "factor": 2}}
        made = [self.name_space(None, **changed) for changed in (
            {}, {"weights": "other"}, {"config": {"hidden_size": 8}}, {"dtype": torch.float16},
            {"cache_dtype": "fp8"}, {"quantization": "awq"}, {"block": 2 * CHUNK},
            {"layout": {"shape": [2]}}, {"ranks": 2}, {"ranks": 2, "rank": 1},
            {"config": dynamic}, {"config": dynamic, "max_model_len": 32})]
        with unittest.mock.patch.object(connector.vllm, "__version__", "9.9"):
            made.append(self.name_space(None))
        with unittest.mock.patch.object(connector, "_instructions", lambda: "avx9"):
            made.append(self.name_space(None))
        self.assertEqual(len(set(made)), len(made))
        self.assertEqual(self.name_space(None, max_model_len=32), made[0], "of a plain RoPE")

    def test_what_vllm_makes_of_images_counts(self):
        # vLLM's hashes of images have what a request says of it, not what the engine was told.
        made = {self.name_space(types.SimpleNamespace(mm_processor_kwargs=kwargs))
                for kwargs in (None, {"do_normalize": False}, {"do_normalize": True})}
        self.assertEqual(len(made), 3)
        self.assertNotIn(self.name_space(None), made)

    def test_what_vllm_was_told_of_images_and_videos_counts(self):
        from vllm.config.multimodal import MultiModalConfig
        # As it was when nothing of them was in it: stores that are filled stay so.
        plain = self.name_space(types.SimpleNamespace(mm_processor_kwargs=None))
        self.assertEqual(self.name_space(MultiModalConfig()), plain)
        self.assertEqual(self.name_space(MultiModalConfig(video_pruning_rate=0.0)), plain)
        model = {"_model_info": types.SimpleNamespace(supports_mm_device_do_normalize=False)}
        unable = MultiModalConfig(mm_device_do_normalize=False)
        self.assertEqual(self.name_space(unable, **model), plain)
        with tempfile.NamedTemporaryFile("w") as scales:
            fp8 = {"mm_encoder_attn_dtype": "fp8", "mm_encoder_fp8_scale_path": scales.name}
            made = [plain] + [self.name_space(MultiModalConfig(**options)) for options in (
                {"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}}},
                {"media_io_kwargs": {"video": {"num_frames": 40}}}, {"video_pruning_rate": 0.5},
                {"video_pruning_rate": 0.75},
                {"video_pruning_rate": 0.5, "video_pruning_method": "vidcom2"},
                {"mm_encoder_attn_dtype": "fp8"}, fp8, {"mm_device_do_normalize": False},
                {"mm_processor_kwargs": {"num_frames": 40}})]
            scales.write("{}")
            scales.flush()
            made.append(self.name_space(MultiModalConfig(**fp8)))
        self.assertEqual(len(set(made)), len(made))

    def test_how_weights_are_quantized_counts(self):
        from vllm.config.quantization import QuantizationConfigArgs
        plain = self.name_space(None, quantization="online")
        self.assertEqual(self.name_space(None, quantization="online", quantization_config=None),
                         plain, "stores that are filled stay so")
        made = [self.name_space(None, quantization="online",
                                quantization_config=QuantizationConfigArgs(**options))
                for options in ({"linear": "fp8_per_block"}, {"linear": "mxfp8"},
                                {"linear": "mxfp8", "ignore": ["re:.*qkv_proj"]},
                                {"linear": "mxfp8"}, {"targets": {"*": "mxfp8"}})]
        self.assertEqual(made[1], made[3])
        self.assertEqual(len({plain, *made}), 5)

    def weights_of(self, folder, *stores, **changed):
        space = types.SimpleNamespace
        of = {"load_format": "auto", "trust_remote_code": False, "config": {}, **changed}
        plugin = object.__new__(KvcakeConnector)
        plugin.config = config.read_config({"stores": stores})
        plugin._vllm_config = space(
            model_config=space(model=folder, code_revision=None,
                               trust_remote_code=of["trust_remote_code"],
                               hf_config=space(to_dict=lambda: of["config"])),
            load_config=space(load_format=of["load_format"]))
        return plugin._weights()

    def test_weights_that_are_made_up_have_no_name(self):
        with tempfile.TemporaryDirectory() as name:
            pathlib.Path(name, "weights.bin").write_bytes(b"1")
            with self.assertRaisesRegex(ValueError, '--load-format dummy.*"weights_id"'):
                self.weights_of(name, "s3://bucket/chunks", load_format="dummy")

    def test_code_that_vllm_trusts_counts(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "weights.bin").write_bytes(b"1")
            (folder / "code").mkdir()
            trusted = {"trust_remote_code": True,
                       "config": {"auto_map": {"AutoModel": "somebody/code--model.Model"}}}
            made = [self.weights_of(name, "s3://bucket/chunks")]
            with unittest.mock.patch.object(connector, "_snapshot", lambda *_: folder / "code"):
                for text in ("a = 1", "a = 2"):
                    (folder / "code" / "model.py").write_text(text)
                    made.append(self.weights_of(name, "s3://bucket/chunks", **trusted))
            self.assertEqual(len(set(made)), 3)
            untrusted = self.weights_of(name, "s3://bucket/chunks", config=trusted["config"])
            self.assertEqual(untrusted, made[0], "which is not run")
            with unittest.mock.patch.object(connector, "_snapshot", lambda *_: folder / "code"):
                (folder / "weights.bin").write_bytes(b"2")
                self.assertNotIn(self.weights_of(name, "s3://bucket/chunks", **trusted), made)

    def test_nothing_is_downloaded_to_name_it(self):
        with unittest.mock.patch("huggingface_hub.snapshot_download") as snapshot:
            snapshot.return_value = "/there"
            self.assertEqual(connector._snapshot("a/b", "main", "/cache"), pathlib.Path("/there"))
        snapshot.assert_called_once_with("a/b", revision="main", cache_dir="/cache",
                                         local_files_only=True)

    def test_a_store_that_cannot_be_made_is_no_fault_of_the_weights(self):
        with tempfile.TemporaryDirectory() as name:
            file = pathlib.Path(name, "weights.bin")
            file.write_bytes(b"1")
            with self.assertRaises(ValueError) as raised:
                self.weights_of(name, f"{file}/store")
        self.assertIn(f"the store {file}/store cannot be made", str(raised.exception))
        self.assertNotIn("weights_id", str(raised.exception))

    def test_digests_are_remembered_in_the_first_directory(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "weights.bin").write_bytes(b"1")
            self.addCleanup(os.chdir, os.getcwd())
            os.chdir(name)  # where what is no directory would be made one
            digest = self.weights_of(name, "s3://bucket/chunks", "redis://u:secret@host",
                                     f"{name}/a%3F?codec=lossless", f"{name}/b")
            self.assertEqual({path.name for path in folder.iterdir()}, {"weights.bin", "a?"})
            self.assertEqual((folder / "a?").stat().st_mode & 0o777, 0o700)
            self.assertEqual([path.name for path in (folder / "a?").iterdir()],
                             ["vllm-weights.json"])
            self.assertEqual(self.weights_of(name, "s3://bucket/chunks"), digest)


if __name__ == "__main__":
    unittest.main()
